"""Rounds of a linear model of all sites' samples: a reference, or the exact solution of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from rankdad.common.errors import SpecError
from rankdad.common.preparation import coefficients, linear
from rankdad.common.preparation.coefficients import OWN, Coding, Coefficients
from rankdad.common.preparation.fit import Fit
from rankdad.common.preparation.stages import Stage
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import MAX_WEIGHTS, lines, weights_of, why_steps
from rankdad.common.spec.tasks import Regression

Totals = Mapping[str, Tensor]


class Solving:
    """Plan the sums that a linear model needs, and compute its solution from them.

    Args:
        spec: the run.

    Attributes:
        exact: whether the run may be solved exactly.
        weighted: whether classes are balanced.
        rounds: rounds of Newton's method, by name; empty without a linear model.
        whole: rounds over all rows of a site, and the round of the sites' own coefficients.
        folds: rounds of each training on fewer rows.
        stages: all rounds.

    Raises:
        SpecError: the spec requires a linear model that is not possible.
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
            self.rounds = linear.stages(spec.task, self._inputs, coefficients=self._free)
        own = {OWN: coefficients.own_stage(self._coding.fixed.numel())} if self._free else {}
        first = {name: stage for name, stage in self.rounds.items() if not name.startswith(linear.FOLD)}
        self.whole = first | own
        self.folds = {name: stage for name, stage in self.rounds.items() if name not in first}
        self.stages = self.whole | self.folds

    def check(self, stage: str, sums: linear.Sums, rows: float) -> str | None:
        """Return the fault of a round's sums over this number of rows; None without a fault."""
        if stage == OWN:
            return coefficients.contradiction(sums, self._coding.fixed)
        if stage not in self.rounds:
            return None
        return linear.contradiction(self._task, sums, math.inf if self.weighted else rows)

    def numbers(self) -> tuple[int, int]:
        """Return how many different numbers disclose all rows of a site, and how many the rows of a training."""
        fields = [field for stage in self.whole.values() for field in stage.fields]
        curved = sum(field.name == "curvature" for field in fields)
        again = curved - 1 if isinstance(self._task, Regression) else 0  # it is the same at all weights
        size, many = self._coding.fixed.numel(), lines(self._task)
        each = size * (size + 1) // 2 - many * (many - 1) // 2 * (self._inputs + 1) * self._inputs // 2  # occur twice
        whole = sum(field.size for field in fields if field.name != "curvature") + (curved - again) * each
        return whole, sum(stage.size for stage in self.folds.values())

    def spread(self, stage: str, vector: Tensor, folds: int, trained: Callable[[int], int]) -> Tensor:
        """Return a site's contribution to a round over all its rows, float64 [folds, …].

        Every fold has the same sums, except the curvature: each fold has the share of its training rows.

        Args:
            stage: name of the round.
            vector: its sums.
            folds: number of folds.
            trained: returns a fold's number of training rows.
        """
        found = vector.repeat(folds, 1)
        if stage == linear.CURVATURE:
            counts = torch.tensor([trained(fold) for fold in range(folds)], dtype=torch.float64)
            found *= (counts / vector[0].clamp_min(1))[:, None]
            found[:, 0] = counts if vector[0] else 0
        elif not stage.startswith(linear.WHOLE):
            found[:-1] = 0  # only the kept model has coefficients
        return found

    def converged(self, totals: Totals) -> tuple[str, ...]:
        """Return the names of rounds that can be skipped, because earlier ones have converged."""
        found = list[str]()
        for kind, descent in ((linear.WHOLE, self._whole), (linear.FREE, self._unpenalised)):
            left = [name for name in self.rounds if name.startswith(kind) and name != linear.FREE_CURVATURE]
            done = [name for name in left if name in totals]
            if 0 < len(done) < len(left) and descent(totals).has_converged:
                found += [name for name in left if name not in totals]
        return tuple(found)

    def weights(self, totals: Totals) -> Tensor:
        """Return a training's weights after the known totals, [lines, 1 + inputs]; after the last, the solution."""
        whole = self._whole(totals)
        fold = self._fold(totals, whole)
        return (fold if fold.path else whole).at.reshape(lines(self._task), self._inputs + 1)

    def is_solved(self, totals: Totals) -> bool:
        """Return whether a training is near its solution; it may not be if sites withhold sums of few patients."""
        if isinstance(self._task, Regression):  # a square needs one round
            return True
        whole = self._whole(totals)
        fold = self._fold(totals, whole)
        return (fold if fold.path else whole).is_near

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
    ) -> dict[str, Tensor]:
        """Return a round's sums over rows: see `linear.sums`.

        Args:
            stage: name of the round.
            totals: of the earlier rounds.
            inputs: prepared inputs.
            labels: labels in the units of training.
            fewest: least number of groups, or rows, behind a sum.
            groups: group of each row.
            class_weights: weights of balanced classes.
        """
        weights = class_weights if self.weighted and not stage.startswith(linear.FREE) else None
        fields = [field.name for field in self.rounds[stage].fields]
        found = linear.sums(
            self._task,
            inputs,
            labels,
            self._at(stage, totals),
            fewest,
            groups,
            weights,
            curved="curvature" in fields,
            before=self._asked(stage, totals),
        )
        found["rows"] = torch.tensor(float(len(labels) if linear.is_disclosed(found) else 0))
        return {name: found[name] for name in fields}

    def _at(self, stage: str, totals: Totals) -> Tensor:
        """Return the weights at which a round's sums are computed: [lines, 1 + inputs]."""
        if stage.startswith(linear.FREE):
            free = self._unpenalised(totals)
            return (free.final if stage == linear.FREE_CURVATURE else free.at).reshape(self._coding.fixed.shape)
        return self.weights(totals)

    def _asked(self, stage: str, totals: Totals) -> list[tuple[Tensor, bool]]:
        """Return the weights of earlier rounds over the same or all rows, and whether they included the curvature.

        In regression, a slope is the curvature times the weights, so earlier rounds disclose nothing more.
        """
        if isinstance(self._task, Regression):
            return []
        whole = self._whole(totals)
        found = [(at, number < linear.CURVED) for number, at in enumerate(whole.path)]
        if linear.CURVATURE in totals:
            found.append((whole.at, True))
        if stage == OWN or stage.startswith(linear.FREE):
            free = self._unpenalised(totals)
            found += [(at, False) for at in free.path] + [(free.final, True)] * (linear.FREE_CURVATURE in totals)
        elif stage in self.folds:
            found += [(at, False) for at in self._fold(totals, whole).path]
        return [(at.reshape(self._coding.fixed.shape), curved) for at, curved in found]

    def own(
        self,
        people: int,
        rows: tuple[Tensor, Tensor] | None,
        fit: Fit,
        totals: Totals,
        fewest: int,
        groups: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return a site's own coefficients as it sends them; without values for too few patients.

        Args:
            people: number of patients, or rows.
            rows: prepared inputs, and labels in the units of training; None sends no values.
            fit: preparation of all sites' rows.
            totals: of the earlier rounds.
            fewest: least number of groups, or rows, behind the fit.
            groups: group of each row.
        """
        found, fixed = None, self._coding.fixed
        if rows is not None and fixed.shape[1] <= people / coefficients.FEWEST:
            asked, units = self._asked(OWN, totals), self._units(fit)
            found = coefficients.fitted(self._task, *rows, self._coding, people, units, fewest, groups, asked)
        return coefficients.packed_own(people, found, fixed.numel())

    def of_sites(self, contributions: Totals) -> dict[str, Coefficients]:
        """Return the sites' own coefficients that they have sent, by site."""
        sums = {site: self.stages[OWN].unpack(vector) for site, vector in contributions.items()}
        found = {site: coefficients.unpacked_own(own, self._coding.fixed) for site, own in sums.items()}
        return {site: one for site, one in found.items() if one is not None}

    def coefficients(self, totals: Totals, fit: Fit) -> Coefficients | None:
        """Return the coefficients of the kept model; None if it has none.

        Args:
            totals: of its training.
            fit: preparation of its rows.
        """
        if not self._free or OWN not in totals:
            return None
        people = float(self.stages[OWN].unpack(totals[OWN])["people"])
        first, found = self._done(totals, linear.WHOLE)[0], self._unpenalised(totals)
        if linear.FREE_CURVATURE in totals:
            here = linear.square(self._sums(totals, linear.FREE_CURVATURE)["curvature"])
            found = replace(found, curvature=here)
        ridge = self._whole(totals).at.reshape(self._coding.fixed.shape)
        rows = coefficients.rows_of(self._task, first)
        curved = linear.FREE_CURVATURE not in totals or float(self._sums(totals, linear.FREE_CURVATURE)["rows"]) >= rows
        complete = all(linear.is_disclosed(sums) for sums in self._done(totals, linear.FREE))
        about = self._coding, people, self._units(fit)
        return coefficients.of_fit(self._task, first, found, ridge, *about, whole=curved, complete=complete)

    def _sums(self, totals: Totals, stage: str) -> dict[str, Tensor]:
        return self.rounds[stage].unpack(totals[stage])

    def _done(self, totals: Totals, kind: str) -> list[dict[str, Tensor]]:
        """Return the sums of the completed rounds of a kind."""
        names = (name for name in self.rounds if name.startswith(kind) and name in totals)
        return [self._sums(totals, name) for name in names if name != linear.FREE_CURVATURE]

    def _variance(self, totals: Totals) -> Tensor:
        """Return the variance of every column over all rows."""
        first = self._done(totals, linear.WHOLE)
        if not first:
            return torch.ones(self._inputs + 1, dtype=torch.float64)
        return linear.variances(linear.square(first[0]["curvature"]), self._inputs + 1)

    def _whole(self, totals: Totals) -> linear.Descent:
        """Return the state of the fit to all rows."""
        return linear.descend(self._task, self._done(totals, linear.WHOLE), self._variance(totals))

    def _fold(self, totals: Totals, whole: linear.Descent) -> linear.Descent:
        """Return the state of a training on fewer rows, which starts at the fit to all rows."""
        done, curvature = self._done(totals, linear.FOLD), None
        if done:
            found = self._sums(totals, linear.CURVATURE)
            rows, curvature = float(found["rows"]), whole.curvature
            if rows:  # the rows of sites that withhold their curvature are assumed to have the same
                trained = float(totals["labels"][0]) if "labels" in totals else rows
                curvature = linear.square(found["curvature"]) * max(1.0, trained / rows)
        return linear.descend(self._task, done, self._variance(totals), start=whole.at, curvature=curvature)

    def _unpenalised(self, totals: Totals) -> linear.Descent:
        """Return the state of the fit to all rows without penalty."""
        fixed, variance = self._coding.fixed.reshape(-1), self._variance(totals)
        if isinstance(self._task, Regression):
            return linear.descend(self._task, self._done(totals, linear.WHOLE), variance, penalty=0.0, fixed=fixed)
        start = self._coding.apply(self._whole(totals).at.reshape(self._coding.fixed.shape)).reshape(-1)
        part, first = self._sums(totals, linear.CURVATURE), self._done(totals, linear.WHOLE)[0]
        scale = coefficients.rows_of(self._task, first) / part["rows"].clamp_min(1)
        curvature, done = linear.square(part["curvature"]) * scale, self._done(totals, linear.FREE)
        return linear.descend(self._task, done, variance, start=start, curvature=curvature, penalty=0.0, fixed=fixed)

    def _units(self, fit: Fit) -> tuple[Tensor, Tensor]:
        """Return means and scales of the inputs; in regression those of the label come first."""
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
