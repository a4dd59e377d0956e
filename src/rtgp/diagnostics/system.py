"""The linear system of a subject."""

from __future__ import annotations

from rtgp.diagnostics.subject import Subject
from rtgp.objectives.reading import read
from rtgp.operators import make_from_form
from rtgp.solvers import WhitenedSystem


class SubjectSystem:
    """K + noise at the hyperparameters of a subject, whitened, and what is left of y once the mean is taken off."""

    def __init__(self, subject: Subject) -> None:
        batch = read(subject.model, subject.model.likelihood)
        self.system = WhitenedSystem(make_from_form(batch.form), batch.noise.detach())
        residual = batch.residual.detach()[:, None].to(self.system.dtype)
        self.target = self.system.whiten(residual)  # (n, 1)
