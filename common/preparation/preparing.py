"""What is done to inputs and labels before they are trained on, fitted in rounds in which sites' sums are added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor

from rankdad.common.errors import SpecError
from rankdad.common.preparation import combat, description, labels, moments
from rankdad.common.preparation.coefficients import OWN, Coefficients, patients_only
from rankdad.common.preparation.fit import Fit, OwnFit
from rankdad.common.preparation.inputs import Inputs, in_memory, predicted
from rankdad.common.preparation.layout import Layout, input_names
from rankdad.common.preparation.rows import Rows
from rankdad.common.preparation.solving import Solving
from rankdad.common.preparation.stages import MOST_ROWS, RAW, Field, Stage
from rankdad.common.preparation.transform import Transform, measured, without_effects
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import LanguageModel, Regression


class Preparing:
    """The preparation of a run's samples.

    Args:
        spec: of the run.

    Raises:
        SpecError: tokens are to be standardised.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec, self._task, self._standardise = spec, spec.task, spec.preparation.standardise
        if spec.data.tokens is not None and self._standardise != "none":
            problem = f"got {self._standardise}, expected none: tokens are no numbers"
            raise SpecError("preparation.standardise", problem, code="linear-cannot-be-solved")
        self._impute = isinstance(spec.data, TableData) and spec.data.missing == "impute"
        self._layout = Layout.of(spec)
        self._combat = spec.preparation.harmonise if len(self._layout.harmonised) else None
        self._balance = getattr(spec.task, "class_weights", "none") == "balanced"
        table = isinstance(spec.data, TableData)
        self._schema = spec.data if isinstance(spec.data, TableData) else None
        self._levels = None if self._schema is None else description.is_level(self._schema)
        self._table = description.fields(spec.task, self._layout.channels, grouped=spec.grouped) if table else ()
        self._inputs = math.prod(spec.data.shape)
        self.solving = Solving(spec)
        self._stages = self._needed(table) | self.solving.stages

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the rounds that the spec needs, in order."""
        return tuple(self._stages)

    def size(self, stage: str) -> int:
        """Return how many numbers a site sends per fold."""
        return self._stages[stage].size

    def numbers(self) -> tuple[int, int]:
        """Return how many numbers tell of all rows that a site has, and how many of those that a training has.

        Where a run is solved exactly, or has the reference linear. Table 1 is among the former.
        """
        whole, fold = self.solving.numbers()
        table = sum(field.size for field in self._table)
        each = sum(stage.size for name, stage in self._stages.items() if name not in self.solving.stages) - table
        return whole + table, fold + each

    @property
    def products(self) -> tuple[int, int, int]:
        """How many features are harmonised, how many covariates kept, and what products of both a training tells."""
        features, kept = len(self._layout.harmonised), self._layout.covariates
        if not self._combat or not kept:
            return features, 0, 0
        fields = ("squares", "products", "cross")
        return features, kept, sum(one.size for one in self._stages["site-effects"].fields if one.name in fields)

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
        problem = problem or self.solving.check(stage, sums, whole if stage in self.solving.whole else rows)
        if stage == "labels" and self._levels is not None:
            problem = problem or description.contradiction(self._task, sums, self._levels)
        return problem

    def contributions(
        self,
        stage: str,
        totals: Callable[[int], Mapping[str, Tensor]],
        rows: Callable[[int], Rows],
        whole: Rows,
        described: Rows | None = None,
        fewest: int = 1,
        *,
        tells: bool = False,
    ) -> Tensor:
        """Return what a site sends of all trainings, float64 [folds, …].

        Args:
            stage: its name.
            totals: of a fold, over all sites, of the stages before, by name.
            rows: those of a fold whose sums may leave the site.
            whole: all that the site has for the run, likewise.
            described: those of Table 1, likewise.
            fewest: groups, or rows, behind a linear model's sums, and in Table 1's counts.
            tells: whether the site tells the coefficients of its own rows.

        Raises:
            ValueError: the rows hold numbers too large to be squared, or do not fit the spec.
        """
        count = self._spec.folds
        if stage in self.solving.whole:
            vector = self.contribution(stage, totals(count - 1), whole, None, fewest, tells=tells)
            return self.solving.spread(stage, vector, count, lambda fold: len(rows(fold).labels))
        found = torch.zeros(count, self.size(stage), dtype=torch.float64)
        for fold in range(count):
            if stage not in self.solving.folds or self._spec.tests(fold):
                last = described if fold == count - 1 else None
                found[fold] = self.contribution(stage, totals(fold), rows(fold), last, fewest)
        return found

    def contribution(
        self,
        stage: str,
        totals: Mapping[str, Tensor],
        rows: Rows,
        described: Rows | None = None,
        fewest: int = 1,
        *,
        tells: bool = False,
    ) -> Tensor:
        """Return what a site sends of some rows.

        Args:
            stage: its name.
            totals: this fold's sums over all sites of the stages before, by name.
            rows: those whose sums may leave the site; none give zeros.
            described: those of Table 1, likewise; None gives zeros.
            fewest: groups, or rows, behind a linear model's sums, and in Table 1's counts.
            tells: whether the site tells the coefficients of its own rows.

        Raises:
            ValueError: the rows hold numbers too large to be squared, or do not fit the spec.
        """
        if stage == OWN:
            fit = self.fit(totals)
            own = self._learned(fit, rows) if tells else None
            values = self.solving.own(rows.people, own, fit, totals, fewest, rows.groups)
        else:
            values = self._summed(stage, totals, rows, fewest) | self._described(stage, described, fewest)
        vector = self._stages[stage].pack(values)
        problem = self.check(stage, vector, len(rows.inputs), MOST_ROWS if described else len(rows.inputs))
        if problem:
            raise ValueError(f"{stage}: {problem}")
        return vector

    def unpack(self, stage: str, vector: Tensor) -> dict[str, Tensor]:
        """Return the sums in one fold's vector of a stage, by their names."""
        return self._stages[stage].unpack(vector)

    def described(self, stage: str, contributions: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Return the sums of Table 1 among each site's contribution to a stage; none of other stages or data."""
        if stage != "labels" or not self._table:
            return {}
        return {site: self._stages[stage].unpack(vector) for site, vector in contributions.items()}

    def empty_inputs(self, stage: str, totals: Tensor) -> list[str]:
        """Return the inputs of a table without a value in the totals of some training, float64 [folds, …]."""
        if stage != "sums" or not isinstance(self._spec.data, TableData):
            return []
        counts = [self._stages[stage].unpack(total)["counts"] for total in totals]
        empty = (torch.stack(counts) == 0).any(0).tolist()
        return [name for name, none in zip(input_names(self._spec), empty, strict=True) if none]

    def joined(self, stage: str, contributions: Sequence[Tensor]) -> Tensor:
        """Return what several sites contribute to a stage as one would: float64 [folds, …]."""
        total = torch.stack(list(contributions)).sum(dim=0)
        if stage == OWN:
            total = patients_only(total)
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
            if isinstance(self._task, LanguageModel):
                known["class_weights"] = (rows / found["labels"]["tokens"].clamp(min=1)).reshape(1)
            elif not isinstance(self._task, Regression):
                counts = found["labels"]["counts"]
                known["class_counts"] = counts.to(torch.int64)
                if self._balance:
                    known["class_weights"] = labels.balanced(self._task, rows, counts)
        if "label-squares" in found:
            around = _label_mean(found["labels"])
            mean, scale = moments.mean_and_scale(found["labels"]["rows"], around, *found["label-squares"].values())
            target = (float(mean), float(scale) if scale.isfinite() else 1.0)
        if "site-effects" in found:
            known |= combat.pooled(found["site-effects"], found["residuals"])._asdict()
        if "sums" in found:
            mean = moments.means(*found["sums"].values())
            if "squares" in found:
                mean, scale = moments.mean_and_scale(found["sums"]["counts"], mean, *found["squares"].values())
                alike = scale.isinf()  # of all rows: a level, too, of which no model learns
                levels = self._but_levels(mean, scale)
                known["mean"], known["scale"] = (
                    torch.where(alike, one, own) for one, own in zip((mean, scale), levels, strict=True)
                )
            if self._impute:
                known["fill"] = mean
        if not all((value.isfinite() | ((value > 0) & (name == "scale"))).all() for name, value in known.items()):
            raise ValueError("preparation: the sites' totals lead to NaN or infinity, expected finite numbers")
        return Fit(int(rows), target_mean=target[0], target_scale=target[1], **known)

    def is_due(self, stage: str, *, exact: bool) -> bool:
        """Tell whether a stage is due in a run that is solved exactly, or is not."""
        return exact or not self.solving.exact or stage not in self.solving.stages

    def coefficients(self, totals: Mapping[str, Tensor]) -> Coefficients | None:
        """Return the coefficients of a linear model; see `Solving.coefficients`."""
        return self.solving.coefficients(totals, self.fit(totals))

    def own(self, fit: Fit, rows: Rows) -> OwnFit:
        """Return what a site's training rows say beyond the fit; of no rows, what changes nothing."""
        if not len(rows.inputs):
            return OwnFit()
        inputs, effects = self._harmonised(fit.pooled, rows)
        mean = scale = None
        if self._standardise == "site":
            mean, scale = self._but_levels(*moments.own_mean_and_scale(inputs, self._layout.axis))
        return OwnFit(mean, scale, *(effects or ()))

    def transform(self, fit: Fit, own: OwnFit | None) -> Transform:
        """Return what prepares inputs and labels of a site; without training rows it has no fit of its own."""
        return Transform(self._spec, self._layout, fit, own)

    def fitted(self, sites: Sequence[Rows]) -> Fit:
        """Return what several sites' rows, which are all here, say together.

        Raises:
            ValueError: the rows hold numbers too large to be squared, or do not fit the spec.
        """
        totals = dict[str, Tensor]()
        for stage in self.stages:
            totals[stage] = reduce(add, (self.contribution(stage, totals, rows) for rows in sites))
        return self.fit(totals)

    def _needed(self, table: bool) -> dict[str, Stage]:
        stages: dict[str, Stage] = {}
        task, channels = self._task, (self._layout.channels,)
        rows = Field("rows", (), "count")
        if isinstance(task, Regression):
            stages["labels"] = Stage((rows, Field("sum", (), "sum", RAW), *self._table))
            stages["label-squares"] = Stage((Field("deviations", (), "sum"), Field("squares", (), "square")))
        elif isinstance(task, LanguageModel):
            stages["labels"] = Stage((rows, Field("tokens", (), "count", values=self._inputs)))
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
            if isinstance(self._task, LanguageModel):
                return {"rows": count, "tokens": predicted(in_memory(rows.inputs)).sum()}
            if isinstance(self._task, Regression):
                return {"rows": count, "sum": rows.labels.to(torch.float64).sum()}
            return {"rows": count, "counts": labels.counts_of(self._task, rows.labels)}
        if stage == "label-squares":
            away = rows.labels.to(torch.float64) - _label_mean(before["labels"])
            return {"deviations": away.sum(), "squares": away.square().sum()}
        if stage in self.solving.rounds:
            fit = self.fit(totals)
            learned, weights = self._learned(fit, rows), fit.class_weights
            return self.solving.sums(stage, totals, *learned, fewest, rows.groups, weights)
        if stage in ("site-effects", "residuals"):
            features, covariates = measured(self._layout, in_memory(rows.inputs), rows.covariates)
            if stage == "site-effects":
                return combat.effects(features, covariates, self._impute)
            return combat.residuals(features, covariates, self._impute, combat.lines(before["site-effects"])[1])
        of_all = combat.pooled(before["site-effects"], before["residuals"]) if self._combat else None
        inputs, _ = self._harmonised(of_all, rows)
        if stage == "sums":
            counts, sums = moments.sums(inputs, self._layout.axis)
            return {"counts": counts, "sums": sums}
        deviations, squares = moments.squares(inputs, moments.means(*before["sums"].values()), self._layout.axis)
        return {"deviations": deviations, "squares": squares}

    def _learned(self, fit: Fit, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return inputs and labels as a linear model learns them."""
        transform = self.transform(fit, self.own(fit, rows))
        inputs = transform.prepared(in_memory(rows.inputs), rows.covariates, torch.float64)
        return in_memory(inputs), transform.as_learned(rows.labels)

    def _described(self, stage: str, rows: Rows | None, fewest: int) -> dict[str, Tensor]:
        """Return the sums of Table 1, in the stage that has them."""
        if stage != "labels" or not self._table:
            return {}
        if rows is None:
            return {field.name: torch.zeros(field.shape, dtype=torch.float64) for field in self._table}
        assert self._schema is not None
        return description.sums(self._task, rows, self._schema, fewest)

    def _harmonised(self, of_all: combat.Pooled | None, rows: Rows) -> tuple[Inputs, combat.SiteEffects | None]:
        """Return a site's training inputs without its effects, and these."""
        if of_all is None or self._combat is None:
            return rows.inputs, None
        inputs = in_memory(rows.inputs)
        features, covariates = measured(self._layout, inputs, rows.covariates)
        own = combat.own_effects(features, covariates, of_all, self._combat.empirical_bayes)
        return without_effects(self._layout, of_all, own, inputs, rows.covariates), own

    def _but_levels(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Leave columns of 0 and 1 as they are."""
        return torch.where(self._layout.levels, 0.0, mean), torch.where(self._layout.levels, 1.0, scale)


def _label_mean(sums: Mapping[str, Tensor]) -> Tensor:
    return moments.means(sums["rows"], sums["sum"])
