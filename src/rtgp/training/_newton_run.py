"""Training by Newton steps: evaluates, overcomes obstacles, records, saves and checks the end.

What a step does is decided in `newton`, by pure functions of a state. Where Cholesky takes the place of conjugate
gradients on the way, gradients become exact. L-BFGS then goes on from the last accepted point: it learns the curvature
that the information matrix misses, and needs no rules for noise.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rtgp.distributed._errors import DisagreementError, RankError
from rtgp.errors import OutOfMemoryError, RTGPError
from rtgp.training import _newton as newton
from rtgp.training._check_end import check_end
from rtgp.training._errors import CheckpointError
from rtgp.training._evaluation import Evaluation
from rtgp.training._lbfgs import LBFGSSettings, go_on_by_lbfgs, steps_before
from rtgp.training._newton import NewtonSettings, NewtonState
from rtgp.training._obstacles import consider_cholesky, consider_cholesky_at_last, overcome
from rtgp.training._outcome import NoWayOnError, Outcome, combined
from rtgp.training._result import FitStatus
from rtgp.training._session import Session


def descend_newton(
    session: Session,
    steps: int,
    settings: NewtonSettings,
    more_if_exact: int = 0,
    lbfgs: LBFGSSettings | None = None,
) -> Outcome:
    """Train until a step promises at most the tolerance per point and the noise costs at most half of it.

    Or until `steps` are taken. Where gradients have no noise, `more_if_exact` further steps are allowed, for what is
    left to gain is then certain.
    """
    lbfgs = lbfgs or LBFGSSettings()
    with session.restoring():
        before = steps_before(session.resumed)
    if before is not None:
        tolerance = settings.exact_share * settings.tolerance
        return go_on_by_lbfgs(session, steps + more_if_exact, tolerance, before, lbfgs, session.resumed)
    return _Run(session, steps, settings, more_if_exact, lbfgs).run()


class _Run:
    def __init__(
        self, session: Session, steps: int, settings: NewtonSettings, more_if_exact: int, lbfgs: LBFGSSettings
    ) -> None:
        self.session, self.problem, self.settings, self._lbfgs = session, session.problem, settings, lbfgs
        self._most = (steps, steps + more_if_exact)
        self.state = NewtonState.at(self.problem.point, settings)
        if session.resumed is not None:
            with session.restoring():
                self.state = newton.restored(session.resumed, self.state, settings, self.steps)

    @property
    def steps(self) -> int:
        """The most that may be taken."""
        return self._most[self.problem.exact]

    def run(self) -> Outcome:
        session = self.session
        if self.state.done == 0:
            session.save(0, self.state.saved())
        while self.state.done < self.steps:
            if self._hands_over():
                return self._go_on_by_lbfgs()
            try:
                stop = self._step()
            except NoWayOnError as obstacle:
                return replace(self._outcome(FitStatus.LIMIT, f"ended: {obstacle}"), final=False)
            if stop:
                session.save(self.state.done, self.state.saved())
                return replace(self._outcome(FitStatus.STOPPED, "the callback asked to stop"), final=False)
            if self._hands_over():  # nothing is saved before Cholesky has shown that it serves
                continue
            session.keep(self.state.done, self.state.saved(), self.state.accepted)
            if newton.finished(self.state, self.settings):
                if self._cholesky_at_last(ended=True):
                    return self._go_on_by_lbfgs()
                if self._confirmed():
                    return self._outcome(FitStatus.CONVERGED, f"converged: {self._words()}")
            if session.due(self.state.done):
                session.save(self.state.done, self.state.saved())
        if self._cholesky_at_last(ended=False):
            return self._go_on_by_lbfgs()
        back = ", the last back again" if self._last_is_worse() else ""
        return self._outcome(FitStatus.STEPS, f"all {self.steps} steps were taken{back}; {self._words()}")

    def _hands_over(self) -> bool:
        """Whether L-BFGS goes on from here. It needs a start and a step."""
        return self.problem.gone_over and self.steps - self.state.done > 1

    def _cholesky_at_last(self, ended: bool) -> bool:
        """Whether Cholesky has been taken for the last steps, where their number was not asked for."""
        if self._most[0] == self._most[1] or self.problem.exact:
            return False
        spent = sum(int(count) for count in self.session.history.column("iterations"))
        return consider_cholesky_at_last(self.problem, self.state.done, spent, ended)

    def _step(self) -> bool:
        """Whether the callback asks to stop."""
        found = self._evaluate()
        if found is None:
            return False
        row = self.session.row(self.state.done, found, 1.0 / max(1, self.state.settled))
        self.state = newton.step(self.state, found, self.settings)
        self.problem.move_to(self.state.point)
        stop = self.session.record(row, self.steps)
        too_noisy = newton.too_noisy(self.state, self.settings, self.steps)
        consider_cholesky(self.problem, self.steps - self.state.done, too_noisy)
        return stop

    def _evaluate(self) -> Evaluation | None:
        """Evaluate at the current point, or, where that fails, between it and the last accepted one.

        None means that the training has gone over to Cholesky.
        """
        refresh = newton.refresh_due(self.state, self.settings)
        while True:
            point, exact = self.problem.point, self.problem.exact
            try:
                information = self.settings.solve_tolerance if refresh else None
                return self.problem.evaluate(contrast=True, information=information)
            except (RankError, DisagreementError):
                raise
            except RTGPError as error:
                first, exhausted = self.state.done == 0, self.state.reach < self.settings.least_reach
                if overcome(self.problem, error, last_resort=first or exhausted):
                    self.problem.move_to(point)
                    if self.problem.exact != exact:
                        return None
                elif first:
                    raise
                elif isinstance(error, OutOfMemoryError) or exhausted:
                    self.problem.move_to(self.state.accepted)
                    raise NoWayOnError(str(error)) from error
                else:
                    self.state = newton.stepped_back(self.state)
                    self.problem.move_to(self.state.point)

    def _go_on_by_lbfgs(self) -> Outcome:
        self.problem.move_to(self.state.accepted)
        tolerance = self.settings.exact_share * self.settings.tolerance
        try:
            return go_on_by_lbfgs(self.session, self.steps, tolerance, self.state.done, self._lbfgs)
        except (RankError, DisagreementError, CheckpointError):
            raise
        except RTGPError as error:  # Cholesky fails where conjugate gradients did not
            if self.state.done == 0:
                raise
            self.problem.move_to(self.state.accepted)
            return replace(self._outcome(FitStatus.LIMIT, f"ended: {error}"), final=False)

    def _last_is_worse(self) -> bool:
        """Go back from where the last step led, if that is clearly worse. Nothing has been computed there yet."""
        try:
            found = self.problem.evaluate()
            worse = not math.isnan(found.objective_error) and newton.rose(self.state, found, self.settings)
        except (RankError, DisagreementError):
            raise
        except RTGPError:
            worse = True
        if worse:
            self.problem.move_to(self.state.accepted)
        return worse

    def _confirmed(self) -> bool:
        """Whether independent draws agree that this is the end. If not, training goes on from where they lead."""
        check = check_end(self.problem, self.state.metric, bool(self.state.noises), self.settings)
        if check.confirmed:
            self.session.final = combined([(one.loss, newton.known_error(one)) for one in check.evaluations])
        else:
            self.state = newton.moved(self.state, self.problem.point)
        return check.confirmed

    def _words(self) -> str:
        return newton.words(self.state, self.settings)

    def _outcome(self, status: FitStatus, message: str) -> Outcome:
        return Outcome(status, self.state.done, message, self.state.saved())
