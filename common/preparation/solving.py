"""The rounds of a linear model of all sites' samples: a reference, or the exact solution of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rankdad.common.errors import SpecError
from rankdad.common.preparation import coefficients, linear
from rankdad.common.preparation.coefficients import OWN, Coding, Coefficients
from rankdad.common.preparation.fit import Fit
from rankdad.common.preparation.stages import Stage
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import MAX_WEIGHTS, weights_of, why_steps
from rankdad.common.spec.tasks import Regression

Totals = Mapping[str, Tensor]


class Solving:
    """Say which sums a linear model needs, and what they come to.

    Args:
        spec: of the run.

    Attributes:
        exact: whether the run may be solved exactly.
        weighted: whether its classes are balanced.
        rounds: of Newton's method, by name; none where no linear model is asked for.
        stages: all rounds, that of sites' own coefficients among them.

    Raises:
        SpecError: a linear model is asked for where there can be none.
    """

    def __init__(self, spec: RunSpec) -> None:
        if spec.training.solver == "exact" and (why := why_steps(spec)):
            problem = f"got exact, but {why}: expected steps or auto"
            raise SpecError("training.solver", problem, code="solver-not-exact")
        if {"linear", "site"} & set(spec.references):
            _check_reference(spec)
        self._task, self._inputs, self._coding = spec.task, math.prod(spec.data.shape), Coding.of(spec)
        self.exact = spec.solver != "steps"
        self.weighted = self.exact and getattr(spec.task, "class_weights", "none") != "none"
        self._free = self.exact and spec.kept_fold is not None
        self.rounds: dict[str, Stage] = {}
        if self.exact or "linear" in spec.references:
            self.rounds = linear.stages(spec.task, self._inputs, unpenalised=self._free)
        self.stages = self.rounds | ({OWN: coefficients.own_stage(self._coding.fixed.numel())} if self._free else {})

    def check(self, stage: str, sums: linear.Sums, rows: float) -> str | None:
        """Return what is wrong with a round's sums over so many rows; None where nothing is."""
        if stage == OWN:
            return coefficients.contradiction(sums, self._coding.fixed)
        if stage not in self.rounds:
            return None
        problem = linear.contradiction(self._task, sums, math.inf if self.weighted else rows)
        if linear.FREE + "loss" in sums:
            problem = problem or linear.contradiction(self._task, linear.of_kind(sums, linear.FREE), rows)
        return problem

    def weights(self, totals: Totals) -> Tensor:
        """Return the weights as far as the totals go; see `linear.weights`."""
        done = [stage.unpack(totals[name]) for name, stage in self.rounds.items() if name in totals]
        return linear.weights(self._task, self._inputs, done)

    def solution(self, totals: Totals) -> tuple[Tensor, Tensor]:
        """Return a network's weights [outputs, inputs] and biases [outputs]."""
        found = self.weights(totals)
        if len(found) < self._task.outputs:  # the first of two classes has none
            found = torch.cat([torch.zeros_like(found), found])
        return found[:, 1:], found[:, 0]

    def sums(
        self,
        stage: str,
        totals: Totals,
        inputs: Tensor,
        labels: Tensor,
        fewest: int,
        groups: Tensor | None,
        class_weights: Tensor | None,
        *,
        kept: bool,
    ) -> dict[str, Tensor]:
        """Return a round's sums over rows: see `linear.sums`. A fit that holds no weights small is of kept rows alone.

        Args:
            stage: name of the round.
            totals: of the rounds before.
            inputs: prepared.
            labels: as they are learned.
            fewest: groups, or rows, behind them.
            groups: what each row belongs to.
            class_weights: of balanced classes.
            kept: whether the rows are those of the model that is kept.
        """
        weights = class_weights if self.weighted else None
        found = linear.sums(self._task, inputs, labels, self.weights(totals), fewest, groups, weights)
        fields = [field for field in self.rounds[stage].fields if field.name.startswith(linear.FREE)]
        if not fields or not kept:
            return found | {field.name: torch.zeros(field.shape, dtype=torch.float64) for field in fields}
        fixed = self._coding.fixed
        at = linear.newton(self._task, self._inputs, self._unpenalised(totals), 0.0, fixed.reshape(-1)).at
        free = linear.sums(self._task, inputs, labels, at.reshape(fixed.shape), fewest, groups)
        return found | {f"{linear.FREE}{name}": value for name, value in free.items()}

    def own(self, people: int, rows: tuple[Tensor, Tensor] | None, fit: Fit) -> dict[str, Tensor]:
        """Return what a site tells of the coefficients of its own rows: nothing of too few patients.

        Args:
            people: patients that the rows are of, or rows.
            rows: prepared inputs, and labels as they are learned; None tells nothing.
            fit: of all sites' rows.
        """
        found, fixed = None, self._coding.fixed
        if rows is not None and fixed.shape[1] <= people / coefficients.FEWEST:
            found = coefficients.fitted(self._task, *rows, self._coding, people, self._units(fit))
        return coefficients.packed_own(people, found, fixed.numel())

    def told(self, contributions: Totals) -> dict[str, Coefficients]:
        """Return the coefficients that sites tell of their own rows, by site."""
        sums = {site: self.stages[OWN].unpack(vector) for site, vector in contributions.items()}
        found = {site: coefficients.unpacked_own(own, self._coding.fixed) for site, own in sums.items()}
        return {site: one for site, one in found.items() if one is not None}

    def coefficients(self, totals: Totals, fit: Fit) -> Coefficients | None:
        """Return the coefficients of the model that is kept; None where it has none.

        Args:
            totals: of the training that makes it.
            fit: of its rows.
        """
        if not self._free or not all(name in totals for name in self.stages):
            return None
        people = float(self.stages[OWN].unpack(totals[OWN])["people"])
        rounds, units = self._unpenalised(totals), self._units(fit)
        return coefficients.from_totals(self._task, rounds, self.weights(totals), self._coding, people, units)

    def _unpenalised(self, totals: Totals) -> list[linear.Sums]:
        """Return the totals of the fit that holds no weights small: of numbers those of the other."""
        kind = "" if isinstance(self._task, Regression) else linear.FREE
        done = (stage.unpack(totals[name]) for name, stage in self.rounds.items() if name in totals)
        return [linear.of_kind(sums, kind) for sums in done]

    def _units(self, fit: Fit) -> tuple[Tensor, Tensor]:
        """Return means and scales of the inputs; of a number first its own."""
        mean, scale = fit.mean, fit.scale
        if mean is None or scale is None:
            mean, scale = torch.zeros(self._inputs, dtype=torch.float64), torch.ones(self._inputs, dtype=torch.float64)
        if isinstance(self._task, Regression):
            mean = torch.cat([mean.new_tensor([fit.target_mean]), mean])
            scale = torch.cat([scale.new_tensor([fit.target_scale]), scale])
        return mean, scale


def _check_reference(spec: RunSpec) -> None:
    count, shape, tokens = weights_of(spec), spec.data.shape, spec.data.tokens is not None
    if tokens or len(shape) > 1 or count > MAX_WEIGHTS:
        what = "tokens or a series" if tokens or len(shape) > 1 else f"{count} weights"
        problem = f"a linear model of {what}, expected a table's columns and at most {MAX_WEIGHTS} weights"
        raise SpecError("evaluation.references", f"{problem}: leave out linear and site", code="linear-too-large")
