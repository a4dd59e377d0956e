"""What is sampled, and which tests belong to which module: quick ones first, since the first failure ends a trial."""

from __future__ import annotations

SEED = 20210614
# Patterns of modules below src/rtgp, and how many faults are drawn from them.
SAMPLE: dict[tuple[str, ...], int] = {
    ("truncation/*.py",): 55,
    ("_solvers/cg.py",): 30,
    ("_objectives/*.py", "_baselines/sggp.py"): 65,
}

_TRUNCATION = [
    "tests/truncation/test_moments.py",
    "tests/truncation/test_distributions.py",
    "tests/truncation/test_weighting.py",
    "tests/truncation/test_series.py",
    "tests/truncation/test_unbiased.py",
]
_CG = ["tests/solvers/test_cg_ends.py", "tests/solvers/test_chunks.py", "tests/solvers/test_lanczos.py"]
_FOURIER = [
    "tests/objectives/test_small_parts.py",
    "tests/objectives/test_fourier_algebra.py",
    "tests/objectives/test_fourier_objective.py",
    "tests/objectives/test_fourier_enumeration.py",
]
_KRYLOV = ["tests/objectives/test_state.py", "tests/test_mll.py", "tests/objectives/test_contrast.py"]
_OBJECTIVES = {
    "cholesky": ["tests/test_mll.py"],
    "control_coefficients": ["tests/objectives/test_control_coefficients.py"],
    "control_variate": ["tests/objectives/test_own_draw.py", *_KRYLOV],
    "nystroem_control": ["tests/preconditioners/test_nystroem_control.py"],
    "fourier": _FOURIER,
    "fourier_algebra": _FOURIER,
    "fourier_limit": [*_FOURIER, "tests/diagnostics/test_fourier.py"],
    "information": ["tests/objectives/test_information.py"],
    "krylov": _KRYLOV,
    "krylov_run": _KRYLOV,
    "gradient_terms": _KRYLOV,
    "reading": ["tests/test_mll.py", "tests/objectives/test_reading.py"],
    "reading_inputs": ["tests/objectives/test_reading.py", "tests/clients/test_gpytorch_second_zoo.py"],
    "reading_noise": ["tests/objectives/test_reading.py", "tests/clients/test_gpytorch_second_zoo.py"],
    "reading_rows": ["tests/objectives/test_reading.py", "tests/clients/test_gpytorch_second_zoo.py"],
    "outputs": ["tests/objectives/test_several_outputs.py"],
    "several": ["tests/clients/test_gpytorch_second_zoo.py"],
    "vecchia": ["tests/objectives/test_vecchia.py"],
    "fourier_ladder": _FOURIER,
    "protocol": ["tests/objectives/test_small_parts.py", *_KRYLOV, "tests/objectives/test_fourier_objective.py"],
    "sggp": ["tests/objectives/test_small_parts.py", "tests/baselines/test_sggp.py"],
    "single_sample": _FOURIER,
    "term_sizes": _FOURIER,
    "policy": ["tests/preconditioners/test_policy.py", "tests/objectives/test_state.py"],
}


# What is tried on faults that those leave alive: slower, or tests of what uses the module.
_CONTROL = "tests/preconditioners/test_nystroem_control.py"
_FURTHER = {
    "cholesky": ["tests/objectives/test_state.py", "tests/test_bad_input.py"],
    "fourier_algebra": ["tests/objectives/test_fourier_theorem_2.py"],
    "krylov": ["tests/objectives/test_small_parts.py", _CONTROL, "tests/preconditioners/test_policy.py"],
    "krylov_run": ["tests/objectives/test_small_parts.py", _CONTROL, "tests/objectives/test_information.py"],
    "policy": ["tests/objectives/test_small_parts.py", "tests/test_mll.py", _CONTROL],
}


def files_for(module: str) -> list[list[str]]:
    """The test files of a module, such as "rtgp/_objectives/krylov.py": those to begin with, and further ones."""
    _, part, name = module.removesuffix(".py").split("/")
    if part == "truncation":
        return [_TRUNCATION, ["tests/test_linear_algebra.py"]] if name == "_weighting" else [_TRUNCATION]
    if part == "_solvers":
        return [_CG, ["tests/test_linear_algebra.py"]]
    return [_OBJECTIVES[name], _FURTHER[name]] if name in _FURTHER else [_OBJECTIVES[name]]
