"""Covariance matrices read from GPyTorch kernels, evaluated and differentiated block by block."""

from rtgp._kernels.composites import Product, Scaled, Sum
from rtgp._kernels.covariance import read_covariance
from rtgp._kernels.form import KernelForm
from rtgp._kernels.generic import Generic
from rtgp._kernels.gpytorch_kernels import read_kernel
from rtgp._kernels.stationary import Stationary

__all__ = ["Generic", "KernelForm", "Product", "Scaled", "Stationary", "Sum", "read_covariance", "read_kernel"]
