"""Reference models at a site: the run's model trained on its own samples, and linear models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.data.prepared import Prepared
from rankdad.common.errors import RankdadError
from rankdad.common.lowrank.layers import copied
from rankdad.common.preparation import Preparing, in_memory, linear
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.alone import Tested, alone_spec, own_splits, train_alone


class References:
    """Test the run's references on this site's samples.

    Args:
        spec: the run.
        data: the site's samples.
        run: its state.
        site: its name.
        notice: called with messages for the site's staff.
    """

    def __init__(self, spec: RunSpec, data: SiteData, run: RunState, site: str, notice: Callable[[str], None]) -> None:
        self._spec, self._data, self._run, self._site, self._notice = spec, data, run, site, notice
        self._names = spec.references
        self._alone = alone_spec(spec, site) if {"local", "site"} & set(self._names) else spec
        splits = own_splits(spec, self._alone, data.splits) if "local" in self._names else data.splits
        self._own_data = replace(data, splits=splits)
        if spec.solver != "steps":  # no sum leaves the site here
            self._own_data = replace(self._own_data, fewest=1, tells_coefficients=False)
        self._training: Iterator[Tested | None] = iter(())
        self._at = -1  # fold in training
        self._tested: Tested | None = None  # the last one
        self._failed = "local" not in self._names

    @property
    def _fold(self) -> int:
        """Return the fold of the run's next test; candidates come before the final model."""
        return self._spec.place(self._run.fold)[0]

    def advance(self) -> None:
        """Train on as many batches as a step of the run has, to spread this work over the run."""
        for _ in range(self._run.batches_per_step):
            self._advance()

    def _advance(self) -> None:
        fold = self._fold
        if self._failed or fold >= self._spec.tested_folds or (self._tested and self._tested[0] == fold):
            return
        try:
            if self._at != fold:
                model = copied(self._run.replica.model)
                model.load_state_dict(self._run.initial)
                self._training, self._at = train_alone(self._alone, self._own_data, model, fold), fold
            made = next(self._training)
        except RankdadError as error:
            self._failed = True
            self._notice(f"{self._site}: has no local reference model: {error}")
            return
        if made is not None:
            self._tested, self._at = made, fold + 1

    def outputs(self, prepared: Prepared) -> tuple[Tensor | None, ...]:
        """Return each reference's outputs for a fold's test samples, in the spec's order; None without a model."""
        if not len(prepared.test):
            return (None,) * len(self._names)
        return tuple(getattr(self, f"_{name}_outputs")(prepared) for name in self._names)

    def _local_outputs(self, prepared: Prepared) -> Tensor | None:
        while not self._failed and (self._tested is None or self._tested[0] != self._fold):
            self._advance()
        return None if self._failed or self._tested is None else prepared.transform.as_learned(self._tested[1])

    def _linear_outputs(self, prepared: Prepared) -> Tensor | None:
        solving, totals = Preparing(self._spec).solving, self._run.totals_of(self._run.fold)
        if not solving.is_solved(totals):
            name = self._spec.training_name(self._run.fold)
            self._notice(
                f"{self._site}: the linear model of all sites has not converged ({name}): it has few rounds, in which "
                "sites may withhold sums over few patients; left out"
            )
            return None
        weights = solving.weights(totals)
        return linear.outputs(self._spec.task, in_memory(prepared.test.inputs), weights)

    def _site_outputs(self, prepared: Prepared) -> Tensor | None:
        """Return the outputs of a linear model fitted, with its preparation, on this site's samples alone."""
        preparing, fold = Preparing(self._alone), self._run.fold
        rows, data = self._data.rows(fold), self._data
        if not len(rows.inputs):
            return None
        try:
            fit = preparing.fitted([rows])
        except ValueError:  # numbers too large
            return None
        transform = preparing.transform(fit, preparing.own(fit, rows))
        inputs = in_memory(transform.prepared(in_memory(data.samples.inputs), data.covariates, torch.float64))
        split, labels = data.splits[fold], transform.as_learned(rows.labels)
        weights = linear.fitted(self._spec.task, inputs[split.train], labels)
        if weights is None:
            most, name = f"{linear.MOST_ROUNDS} rounds of Newton's method", self._spec.training_name(fold)
            self._notice(
                f"{self._site}: the linear model of its own rows has not converged within {most} ({name}): left out"
            )
            return None
        outputs = linear.outputs(self._spec.task, inputs[split.test], weights)
        return prepared.transform.as_learned(transform.in_units(outputs))
