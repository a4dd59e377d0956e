"""What a GPRegressor is given beside its data, checked: precision, device, seed, and arguments that it has not."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from rtgp._precision import DTYPES
from rtgp.datasets._dataset import Array
from rtgp.errors import SettingError


def working_dtype(dtype: Any) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise SettingError(
            f"The 'dtype' parameter of GPRegressor must be 'float32' or 'float64'. Got {dtype!r} instead."
        )
    return DTYPES[name]


def working_device(device: Any) -> torch.device:
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise SettingError(
            "The 'device' parameter of GPRegressor must be 'auto' or a device of torch that is there, such as "
            f"'cpu' or 'cuda'. Got {device!r} instead ({str(error).splitlines()[0]})."
        ) from error


def seed_from(random_state: int | np.random.RandomState | None) -> int:
    """A seed for torch. An int is one; a RandomState is drawn from; None asks the operating system."""
    if random_state is None:
        return secrets.randbits(31)
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool) and 0 <= random_state < 2**32:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def refuse_others(others: dict[str, Any]) -> None:
    """What `fit` does not take, in the words of those who look for it."""
    if "sample_weight" in others:
        raise SettingError(
            "GPRegressor.fit takes no 'sample_weight': a Gaussian process says how exact a row is by its noise. Pass "
            "noise=, the variance of each row's target: with weight w, a w-th of the variance at weight 1."
        )
    if others:
        raise TypeError(f"GPRegressor.fit got an unexpected keyword argument {next(iter(others))!r}")


def tensor_of(array: Array) -> Tensor:
    # A copy: numpy's memory may be aligned otherwise than torch's, which may change the last bit of a product.
    return torch.from_numpy(array).clone()


def array_of(tensor: Tensor) -> Array:
    array: Array = tensor.detach().double().cpu().numpy()
    return array
