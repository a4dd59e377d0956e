"""Covariance matrices read from GPyTorch kernels, evaluated and differentiated block by block."""

from rtgp._kernels.covariance import read_covariance
from rtgp._kernels.forms import Generic, KernelForm, Product, Scaled, Stationary, Sum
from rtgp._kernels.gpytorch_kernels import read_kernel

__all__ = ["Generic", "KernelForm", "Product", "Scaled", "Stationary", "Sum", "read_covariance", "read_kernel"]
