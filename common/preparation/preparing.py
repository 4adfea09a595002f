"""What is done to inputs and labels before they are trained on, fitted in rounds in which sites' sums are added up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import overload

import torch
from torch import Tensor

from rankdad.common.errors import SpecError
from rankdad.common.preparation import coefficients, combat, description, labels, linear, moments
from rankdad.common.preparation.coefficients import OWN, Coding, Coefficients
from rankdad.common.preparation.fit import Fit, OwnFit
from rankdad.common.preparation.inputs import Inputs, in_memory
from rankdad.common.preparation.layout import Layout
from rankdad.common.preparation.rows import Rows
from rankdad.common.preparation.stages import MOST_ROWS, RAW, Field, Stage
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.solver import MAX_WEIGHTS, lines, why_steps
from rankdad.common.spec.tasks import Regression


class Preparing:
    """The preparation of a run's samples.

    Args:
        spec: of the run.

    Raises:
        SpecError: tokens are to be standardised.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._task, self._standardise = spec.task, spec.preparation.standardise
        self._tokens = spec.data.tokens is not None
        if self._tokens and self._standardise != "none":
            problem = f"got {self._standardise}, expected none: tokens are no numbers"
            raise SpecError("preparation.standardise", problem)
        self._impute = isinstance(spec.data, TableData) and spec.data.missing == "impute"
        self._layout = Layout.of(spec)
        self._combat = spec.preparation.harmonise if len(self._layout.harmonised) else None
        self._balance = not isinstance(spec.task, Regression) and spec.task.class_weights == "balanced"
        table = isinstance(spec.data, TableData)
        self._levels = description.is_level(spec.data) if isinstance(spec.data, TableData) else None
        self._table = description.fields(spec.task, self._layout.channels, grouped=spec.grouped) if table else ()
        self._inputs = math.prod(spec.data.shape)
        if spec.training.solver == "exact" and (why := why_steps(spec)):
            problem = f"got exact, but {why}: expected steps or auto"
            raise SpecError("training.solver", problem, code="solver-not-exact")
        exact = spec.solver != "steps"
        self._solved = exact
        self._weighted = exact and self._balance
        self._free = exact and spec.kept_fold is not None
        self._coding = Coding.of(spec)
        self._linear: dict[str, Stage] = {}
        if exact or "linear" in spec.references:
            self._linear = linear.stages(spec.task, self._inputs, unpenalised=self._free)
        if {"linear", "site"} & set(spec.references):
            self._check_linear(spec.data.shape)
        own = {OWN: coefficients.own_stage(self._coding.fixed.numel())} if self._free else {}
        self._stages = self._needed(table) | self._linear | own

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the rounds that the spec needs, in order."""
        return tuple(self._stages)

    def size(self, stage: str) -> int:
        """Return how many numbers a site sends per fold."""
        return self._stages[stage].size

    def check(self, stage: str, contribution: Tensor, rows: float = MOST_ROWS, whole: float = MOST_ROWS) -> str | None:
        """Return what is wrong with a vector of a stage, in words that begin with its part; None where nothing is.

        Args:
            stage: its name.
            contribution: of one fold.
            rows: that a site has to train on in the fold.
            whole: that it has for the run.
        """
        found = self._stages[stage]
        problem, sums = found.check(contribution, rows, whole), found.unpack(contribution)
        if stage == "site-effects":
            problem = problem or combat.contradiction(sums)
        if stage in self._linear:
            each = math.inf if self._weighted else rows
            problem = problem or linear.contradiction(self._task, sums, each)
            if linear.FREE + "loss" in sums:
                problem = problem or linear.contradiction(self._task, linear.of_kind(sums, linear.FREE), rows)
        if stage == "labels" and self._levels is not None:
            problem = problem or description.contradiction(self._task, sums, self._levels)
        return problem

    def contribution(
        self,
        stage: str,
        totals: Mapping[str, Tensor],
        rows: Rows,
        described: Rows | None = None,
        fewest: int = 1,
        *,
        kept: bool = False,
        tells: bool = False,
    ) -> Tensor:
        """Return what a site sends of one fold's rows.

        Args:
            stage: its name.
            totals: this fold's sums over all sites of the stages before, by name.
            rows: those whose sums may leave the site; none give zeros.
            described: those of Table 1, likewise; None gives zeros.
            fewest: groups, or rows, behind a linear model's sums.
            kept: whether the rows are those of the model that is kept, which has coefficients.
            tells: whether the site tells those of its own rows.

        Raises:
            ValueError: the rows hold numbers too large to be squared, or do not fit the spec.
        """
        if stage == OWN:
            values = self._own_coefficients(totals, rows, kept=kept, tells=tells)
        else:
            values = self._summed(stage, totals, rows, fewest) | self._described(stage, described)
            values |= self._unpenalised(stage, totals, rows, fewest, kept=kept)
        vector = self._stages[stage].pack(values)
        problem = self.check(stage, vector, len(rows.inputs))
        if problem:
            raise ValueError(f"{stage}: {problem}")
        return vector

    def described(self, stage: str, contributions: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Return the sums of Table 1 among each site's contribution to a stage; none of other stages or data."""
        if stage != "labels" or not self._table:
            return {}
        return {site: self._stages[stage].unpack(vector) for site, vector in contributions.items()}

    def joined(self, stage: str, contributions: Sequence[Tensor]) -> Tensor:
        """Return what several sites contribute to a stage as one would: float64 [folds, …]."""
        total = torch.stack(list(contributions)).sum(dim=0)
        if stage == OWN:
            total[:, 1:] = 0.0  # a region tells no site's coefficients, only of how many patients all rows are
        if stage == "labels" and self._table:
            for fold in range(len(total)):
                own = [self._stages[stage].unpack(vectors[fold]) for vectors in contributions]
                sums = self._stages[stage].unpack(total[fold])
                total[fold] = self._stages[stage].pack(sums | description.joined_squares(own))
        return total

    def fit(self, totals: Mapping[str, Tensor]) -> Fit:
        """Return what the totals of all stages say.

        Raises:
            ValueError: they say nothing finite, though each contribution does.
        """
        found = {name: self._stages[name].unpack(total) for name, total in totals.items()}
        known: dict[str, Tensor] = {}
        target = (0.0, 1.0)
        rows = 0.0
        if "labels" in found:
            rows = float(found["labels"]["rows"])
            if not isinstance(self._task, Regression):
                counts = found["labels"]["counts"]
                known["class_counts"] = counts.to(torch.int64)
                if self._balance:
                    known["class_weights"] = labels.balanced(self._task, rows, counts)
        if "label-squares" in found:
            around = _label_mean(found["labels"])
            mean, scale = moments.mean_and_scale(found["labels"]["rows"], around, *found["label-squares"].values())
            target = (float(mean), float(scale))
        if "site-effects" in found:
            known |= combat.pooled(found["site-effects"], found["residuals"])._asdict()
        if "sums" in found:
            mean = moments.means(*found["sums"].values())
            if "squares" in found:
                mean, scale = moments.mean_and_scale(found["sums"]["counts"], mean, *found["squares"].values())
                known["mean"], known["scale"] = self._but_levels(mean, scale)
            if self._impute:
                known["fill"] = mean
        if not all(value.isfinite().all() for value in known.values()):
            raise ValueError("preparation: the sites' totals lead to NaN or infinity, expected finite numbers")
        return Fit(int(rows), target_mean=target[0], target_scale=target[1], **known)

    def linear(self, totals: Mapping[str, Tensor]) -> Tensor:
        """Return the weights of all sites' linear model, as far as the totals go; see `common.preparation.linear`."""
        done = [stage.unpack(totals[name]) for name, stage in self._linear.items() if name in totals]
        return linear.weights(self._task, self._inputs, done)

    def is_due(self, stage: str, *, exact: bool) -> bool:
        """Tell whether a stage is due in a run that is solved exactly, or is not."""
        return exact or stage not in (self._linear if self._solved else {}).keys() | {OWN}

    def solution(self, totals: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return weights [outputs, inputs] and biases [outputs] of a linear model that is solved exactly."""
        found = self.linear(totals)
        if len(found) < self._task.outputs:  # the first of two classes has none
            found = torch.cat([torch.zeros_like(found), found])
        return found[:, 1:], found[:, 0]

    def coefficients(self, totals: Mapping[str, Tensor], people: float) -> Coefficients | None:
        """Return the coefficients of the model that is kept; None where it has none.

        Args:
            totals: of the training that makes it.
            people: patients that its training rows are of, or rows.
        """
        if not self._free or not all(name in totals for name in self._linear):
            return None
        kind = "" if isinstance(self._task, Regression) else linear.FREE
        rounds = [linear.of_kind(stage.unpack(totals[name]), kind) for name, stage in self._linear.items()]
        fit = self.fit(totals)
        return coefficients.from_totals(
            self._task, rounds, self.linear(totals), self._coding, people, self._units(fit)
        )

    def told(self, contributions: Mapping[str, Tensor]) -> tuple[float, dict[str, Coefficients]]:
        """Return of how many patients all rows are, and the coefficients that sites tell of their own, by site."""
        sums = {site: self._stages[OWN].unpack(vector) for site, vector in contributions.items()}
        found = {site: coefficients.unpacked_own(own, self._coding.fixed) for site, own in sums.items()}
        people = sum(float(own["people"]) for own in sums.values())
        return people, {site: one for site, one in found.items() if one is not None}

    def own(self, fit: Fit, rows: Rows) -> OwnFit:
        """Return what a site's training rows say beyond the fit; of no rows, what changes nothing."""
        if not len(rows.inputs):
            return OwnFit()
        inputs, effects = self._harmonised(fit.pooled, rows)
        mean = scale = None
        if self._standardise == "site":
            mean, scale = self._but_levels(*moments.own_mean_and_scale(inputs, self._layout.channels))
        return OwnFit(mean, scale, *(effects or ()))

    @overload
    def apply(
        self, fit: Fit, own: OwnFit | None, inputs: Tensor, covariates: Tensor | None, dtype: torch.dtype
    ) -> Tensor: ...

    @overload
    def apply(
        self, fit: Fit, own: OwnFit | None, inputs: Inputs, covariates: Tensor | None, dtype: torch.dtype
    ) -> Inputs: ...

    def apply(
        self, fit: Fit, own: OwnFit | None, inputs: Inputs, covariates: Tensor | None, dtype: torch.dtype
    ) -> Inputs:
        """Return inputs as the network gets them: harmonised, imputed, standardised.

        Args:
            fit: of all sites.
            own: of the site that the inputs are from; None where it had no training rows.
            inputs: [n, *shape]; tokens are returned as they are. What is read when it is asked for is prepared then.
            covariates: float64 [n, …] of the same samples.
            dtype: of what is returned.
        """
        if self._tokens:
            return inputs
        if not isinstance(inputs, Tensor):
            return inputs.map(partial(self.apply, fit, own, covariates=None, dtype=dtype), dtype)
        known = (own or OwnFit()) if self._standardise == "site" else fit
        if fit.pooled and own and own.effects:
            inputs = self._without(fit.pooled, own.effects, inputs, covariates)
        if fit.fill is None and known.mean is None:
            return inputs.to(dtype)
        prepared, done = torch.empty(inputs.shape, dtype=dtype), 0
        for block in moments.blocks(inputs):
            values, dimensions = block.to(torch.float64), block.ndim
            if fit.fill is not None:
                values = torch.where(values.isnan(), fit.fill, values)
            if known.mean is not None and known.scale is not None:
                values = values - moments.along_channels(known.mean, dimensions)
                values = values / moments.along_channels(known.scale, dimensions)
            prepared[done : done + len(block)] = values
            done += len(block)
        return prepared

    def apply_labels(self, fit: Fit, labels: Tensor) -> Tensor:
        """Return labels as the network learns them: numbers in standard deviations from their mean."""
        return (labels - fit.target_mean) / fit.target_scale if isinstance(self._task, Regression) else labels

    def invert_labels(self, fit: Fit, outputs: Tensor) -> Tensor:
        """Return a network's outputs in the unit of the labels."""
        return outputs * fit.target_scale + fit.target_mean if isinstance(self._task, Regression) else outputs

    def _check_linear(self, shape: tuple[int, ...]) -> None:
        count = lines(self._task) * (self._inputs + 1)
        if self._tokens or len(shape) > 1 or count > MAX_WEIGHTS:
            what = "tokens or a series" if self._tokens or len(shape) > 1 else f"{count} weights"
            problem = f"a linear model of {what}, expected a table's columns and at most {MAX_WEIGHTS} weights"
            field, code = "evaluation.references", "linear-too-large"
            raise SpecError(field, f"{problem}: leave out linear and site", code=code)

    def _needed(self, table: bool) -> dict[str, Stage]:
        stages: dict[str, Stage] = {}
        task, channels = self._task, (self._layout.channels,)
        rows = Field("rows", (), "count")
        if isinstance(task, Regression):
            stages["labels"] = Stage((rows, Field("sum", (), "sum", RAW), *self._table))
            stages["label-squares"] = Stage((Field("deviations", (), "sum"), Field("squares", (), "square")))
        elif self._balance or table:
            stages["labels"] = Stage((rows, Field("counts", (task.outputs,), "count"), *self._table))
        if self._combat:
            features = len(self._layout.harmonised)
            stages["site-effects"] = combat.effects_stage(features, self._layout.covariates, self._impute)
            stages["residuals"] = combat.residuals_stage(features)
        each = self._layout.positions
        if self._impute or self._standardise == "federated":
            counts = Field("counts", channels, "count", values=each)
            stages["sums"] = Stage((counts, Field("sums", channels, "sum", RAW, each)))
        if self._standardise == "federated":
            deviations = Field("deviations", channels, "sum", values=each)
            stages["squares"] = Stage((deviations, Field("squares", channels, "square", values=each)))
        return stages

    def _summed(self, stage: str, totals: Mapping[str, Tensor], rows: Rows, fewest: int) -> dict[str, Tensor]:
        """Return the values of a stage's fields."""
        before = {name: self._stages[name].unpack(total) for name, total in totals.items() if name in self._stages}
        if stage == "labels":
            count = torch.tensor(float(len(rows.labels)))
            if isinstance(self._task, Regression):
                return {"rows": count, "sum": rows.labels.to(torch.float64).sum()}
            return {"rows": count, "counts": labels.counts_of(self._task, rows.labels)}
        if stage == "label-squares":
            away = rows.labels.to(torch.float64) - _label_mean(before["labels"])
            return {"deviations": away.sum(), "squares": away.square().sum()}
        if stage in self._linear:
            fit = self.fit(totals)
            (inputs, labelled), at = self._learned(fit, rows), self.linear(totals)
            weights = fit.class_weights if self._weighted else None
            return linear.sums(self._task, inputs, labelled, at, fewest, rows.groups, weights)
        if stage in ("site-effects", "residuals"):
            features, covariates = self._measured(in_memory(rows.inputs), rows.covariates)
            if stage == "site-effects":
                return combat.effects(features, covariates, self._impute)
            return combat.residuals(features, covariates, self._impute, combat.lines(before["site-effects"])[1])
        of_all = combat.pooled(before["site-effects"], before["residuals"]) if self._combat else None
        measured, _ = self._harmonised(of_all, rows)
        if stage == "sums":
            counts, sums = moments.sums(measured, self._layout.channels)
            return {"counts": counts, "sums": sums}
        deviations, squares = moments.squares(measured, moments.means(*before["sums"].values()))
        return {"deviations": deviations, "squares": squares}

    def _unpenalised(
        self, stage: str, totals: Mapping[str, Tensor], rows: Rows, fewest: int, *, kept: bool
    ) -> dict[str, Tensor]:
        """Return the sums of the fit that holds no weights small, in the stages that have them; zeros of other folds."""
        fields = [field for field in self._stages[stage].fields if field.name.startswith(linear.FREE)]
        if not fields or not kept:
            return {field.name: torch.zeros(field.shape, dtype=torch.float64) for field in fields}
        done = [
            linear.of_kind(one.unpack(totals[name]), linear.FREE) for name, one in self._linear.items() if name in totals
        ]
        at = linear.newton(self._task, self._inputs, done, 0.0, self._coding.fixed.reshape(-1)).at.reshape(self._coding.fixed.shape)
        inputs, labelled = self._learned(self.fit(totals), rows)
        found = linear.sums(self._task, inputs, labelled, at, fewest, rows.groups)
        return {f"{linear.FREE}{name}": value for name, value in found.items()}

    def _own_coefficients(
        self, totals: Mapping[str, Tensor], rows: Rows, *, kept: bool, tells: bool
    ) -> dict[str, Tensor]:
        """Return what a site tells of the coefficients of its own rows: nothing of too few patients."""
        size, people = self._coding.fixed.numel(), rows.people if kept else 0
        if not kept or not tells or self._coding.fixed.shape[1] > people / coefficients.FEWEST:
            return coefficients.packed_own(people, None, size)
        fit = self.fit(totals)
        inputs, labelled = self._learned(fit, rows)
        found = coefficients.fitted(self._task, inputs, labelled, self._coding, people, self._units(fit))
        return coefficients.packed_own(people, found, size)

    def _learned(self, fit: Fit, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return inputs and labels as a linear model learns them."""
        inputs = self.apply(fit, self.own(fit, rows), in_memory(rows.inputs), rows.covariates, torch.float64)
        return inputs, self.apply_labels(fit, rows.labels)

    def _units(self, fit: Fit) -> tuple[Tensor, Tensor]:
        """Return means and scales of the inputs; of a number first its own."""
        mean, scale = fit.mean, fit.scale
        if mean is None or scale is None:
            mean, scale = torch.zeros(self._inputs, dtype=torch.float64), torch.ones(self._inputs, dtype=torch.float64)
        if not isinstance(self._task, Regression):
            return mean, scale
        return torch.cat([mean.new_tensor([fit.target_mean]), mean]), torch.cat(
            [scale.new_tensor([fit.target_scale]), scale]
        )

    def _described(self, stage: str, rows: Rows | None) -> dict[str, Tensor]:
        """Return the sums of Table 1, in the stage that has them."""
        if stage != "labels" or not self._table:
            return {}
        if rows is None:
            return {field.name: torch.zeros(field.shape, dtype=torch.float64) for field in self._table}
        return description.sums(self._task, rows, self._layout.channels)

    def _harmonised(self, of_all: combat.Pooled | None, rows: Rows) -> tuple[Inputs, combat.SiteEffects | None]:
        """Return a site's training inputs without its effects, and these."""
        if of_all is None or self._combat is None:
            return rows.inputs, None
        inputs = in_memory(rows.inputs)
        features, covariates = self._measured(inputs, rows.covariates)
        own = combat.own_effects(features, covariates, of_all, self._combat.empirical_bayes)
        return self._without(of_all, own, inputs, rows.covariates), own

    def _without(
        self, of_all: combat.Pooled, own: combat.SiteEffects, inputs: Tensor, covariates: Tensor | None
    ) -> Tensor:
        """Return inputs without a site's effects, float64."""
        features, kept = self._measured(inputs, covariates)
        columns = combat.harmonised(features, kept, of_all, own)
        return inputs.to(torch.float64).index_copy(1, self._layout.harmonised, columns)

    def _measured(self, inputs: Tensor, covariates: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the columns that are harmonised and the covariates, float64.

        Raises:
            ValueError: the covariates are not those of the spec, or one is missing.
        """
        expected = (len(inputs), self._layout.covariates)
        given = torch.zeros(len(inputs), 0) if covariates is None else covariates
        if given.shape != expected or not given.isfinite().all():
            raise ValueError(f"covariates: got {list(given.shape)}, expected {list(expected)}, and no number missing")
        return inputs[:, self._layout.harmonised].to(torch.float64), given.to(torch.float64)

    def _but_levels(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Leave columns of 0 and 1 as they are."""
        return torch.where(self._layout.levels, 0.0, mean), torch.where(self._layout.levels, 1.0, scale)


def _label_mean(sums: Mapping[str, Tensor]) -> Tensor:
    return moments.means(sums["rows"], sums["sum"])
