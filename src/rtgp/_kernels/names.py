"""What the parameters of kernels are called: by the inputs they act on, and by the kernel they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, ScaleKernel

_BY_INPUT = ("lengthscale", "period_length", "variance")  # parameters that may have an entry for each input
_NU = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}
_LONGEST = 40  # characters of a formula that serves as a name


@dataclass
class KernelNames:
    """Of all kernels below a module, each by its identity."""

    inputs: dict[int, tuple[str, ...] | None] = field(default_factory=dict)  # None: of unknown number and names
    kernels: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, root: torch.nn.Module) -> KernelNames:
        """Names of inputs come from the attribute `input_names` of a kernel, where `name_inputs` has left them."""
        names, found = cls(), list(_outermost(root))
        for kernel in found:
            names._visit(kernel, getattr(kernel, "input_names", None), True)
        words = {key: word for kernel in found for key, word in _words(kernel)}
        selected = {id(part): part for kernel in found for part in kernel.modules() if isinstance(part, Kernel)}
        names.kernels = names._unique(words, selected)
        return names

    def entries(self, kernel: Kernel, own: str, count: int) -> list[str] | None:
        """What stands in brackets behind a parameter with `count` entries; None: nothing but numbers is known."""
        inputs = self.inputs.get(id(kernel))
        if own not in _BY_INPUT or inputs is None or len(inputs) != count or (count == 1 and own == "variance"):
            return None
        return list(inputs)

    def _visit(self, kernel: Kernel, inputs: Sequence[str] | None, selects: bool) -> None:
        if selects and kernel.active_dims is not None:
            chosen = kernel.active_dims.tolist()
            within = inputs is not None and max(chosen) < len(inputs)
            inputs = [inputs[i] for i in chosen] if inputs is not None and within else [str(i) for i in chosen]
        self.inputs[id(kernel)] = None if inputs is None else tuple(inputs)
        for child in _parts(kernel):
            # A ScaleKernel takes over its base kernel's columns and applies them itself.
            self._visit(child, inputs, not isinstance(kernel, ScaleKernel))

    def _unique(self, words: dict[int, str], kernels: dict[int, Kernel]) -> dict[int, str]:
        """Kernels of one kind are told apart by their inputs, else by number."""
        bases = {key: word for key, word in words.items() if not isinstance(kernels[key], ScaleKernel)}
        repeated = {word for word, count in Counter(bases.values()).items() if count > 1}
        for key, word in bases.items():
            inputs = self.inputs[key]
            if word in repeated and kernels[key].active_dims is not None and inputs is not None:
                bases[key] = f"{word}({', '.join(inputs)})" if len(", ".join(inputs)) <= _LONGEST else word
        seen: Counter[str] = Counter()
        for key, word in bases.items():
            seen[word] += 1
            bases[key] = word if seen[word] == 1 else f"{word}_{seen[word]}"
        for key, kernel in kernels.items():
            if isinstance(kernel, ScaleKernel):
                bases[key] = bases[id(_unscaled(kernel))]
        return bases


def name_inputs(kernel: Kernel, names: Sequence[str] | None) -> None:
    """Leave the names of the inputs with a kernel; they are no part of its state."""
    if names is not None:
        kernel.input_names = tuple(names)


def word_for(kernel: Kernel) -> str:
    """A kernel's short name: "rbf", "matern32", "periodic", or a formula of such."""
    if isinstance(kernel, ScaleKernel):
        return word_for(kernel.base_kernel)
    if isinstance(kernel, AdditiveKernel | ProductKernel):
        sign, word = (" + ", "sum") if isinstance(kernel, AdditiveKernel) else ("*", "product")
        formula = sign.join(map(word_for, kernel.kernels))
        return f"({formula})" if len(formula) <= _LONGEST else word
    if isinstance(kernel, MaternKernel):
        return _NU.get(kernel.nu, "matern")
    return type(kernel).__name__.removesuffix("Kernel").lower() or "kernel"


def _unscaled(kernel: Kernel) -> Kernel:
    return _unscaled(kernel.base_kernel) if isinstance(kernel, ScaleKernel) else kernel


def _words(kernel: Kernel) -> Iterator[tuple[int, str]]:
    for part in kernel.modules():
        if isinstance(part, Kernel):
            yield id(part), word_for(part)


def _parts(kernel: Kernel) -> Iterator[Kernel]:
    for child in kernel.children():
        below = child if isinstance(child, torch.nn.ModuleList) else [child]
        yield from (one for one in below if isinstance(one, Kernel))


def _outermost(root: torch.nn.Module) -> Iterator[Kernel]:
    if isinstance(root, Kernel):
        yield root
        return
    for child in root.children():
        yield from _outermost(child)
