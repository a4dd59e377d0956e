"""Covariance matrices read from GPyTorch kernels, evaluated and differentiated block by block."""

from rtgp.kernels.forms import Generic, KernelForm, Product, Scaled, Stationary, Sum
from rtgp.kernels.structure import read_covariance, read_kernel

__all__ = ["Generic", "KernelForm", "Product", "Scaled", "Stationary", "Sum", "read_covariance", "read_kernel"]
