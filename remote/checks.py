"""Checks a contribution against the roster and the plan before it is recorded or counts.

A refused contribution changes nothing. The answer names the field that is wrong, and the site may send again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch

from rankdad.common.errors import ProtocolError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.wire import BITS
from rankdad.common.metrics import Tally, same_labels
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.messages import (
    Buffers,
    Evaluation,
    Hello,
    Message,
    RegionGoodbye,
    RegionHello,
    Squares,
    Step,
    Sums,
)
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds import paired
from rankdad.common.run.projections import least_norm
from rankdad.common.run.repeats import alike
from rankdad.common.run.replica import saved_buffers
from rankdad.common.run.state import MAX_STEPS, RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import Node, names_in
from rankdad.common.user_code import CodeOrigin, origin

MAX_SIZE = 1e17  # of a gradient or buffer: squares stay numbers in float32, however many sites add up
SLACK = 1.1  # of projections that the wire has rounded: half of a quarter of an octave
TINY = 1e-30  # of those that are no normal numbers of the wire, which rounds them to few digits
PLACES: Mapping[Literal["train", "validation", "test"], int] = {"train": 0, "validation": 1, "test": 2}
SAME = {
    "version": "its version of rankdad differs",
    "spec_sha256": "its spec differs",
    "weights_sha256": "its initial weights differ (another version of torch, or another model factory)",
    "plan_sha256": "its plan differs (another version of torch, or of the model)",
}


class Checks:
    """What is known of a run by which a contribution is judged.

    Args:
        spec: of the run.
        plan: of the run.
        state: of the run.
        node: whose children send.

    Attributes:
        samples: every child's in every fold, to train, to validate and to test; empty until all have said hello.
        tests: of the last test the tallies of every child that took part: the model's, and those of its rivals.
    """

    def __init__(self, spec: RunSpec, plan: Plan, state: RunState, node: Node) -> None:
        self._spec, self._plan, self._state, self._node = spec, plan, state, node
        self._preparing = Preparing(spec)
        self._model_code = origin(spec.functions["model.factory"]) if "model.factory" in spec.functions else None
        self._max_factor = min(MAX_SIZE, _largest(plan.wire))
        self.samples: Mapping[str, Sequence[Sequence[int]]] = {}
        self.tests: Mapping[str, Sequence[Tally]] = {}

    def meet(self, samples: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Take note of all sites' samples: a child's are those of all sites below it."""
        sites = self._plan.sites
        self.samples = {
            child: torch.tensor([samples[sites[place]] for place in places]).sum(dim=0).tolist()
            for child, places in self._node.places.items()
        }

    def check(self, site: str, message: Message, ago: int = 0) -> None:
        """Check a contribution to the present round, or to a step that was due so many steps ago.

        Raises:
            ProtocolError: 422, naming the field or the parameter, and what was expected.
        """
        body = message.body
        if isinstance(body, Step):
            self._check_step(site, message.exchange, body, ago)
        elif isinstance(body, Hello):
            self._check_hello(body, {site: body.samples}, [body.functions])
            self._check_alike(body.alike)
        elif isinstance(body, RegionHello):
            self._check_names("samples", site, body.samples)
            for field, names in (
                ("dropped", [*body.dropped]),
                *((f"warnings.{w}", n) for w, n in body.warnings.items()),
            ):
                if set(names) - set(body.samples) or len(set(names)) < len(names):
                    raise ProtocolError(
                        422,
                        f"d.{field}: names others than {site} has, or one twice",
                        code="site-unknown",
                        field=f"d.{field}",
                    )
            self._check_hello(body, body.samples, [body.functions.get(own, ()) for own in body.samples])
            for own in body.samples:
                self._check_alike(body.alike.get(own, ()))
        elif isinstance(body, RegionGoodbye):
            self._check_names("weights_sha256", site, body.weights_sha256)
        elif isinstance(body, Sums):
            self._check_sums(site, body)
        elif isinstance(body, Buffers):
            self._check_count("d.samples", body.samples, sum(map(self._state.samples, self._node.places[site])))
            self._check_buffers(body)
        elif isinstance(body, Squares):
            self._check_count("d.samples", body.samples, self._samples(site, "test"))
            tests = self.tests.get(site)
            problem = tests and paired.problem_of(self._spec, body.values, tests)
            if problem:
                raise ProtocolError(422, f"d.values: {problem}", code="sums-unusable", field="d.values")
        elif isinstance(body, Evaluation):
            expected = self._samples(site, body.split)
            self._check_count("d.tally", body.tally.samples, expected)
            others = [("baseline", "baseline", body.baseline)] if body.baseline is not None else []
            for name, tally in zip(self._plan.references, body.references, strict=False):  # a validation has none
                if tally.samples:
                    others.append(("references", f"references: {name}", tally))
            for field, named, tally in others:
                self._check_count(f"d.{named}", tally.samples, expected)
                if not same_labels(self._spec.task, tally, body.tally):
                    raise ProtocolError(
                        422,
                        f"d.{named}: is of other labels than those of d.tally",
                        code="labels-differ",
                        field=f"d.{field}",
                    )

    def _samples(self, site: str, split: Literal["train", "validation", "test"]) -> int:
        return self.samples[site][self._state.fold][PLACES[split]]

    def _check_names(self, field: str, region: str, got: Collection[str]) -> None:
        """Check that a region names its sites, and at its end its regions, too."""
        expected = set(names_in(self._spec.federation.nodes, region))
        if field == "samples":
            expected &= set(self._plan.sites)
        if wrong := sorted(set(got) ^ expected):
            raise ProtocolError(
                422,
                f"d.{field}: names others than {region} has: {', '.join(wrong[:5])}",
                code="site-unknown",
                field=f"d.{field}",
            )

    def _check_count(self, field: str, got: float, expected: float) -> None:
        if not math.isclose(got, expected, rel_tol=1e-12):  # the order in which a region adds up its sites is its own
            raise ProtocolError(
                422,
                f"{field}: is of {got:g} samples, expected the {expected:g} that the site has",
                code="weight-differs",
                field=field,
            )

    def _check_step(self, site: str, exchange: int, step: Step, ago: int) -> None:
        places = self._node.places[site]
        if not ago and self._state.excluded.intersection(places):  # left out of an exchange, it is in no later one
            if step.weight:
                raise ProtocolError(
                    422,
                    f"m: the weight: got {step.weight:g}, expected 0: the step has left this site out",
                    code="weight-differs",
                    field="m",
                )
        else:
            expected = sum(self._state.weight(place, ago) for place in places)
            self._check_count("m: the weight", step.weight, expected)
        method, payload = self._state.method, step.payload
        names = [slot.name for slot in self._plan.layout(exchange, up=site not in self._node.regions).slots]
        if self._spec.method.needs_weights:  # whose gradients are made of what is sent
            payload, names = method.gradients([payload]), [route.name for route in self._plan.routes]
        for name, value in zip(names, payload, strict=True):
            if isinstance(value, Factor):
                # No less than the size of the product or of any sum on the way to it; infinite where a square is.
                size, most = _size(value.delta) * _size(value.activation), self._max_factor
            else:
                size, most = _size(value), MAX_SIZE
            if not size < most:
                raise ProtocolError(
                    422,
                    f"b: the gradient of {name} has a size of {size:.1e}, expected less than {most:.1e}: lower the "
                    "learning rate or clip",
                    code="gradient-too-large",
                    field="b",
                )
        size, most = least_norm(step.projections), min(SLACK * step.norm + TINY, MAX_SIZE)
        if not size <= most:
            raise ProtocolError(
                422,
                f"b: projections of norm {size:.3g}, expected at most {most:.3g}: m: {step.norm:.3g}",
                code="norm-out-of-range",
                field="b",
            )

    def _check_hello(
        self,
        hello: Hello | RegionHello,
        samples: Mapping[str, Sequence[Sequence[int]]],
        functions: Sequence[Sequence[CodeOrigin]],
    ) -> None:
        if hello.version == self._plan.version:  # and before the weights, of which another model has others
            for own in functions:
                self._check_functions(own)
        expected = {"version": self._plan.version, "plan_sha256": self._plan.sha256()}
        expected |= {"spec_sha256": self._plan.spec_sha256, "weights_sha256": self._plan.weights_sha256}
        for field, meaning in SAME.items():
            got = getattr(hello, field)
            if got != expected[field]:
                raise ProtocolError(
                    422,
                    f"d.{field}: {meaning}: got {got}, the aggregator has {expected[field]}",
                    code="hello-differs",
                    field=f"d.{field}",
                )
        for site, counts in samples.items():
            most = max(train for train, *_ in counts)
            steps = math.ceil(most / self._spec.at(site).training.step_size)
            if not 0 < steps <= MAX_STEPS:
                raise ProtocolError(
                    422,
                    f"d.samples: {most} samples to train on are {steps} steps an epoch, expected 1 to {MAX_STEPS}",
                    code="too-many-steps",
                    field="d.samples",
                )

    def _check_functions(self, told: Sequence[CodeOrigin]) -> None:
        """Check that a site tells where its functions come from, and has the aggregator's version of the model's."""
        by_name, functions = {one.name: one for one in told}, self._spec.functions
        if len(by_name) < len(told) or by_name.keys() != set(functions.values()):
            raise ProtocolError(
                422,
                f"d.functions: names others than the run loads, expected {', '.join(functions.values()) or 'none'}",
                code="fields-differ",
                field="d.functions",
            )
        own = self._model_code
        if own is not None and (got := by_name[own.name]) != own:
            raise ProtocolError(
                422,
                f"d.functions: its model differs: {own.name} comes from {got}, at the aggregator from {own}: install "
                "the same",
                code="hello-differs",
                field="d.functions",
            )

    def _check_alike(self, folds: Sequence[int]) -> None:
        """Check that a site says of each fold of several repeats which one is the first to be alike."""
        repeated = self._spec.tested_folds > self._spec.folds_per_repeat
        if tuple(folds) != alike(folds) or len(folds) != self._spec.tested_folds * repeated:
            raise ProtocolError(
                422,
                f"d.alike: expected, for each of {self._spec.tested_folds} folds, the first that is like it",
                code="fields-differ",
                field="d.alike",
            )

    def _check_sums(self, site: str, sums: Sums) -> None:
        whole = max(map(sum, self.samples[site]))  # a set that is too small to be tested is left out of its fold
        for counts, fold in zip(self.samples[site], sums.values, strict=True):
            problem = self._preparing.check(sums.stage, fold, counts[PLACES["train"]], whole)
            if problem:
                raise ProtocolError(422, f"d.values: {problem}", code="sums-unusable", field="d.values")

    def _check_buffers(self, buffers: Buffers) -> None:
        """Check that only what every replica has from its beginning, such as infinity in a mask, is out of bounds."""
        initial = saved_buffers(self._state.replica.model)
        for name, value in buffers.values.items():
            least = 0.0 if name.endswith("running_var") else -MAX_SIZE  # whose root is taken
            numbers = value.double()
            if not bool(((least <= numbers) & (numbers <= MAX_SIZE) | (value == initial[name].cpu())).all()):
                raise ProtocolError(
                    422,
                    f"d.values: {name} holds NaN, infinity or a number beyond {least:g} to {MAX_SIZE:g}",
                    code="not-finite",
                    field="d.values",
                )


def _largest(wire: str) -> float:
    """Return the largest number on a wire; codes of few bits have a scale in float32."""
    return torch.finfo(torch.float32 if wire in BITS else getattr(torch, wire)).max


def _size(array: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(array))
