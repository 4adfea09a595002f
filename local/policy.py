"""A site's policy: limits that a hospital sets for itself and that neither the spec nor the aggregator can change.

A run is checked against it before any data are read, and by the number of samples before anything is sent. Which model
factories may run is not said here but in `allow_factories` of the site's own file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from common.course import batch_sizes
from common.documents import Part, load_json, validate
from common.errors import FewSamplesError, PolicyError
from common.plan import Plan
from common.preparation import Preparing
from common.protocol import step_bytes
from common.spec import MethodSpec, PositiveInt, PowerSgd, RankDad, RunSpec, TopRows
from local.data import SiteData
from local.data.behind import fewest_behind, levels_of
from local.data.folds import Split

MethodName = Literal["dsgd", "dad", "edad", "rank-dad", "powersgd", "top-rows"]
UNREDUCED = {  # the methods that send single samples' rows as they are: who sees them
    "dad": "the aggregator and, where that is smaller than the gradient, all other sites",
    "edad": "the aggregator and all other sites",
    "top-rows": "the aggregator and, where that is smaller than the gradient, all other sites",
}


class Policy(Part):
    """What a site lets out. The defaults let out whatever is summed up or reduced over a step's samples."""

    min_rows: PositiveInt = 1
    """Fewest samples behind anything that leaves the site in one round. A validation or test set with fewer is left
    out of the evaluation; a run with steps of fewer is refused."""
    max_rank: PositiveInt | None = None
    """Most rows that are sent of a layer's gradient, oversampling included; null is no limit. With one, methods that
    send gradients of any rank are refused. What is smaller dense travels dense: its rank is at most twice as large."""
    rows_per_rank: PositiveInt | None = None
    """Fewest samples of a step for each row that is sent; null is no limit. Of few samples rank-dad then sends fewer
    rows than the spec allows; the other methods are refused. 4 makes it hard to tell samples apart, not impossible."""
    methods: tuple[MethodName, ...] = ("dsgd", "rank-dad", "powersgd")
    """Methods that may run here."""
    unreduced_factors: bool = False
    """Whether dad, edad and top-rows, if `methods` has them, may send factors as they are: what each single sample puts
    into a layer, which for the first layer is the raw data."""
    max_upload: PositiveInt | None = None
    """Most bytes that are sent in one step; null is no limit."""

    @classmethod
    def read(cls, path: str | None) -> Policy:
        """Read a site's policy; without a file the defaults hold.

        Raises:
            UserError: the file is unreadable, or a field is wrong.
        """
        return cls() if path is None else validate(cls, load_json(path), file=path)

    def check(self, spec: RunSpec, plan: Plan) -> None:
        """Check a run as far as that needs no data.

        Raises:
            PolicyError: naming the field of the spec that asks for too much.
        """
        self._check_method(spec.method)
        self._check_rank(spec.method)
        self._check_step(spec, spec.training.step_size)
        size = step_bytes(plan, up=True)
        if self.max_upload is not None and size > self.max_upload:
            raise _refusal("method", f"sends up to {size:,} bytes a step", f"at most {self.max_upload:,} (max_upload)")

    def check_samples(self, spec: RunSpec, data: SiteData) -> None:
        """Check a run by the numbers of the site's samples.

        Raises:
            FewSamplesError: a step, or the sums of a fold's training samples, would have too few of them.
        """
        try:
            for split in data.splits:
                if len(split.train):
                    self._check_step(spec, min(batch_sizes(len(split.train), spec.training.step_size)))
        except PolicyError as error:
            raise FewSamplesError(error.field, error.problem) from None
        splits, tested = data.splits, spec.tested_folds
        if Preparing(spec).stages:
            fewest = fewest_behind(splits, torch.ones(len(data.samples), 1), tested).min()
            self._check_sums("evaluation", "holds out {} samples in a fold", fewest)
        if data.covariates is not None:
            for column, members in levels_of(spec, data.covariates):
                asks = f"keeps {column}, of which a level has {{}} samples in a fold here, or in what it holds out"
                self._check_sums("preparation.harmonise.keep", asks, fewest_behind(splits, members, tested).min())

    def _check_sums(self, field: str, asks: str, fewest: Tensor) -> None:
        """Check that sums are of enough samples."""
        if fewest < self.min_rows:
            refusal = _refusal(field, asks.format(int(fewest)), f"none of fewer than {self.min_rows} (min_rows)")
            raise FewSamplesError(refusal.field, refusal.problem)

    def contributed(self, data: SiteData) -> SiteData:
        """Return the data without validation and test sets that are too small to be evaluated."""
        splits = (Split(one.train, self._evaluated(one.validation), self._evaluated(one.test)) for one in data.splits)
        return replace(data, splits=tuple(splits), fewest=self.min_rows)

    def rank(self, samples: int) -> int | None:
        """Return how many rows of a layer a step of so many samples may send, whatever the spec; None is no limit."""
        return None if self.rows_per_rank is None else samples // self.rows_per_rank

    def _evaluated(self, rows: Tensor) -> Tensor:
        return rows if len(rows) >= self.min_rows else rows[:0]

    def _check_method(self, method: MethodSpec) -> None:
        unreduced = method.name in UNREDUCED
        if method.name in self.methods and (self.unreduced_factors or not unreduced):
            return
        asks, allows = f"asks for {method.name}", f"{', '.join(self.methods) or 'none'} (methods)"
        if unreduced:
            asks += f", which shows unreduced factors, of the first layer the raw data, to {UNREDUCED[method.name]}"
            allows += "; unreduced_factors must be true besides" * (not self.unreduced_factors)
        raise _refusal("method.name", asks, allows)

    def _check_rank(self, method: MethodSpec) -> None:
        rows = rows_sent(method)
        if rows is None:
            for name, limit in (("max_rank", self.max_rank), ("rows_per_rank", self.rows_per_rank)):
                if limit is not None:
                    raise _refusal("method.name", f"asks for {method.name}, whose rank has no limit", f"{name} {limit}")
        elif self.max_rank is not None and rows > self.max_rank:
            oversampled = ", with oversampling" if isinstance(method, RankDad) and method.oversampling else ""
            allows = f"at most {self.max_rank} (max_rank)"
            raise _refusal(_rank_field(method), f"asks for {rows} rows{oversampled}", allows)

    def _check_step(self, spec: RunSpec, samples: int) -> None:
        """Check that a step of so many samples may send something."""
        if samples < self.min_rows:
            asks, allows = f"makes steps of {samples} samples here", f"none of fewer than {self.min_rows} (min_rows)"
            raise _refusal("training.batch_size", asks, allows)
        most, rows = self.rank(samples), rows_sent(spec.method)
        if most is None or rows is None:
            return
        least = 1 if isinstance(spec.method, RankDad) else rows  # which sends fewer, if it has to
        if least > most:
            asks = f"needs at least {least} rows of a step of {samples} samples here"
            raise _refusal(_rank_field(spec.method), asks, f"at most {most} (rows_per_rank {self.rows_per_rank})")


def rows_sent(method: MethodSpec) -> int | None:
    """Return how many rows of a layer a method sends at most; None if that has no limit."""
    if isinstance(method, RankDad):
        return method.rank + method.oversampling
    if isinstance(method, PowerSgd):
        return method.rank
    return method.rows if isinstance(method, TopRows) else None


def _rank_field(method: MethodSpec) -> str:
    return "method.rows" if isinstance(method, TopRows) else "method.rank"


def _refusal(field: str, asks: str, allows: str) -> PolicyError:
    return PolicyError(field, f"the run {asks}, but this site's policy allows {allows}")
