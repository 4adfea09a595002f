"""The rounds of a linear model of all sites' samples: a reference, or the exact solution of a run."""

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
    """Say which sums a linear model needs, and what they come to.

    Args:
        spec: of the run.

    Attributes:
        exact: whether the run may be solved exactly.
        weighted: whether its classes are balanced.
        rounds: of Newton's method, by name; none where no linear model is asked for.
        whole: those of all rows that a site has, and the one of sites' own coefficients.
        folds: those of each training on fewer rows.
        stages: all rounds.

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
            self.rounds = linear.stages(spec.task, self._inputs, coefficients=self._free)
        own = {OWN: coefficients.own_stage(self._coding.fixed.numel())} if self._free else {}
        first = {name: stage for name, stage in self.rounds.items() if not name.startswith(linear.FOLD)}
        self.whole = first | own
        self.folds = {name: stage for name, stage in self.rounds.items() if name not in first}
        self.stages = self.whole | self.folds

    def check(self, stage: str, sums: linear.Sums, rows: float) -> str | None:
        """Return what is wrong with a round's sums over so many rows; None where nothing is."""
        if stage == OWN:
            return coefficients.contradiction(sums, self._coding.fixed)
        if stage not in self.rounds:
            return None
        return linear.contradiction(self._task, sums, math.inf if self.weighted else rows)

    def numbers(self) -> tuple[int, int]:
        """Return how many different numbers tell of all rows that a site has, and how many of those of a training."""
        fields = [field for stage in self.whole.values() for field in stage.fields]
        curved = sum(field.name == "curvature" for field in fields)
        again = curved - 1 if isinstance(self._task, Regression) else 0  # it is the same at all weights
        size, many = self._coding.fixed.numel(), lines(self._task)
        each = size * (size + 1) // 2 - many * (many - 1) // 2 * (self._inputs + 1) * self._inputs // 2  # stand twice
        whole = sum(field.size for field in fields if field.name != "curvature") + (curved - again) * each
        return whole, sum(stage.size for stage in self.folds.values())

    def spread(self, stage: str, vector: Tensor, folds: int, trained: Callable[[int], int]) -> Tensor:
        """Return what a site sends in a round of all its rows, float64 [folds, …].

        For all folds stand the same sums, and of the curvature the part that a fold trains on.

        Args:
            stage: name of the round.
            vector: its sums.
            folds: how many there are.
            trained: how many rows a fold trains on.
        """
        found = vector.repeat(folds, 1)
        if stage == linear.CURVATURE:
            counts = torch.tensor([trained(fold) for fold in range(folds)], dtype=torch.float64)
            found *= (counts / vector[0].clamp_min(1))[:, None]
            found[:, 0] = counts if vector[0] else 0
        elif not stage.startswith(linear.WHOLE):
            found[:-1] = 0  # of no other model are there coefficients
        return found

    def converged(self, totals: Totals) -> tuple[str, ...]:
        """Return names of rounds that need not be taken, since those before have come to a solution."""
        found = list[str]()
        for kind, descent in ((linear.WHOLE, self._whole), (linear.FREE, self._unpenalised)):
            left = [name for name in self.rounds if name.startswith(kind) and name != linear.FREE_CURVATURE]
            done = [name for name in left if name in totals]
            if 0 < len(done) < len(left) and descent(totals).has_converged:
                found += [name for name in left if name not in totals]
        return tuple(found)

    def weights(self, totals: Totals) -> Tensor:
        """Return a training's weights as far as the totals go, after the last the solution: [lines, 1 + inputs]."""
        whole = self._whole(totals)
        fold = self._fold(totals, whole)
        return (fold if fold.path else whole).at.reshape(lines(self._task), self._inputs + 1)

    def is_solved(self, totals: Totals) -> bool:
        """Tell whether a training's rounds have come near to its solution.

        Where sites keep back sums that few patients are behind, they may not.
        """
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
            totals: of the rounds before.
            inputs: prepared.
            labels: as they are learned.
            fewest: groups, or rows, behind them.
            groups: what each row belongs to.
            class_weights: of balanced classes.
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
        found["rows"] = torch.tensor(float(len(labels) if linear.is_told(found) else 0))
        return {name: found[name] for name in fields}

    def _at(self, stage: str, totals: Totals) -> Tensor:
        """Return the weights at which a round is taken: [lines, 1 + inputs]."""
        if stage.startswith(linear.FREE):
            free = self._unpenalised(totals)
            return (free.final if stage == linear.FREE_CURVATURE else free.at).reshape(self._coding.fixed.shape)
        return self.weights(totals)

    def _asked(self, stage: str, totals: Totals) -> list[tuple[Tensor, bool]]:
        """Return where rounds of the same rows, or of all, were taken before, and whether they asked for curvature.

        Of numbers a slope is the curvature times the weights, wherever it is taken: none need be compared.
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
        """Return what a site tells of the coefficients of its own rows: nothing of too few patients.

        Args:
            people: patients that the rows are of, or rows.
            rows: prepared inputs, and labels as they are learned; None tells nothing.
            fit: of all sites' rows.
            totals: of the rounds before.
            fewest: groups, or rows, behind the fit.
            groups: what each row belongs to.
        """
        found, fixed = None, self._coding.fixed
        if rows is not None and fixed.shape[1] <= people / coefficients.FEWEST:
            units, before = self._units(fit), self._asked(OWN, totals)
            found = coefficients.fitted(self._task, *rows, self._coding, people, units, fewest, groups, before)
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
        told = all(linear.is_told(sums) for sums in self._done(totals, linear.FREE))
        about = self._coding, people, self._units(fit)
        return coefficients.of_fit(self._task, first, found, ridge, *about, whole=curved, told=told)

    def _sums(self, totals: Totals, stage: str) -> dict[str, Tensor]:
        return self.rounds[stage].unpack(totals[stage])

    def _done(self, totals: Totals, kind: str) -> list[dict[str, Tensor]]:
        """Return the sums of those rounds of a kind that have been taken."""
        names = (name for name in self.rounds if name.startswith(kind) and name in totals)
        return [self._sums(totals, name) for name in names if name != linear.FREE_CURVATURE]

    def _variance(self, totals: Totals) -> Tensor:
        """Return the variance of every column of all rows."""
        first = self._done(totals, linear.WHOLE)
        if not first:
            return torch.ones(self._inputs + 1, dtype=torch.float64)
        return linear.variances(linear.square(first[0]["curvature"]), self._inputs + 1)

    def _whole(self, totals: Totals) -> linear.Descent:
        """Return where the fit on all rows stands."""
        return linear.descend(self._task, self._done(totals, linear.WHOLE), self._variance(totals))

    def _fold(self, totals: Totals, whole: linear.Descent) -> linear.Descent:
        """Return where the fit of a training on fewer rows stands, which begins where that on all has ended."""
        done, curvature = self._done(totals, linear.FOLD), None
        if done:
            found = self._sums(totals, linear.CURVATURE)
            told, curvature = float(found["rows"]), whole.curvature
            if told:  # sites that tell none have as much of it as others
                trained = float(totals["labels"][0]) if "labels" in totals else told
                curvature = linear.square(found["curvature"]) * max(1.0, trained / told)
        return linear.descend(self._task, done, self._variance(totals), start=whole.at, curvature=curvature)

    def _unpenalised(self, totals: Totals) -> linear.Descent:
        """Return where the fit on all rows stands that holds no weights small."""
        fixed, variance = self._coding.fixed.reshape(-1), self._variance(totals)
        if isinstance(self._task, Regression):
            return linear.descend(self._task, self._done(totals, linear.WHOLE), variance, penalty=0.0, fixed=fixed)
        start = self._coding.apply(self._whole(totals).at.reshape(self._coding.fixed.shape)).reshape(-1)
        part, first = self._sums(totals, linear.CURVATURE), self._done(totals, linear.WHOLE)[0]
        scale = coefficients.rows_of(self._task, first) / part["rows"].clamp_min(1)
        curvature, done = linear.square(part["curvature"]) * scale, self._done(totals, linear.FREE)
        return linear.descend(self._task, done, variance, start=start, curvature=curvature, penalty=0.0, fixed=fixed)

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
