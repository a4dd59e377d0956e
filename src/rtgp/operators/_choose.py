"""Which operator to use, and why."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from rtgp._kernels import KernelForm, read_kernel
from rtgp._kernels.composites import Scaled
from rtgp._kernels.structured import is_structured
from rtgp._memory import available_memory
from rtgp.distributed import Group, world
from rtgp.errors import SettingError
from rtgp.operators._blocks import TILE, TILE_SIZES
from rtgp.operators._dense import DenseOperator
from rtgp.operators._gpu import SUPPORTED, HalfOperator, TritonOperator, half_bytes, supported
from rtgp.operators._gpu.availability import stationary
from rtgp.operators._gpu.near_tiles import share_of_tiles
from rtgp.operators._near import NearOperator, unknown
from rtgp.operators._near_plan import NearPlan, plan_of
from rtgp.operators._order import DEFAULT as TILES
from rtgp.operators._order import negligible_entry
from rtgp.operators._protocol import KernelOperator
from rtgp.operators._sharded import ShardedOperator
from rtgp.operators._structured import StructuredOperator
from rtgp.operators._tiled import TiledOperator

_log = logging.getLogger("rtgp")

MEMORY_FRACTION = 0.6  # of what is free: the rest is for the preconditioner, the solver and the caller


def _dense(form: KernelForm, tile: int, negligible: float) -> KernelOperator:
    """K stored: on a card by its half, where the fused kernels can make it."""
    return HalfOperator(form, tile) if _in_half(form) else DenseOperator(form, tile)


def _in_half(form: KernelForm) -> bool:
    return form.device.type == "cuda" and supported(form) is None


def _tiled(form: KernelForm, tile: int, negligible: float) -> KernelOperator:
    return TiledOperator(form, tile)


def _triton(form: KernelForm, tile: int, negligible: float) -> KernelOperator:
    return TritonOperator(form, tile, negligible=negligible)


# By name: of a form, the size of its tiles, and the entries that may be left out. "near" is made by `_near`.
_OPERATORS: dict[str, Callable[[KernelForm, int, float], KernelOperator]] = {
    "dense": _dense,
    "tiled": _tiled,
    "triton": _triton,
}
NEAR = "near"  # the tiles that count alone; what is negligible is told by the noise
STRUCTURED = "structured"  # chosen by itself, where the form multiplies by its own structure
SHARDED = "sharded"  # or "sharded:dense", "sharded:tiled", "sharded:triton": what each rank does with its rows


@dataclass(frozen=True)
class Choice:
    """The operator to use, and why.

    Attributes
    ----------
    operator : str
        "dense", "tiled", "triton" or "near".
    reason : str
        Why, in words.
    plan : NearPlan, optional
        Which tiles "near" computes.
    stored : bool
        Whether "near" keeps them in memory.

    Examples
    --------
    >>> from rtgp.operators import Choice
    >>> Choice("tiled", "asked for").operator
    'tiled'
    """

    operator: str
    reason: str
    plan: NearPlan | None = None
    stored: bool = False


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on the device now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, ready for use
        return torch.cuda.mem_get_info(device)[0] + cached
    return available_memory()


def choose(
    form: KernelForm,
    operator: str = "auto",
    available: int | None = None,
    ranks: int = 1,
    negligible: float = 0.0,
    least_noise: float = 0.0,
) -> Choice:
    """Which operator to use for a kernel matrix, and why.

    Dense where n^2 numbers, or on a card half of them, fit in the free memory of the device: from the second product
    on, reading K is faster than computing it. Beyond, triton on a card that has it, and tiled otherwise. Triton too
    where most tiles hold negligible entries only: making the others is faster than reading all. On a CPU near, for the
    same reason; its tiles are stored where they fit.

    Parameters
    ----------
    form : KernelForm
        The kernel, as `rtgp.operators.make` reads it.
    operator : str
        "auto", or the name of an operator that is then checked.
    available : int, optional
        Free bytes to reckon with. By default those of the device.
    ranks : int
        Processes over which the rows of K are spread.
    negligible : float
        Entries of the kernel of unit scale that may be left out on a card.
    least_noise : float
        The smallest variance of the noise, beside which entries may be left out on a CPU. 0: none is.

    Returns
    -------
    Choice
        The name and the reason.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> form = operators.make(gpytorch.kernels.RBFKernel(), torch.zeros(100, 2)).form
    >>> operators.choose(form, available=2**30).operator, operators.choose(form, available=0).operator
    ('dense', 'tiled')
    """
    if operator != "auto":
        if operator not in (*_OPERATORS, NEAR):
            names = ", ".join(repr(name) for name in ("auto", *_OPERATORS, NEAR, SHARDED, *_sharded_names()))
            raise SettingError(f"The 'operator' parameter must be one of {names}. Got {operator!r} instead.")
        if operator == NEAR:
            if ranks > 1:
                raise SettingError("The 'near' operator works on one rank. Use operator='sharded' instead.")
            plan = plan_of(form, least_noise, share=1.0)
            if plan is None:
                raise unknown()
            return _near_choice(form, plan, _limit(form, available), "asked for; ")
        reason = supported(form) if operator == "triton" else None
        if reason is not None:
            raise SettingError(f"{SUPPORTED}. Here {reason}. Use operator='auto', 'dense' or 'tiled' instead.")
        return Choice(operator, "asked for")
    if ranks == 1 and is_structured(form):
        return Choice(STRUCTURED, "the covariance has a structure of its own, by which it multiplies")
    halved = ranks == 1 and _in_half(form)
    if halved:
        share = _share(form, negligible)
        if share <= TILES.unread:
            return Choice("triton", f"{share:.1%} of the tiles of K hold entries that count")
    needed = half_bytes(form.size) if halved else form.size**2 * form.dtype.itemsize // ranks
    limit = _limit(form, available)
    if ranks == 1 and (pays := _plan_that_pays(form, least_noise, needed <= limit)) is not None:
        return _near_choice(form, pays, limit)
    words = ("half of K" if halved else "K") if ranks == 1 else f"K / {ranks}"
    words += f" needs {needed / 2**30:.2f} GiB and {limit / 2**30:.2f} GiB may be used on {form.device}"
    fits = needed <= limit
    if fits or form.device.type != "cuda":
        return Choice("dense" if fits else "tiled", words)
    reason = supported(form)
    if reason is None:
        return Choice("triton", words)
    _say_once(f"K(X, X) goes by the 'tiled' operator, slower than 'triton', which cannot be used: {reason}.")
    return Choice("tiled", f"{words}; 'triton' cannot be used: {reason}")


def _limit(form: KernelForm, available: int | None) -> int:
    return int(MEMORY_FRACTION * (free_memory(form.device) if available is None else available))


def _plan_that_pays(form: KernelForm, least_noise: float, fits: bool) -> NearPlan | None:
    """The tiles that count on a CPU, where they are so few that they alone are faster. fits: all of K in memory."""
    if form.device.type != "cpu" or form.size < TILES.least:
        return None
    return plan_of(form, least_noise, TILES, TILES.stored if fits else TILES.share)


def _near_choice(form: KernelForm, plan: NearPlan, limit: int, words: str = "") -> Choice:
    needed = plan.entries * form.dtype.itemsize
    words += f"{plan.share:.1%} of the tiles of K hold entries that count; one half of these needs "
    words += f"{needed / 2**30:.2f} GiB and {limit / 2**30:.2f} GiB may be used on {form.device}"
    return Choice(NEAR, words, plan, needed <= limit)


def still_serves(operator: KernelOperator, form: KernelForm, noise: Tensor) -> bool:
    """Whether "auto" would still store all of K where it does: lengthscales that have become short make few of its
    tiles worth it."""
    if not isinstance(operator, DenseOperator) or form.device.type != "cpu":
        return True
    return _plan_that_pays(form, float(noise.detach().min()), fits=True) is None


def _share(form: KernelForm, negligible: float) -> float:
    leaf = stationary(form)
    return 1.0 if leaf is None else share_of_tiles(leaf.formula, leaf.z.detach(), negligible)


@functools.cache
def _say_once(words: str) -> None:
    _log.warning(words)


def is_sharded(operator: str) -> bool:
    """Whether an operator of this name is spread over ranks.

    Parameters
    ----------
    operator : str
        The name of an operator.

    Returns
    -------
    bool
        True for "sharded", "sharded:dense", "sharded:tiled" and "sharded:triton".

    Examples
    --------
    >>> from rtgp.operators import is_sharded
    >>> is_sharded("sharded:tiled"), is_sharded("tiled")
    (True, False)
    """
    return operator == SHARDED or operator in _sharded_names()


def _sharded_names() -> tuple[str, ...]:
    return tuple(f"{SHARDED}:{name}" for name in _OPERATORS)


def group_for(operator: str) -> Group:
    """The ranks that take part in the products of an operator of this name.

    Parameters
    ----------
    operator : str
        The name of an operator.

    Returns
    -------
    Group
        This process alone, unless the operator is sharded.

    Examples
    --------
    >>> from rtgp.operators import group_for
    >>> group_for("dense").size
    1
    """
    return world() if is_sharded(operator) else Group.alone()


def make_from_form(
    form: KernelForm, operator: str = "auto", least_noise: float = 0.0, most_on_card: int | None = None
) -> KernelOperator:
    """The operator of a kernel that has been read already.

    Parameters
    ----------
    form : KernelForm
        The kernel and its points.
    operator : str
        As of `make`.
    least_noise : float
        The smallest variance of the noise, beside which entries of K may be negligible. 0: none is.
    most_on_card : int, optional
        Bytes of a card's free memory to reckon with, for an operator of few products. By default all.

    Returns
    -------
    KernelOperator
        The operator.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> form = operators.make(gpytorch.kernels.RBFKernel(), torch.zeros(3, 1)).form
    >>> operators.make_from_form(form, "tiled").shape
    (3, 3)
    """
    tile = TILE_SIZES.get(form.device.type, TILE)
    if is_sharded(operator):
        group, local = world(), operator.partition(":")[2] or "auto"
        # Processes on one machine share its memory; each has a card of its own.
        available = free_memory(form.device) // (1 if form.device.type == "cuda" else group.neighbours)
        return ShardedOperator(form, tile, group, choose(form, local, available, group.size).operator)
    scale = float(form.scale.detach()) if isinstance(form, Scaled) else 1.0
    negligible = negligible_entry(form.size, scale, least_noise)
    reckoned = None
    if form.device.type == "cuda" and most_on_card is not None:
        reckoned = min(free_memory(form.device), most_on_card)
    choice = choose(form, operator, reckoned, negligible=negligible, least_noise=least_noise)
    if choice.operator == NEAR:
        return NearOperator(form, tile, least_noise, choice.plan, choice.stored)
    if choice.operator == STRUCTURED:
        return StructuredOperator(form, tile)
    try:
        return _OPERATORS[choice.operator](form, tile, negligible)
    except torch.OutOfMemoryError:
        if operator != "auto" or choice.operator != "dense":
            raise
        # Somebody else took the memory that was free a moment ago, or it is in pieces.
        torch.cuda.empty_cache()
        other = choose(form, operator, available=0).operator
        _log.warning(
            "There was no memory left to store K(X, X) on %s: products go by the '%s' operator.", form.device, other
        )
        return _OPERATORS[other](form, tile, negligible)


def make(
    kernel: Kernel, X: Tensor, operator: str = "auto", dtype: torch.dtype | None = None, least_noise: float = 0.0
) -> KernelOperator:
    """The kernel matrix K(X, X) of a GPyTorch kernel, as an operator.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        The kernel.
    X : Tensor
        The points, (n, d).
    operator : str
        "dense" stores K. "tiled" computes its tiles in every product. "triton" computes them in fused GPU kernels.
        "near" leaves out the tiles in which no entry counts beside the noise.
        "auto" takes the fastest that fits in memory. "sharded" spreads K over the ranks of `rtgp.distributed.start()`.
    dtype : torch.dtype, optional
        Of the entries. By default that of X.
    least_noise : float
        The smallest variance of the noise that K is used with. Entries that are negligible beside it may be left out.
        0: none is, but those of a kernel of compact support.

    Returns
    -------
    KernelOperator
        The operator.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from rtgp import operators
    >>> X = torch.linspace(0, 1, 5)[:, None]
    >>> K = operators.make(gpytorch.kernels.RBFKernel(), X, operator="tiled")
    >>> K.matmul(torch.ones(5, 2)).shape
    torch.Size([5, 2])
    >>> loss = K.bilinear(torch.ones(5, 1), torch.ones(5, 1))
    >>> loss.backward()
    """
    return make_from_form(read_kernel(kernel, X, dtype), operator, least_noise)
