"""Hello: checks what must be equal everywhere, and collects the sites' sample counts in the roster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationInfo, model_validator

from rankdad.common import user_code
from rankdad.common.errors import ProtocolError, RunFailedError, UserError
from rankdad.common.privacy import heads
from rankdad.common.privacy.heads import Heads
from rankdad.common.protocol.arrays import pack_counts, unpack_counts
from rankdad.common.protocol.messages import Body, Control, Count, DataWarning, Digest, Kind, Message, Name, packed
from rankdad.common.protocol.versions import OUR_VERSION, WIRE, check_versions
from rankdad.common.rounds.base import Collected, Contributor, Cost, Due, Ready, Record, Round
from rankdad.common.rounds.checks import Checks
from rankdad.common.run.batches import MAX_STEPS, idle
from rankdad.common.run.repeats import alike, equal_repeats
from rankdad.common.spec.solver import is_exact
from rankdad.common.user_code import CodeOrigin, origin

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState

Counts = tuple[tuple[int, ...], ...]
Numbers = tuple[int, ...]
Functions = tuple[CodeOrigin, ...]
NUMBERS = packed(lambda numbers: pack_counts([numbers]), lambda data, plan, _: _numbers(data, plan.folds))
SAMPLES = packed(pack_counts, lambda data, plan, _: unpack_counts(data, plan.folds, 3))
ROSTER = packed(pack_counts, lambda data, plan, _: unpack_counts(data, plan.folds, len(plan.sites)))
FUNCTIONS = packed(user_code.pack, lambda data, *_: user_code.unpack(data))
HEADS = packed(heads.pack, lambda data, *_: heads.unpack(data))
SAME = {
    "spec_sha256": "its spec differs",
    "weights_sha256": "its initial weights differ (another version of torch, or another model factory)",
    "plan_sha256": "its plan differs (another version of torch, or of the model)",
}


def _numbers(data: bytes, most: int) -> tuple[int, ...]:
    """Decode at most `most` whole numbers."""
    return unpack_counts(data, 1, min(len(data) // 4, most))[0]


class Introduction(Control):
    """The common part of hello: identity, and what must be equal everywhere."""

    version: Name
    wire: Count
    spec_sha256: Digest
    plan_sha256: Digest
    weights_sha256: Digest

    @model_validator(mode="before")
    @classmethod
    def _fits(cls, said: Any, info: ValidationInfo) -> Any:
        """Refuse another wire before other fields, which may differ."""
        if info.context is not None and isinstance(said, dict) and said.get("wire") != WIRE:
            _check_version("the sender", said)
        return said


class Hello(Introduction):
    """A site's hello: what must be equal everywhere, and its number of samples.

    `samples` are [folds, 3]: training, validation, test. `dropped` rows of its data were left out. `retain` tells
    whether the site's policy lets the aggregator keep contributions beyond the run's end. `log` is the state of the
    site's disclosure log, if it has one. For repeated folds, `alike` has for each tested fold the first one with the
    same test set. `functions` are the origins of user-defined functions.
    """

    samples: Annotated[Counts, *SAMPLES]
    dropped: Count
    warnings: Annotated[list[DataWarning], Field(max_length=10)]
    retain: bool = False
    log: Annotated[Heads | None, *HEADS] = None
    alike: Annotated[Numbers, *NUMBERS] = ()
    functions: Annotated[Functions, *FUNCTIONS] = ()


class RegionHello(Introduction):
    """A region's hello: what must be equal everywhere, and the samples of each site, as in `Hello`.

    `dropped` is by site, `warnings` lists sites by warning. `retain` holds for all sites.
    """

    samples: dict[Name, Annotated[Counts, *SAMPLES]]
    dropped: dict[Name, Count]
    warnings: dict[DataWarning, list[Name]]
    retain: bool = False
    alike: dict[Name, Annotated[Numbers, *NUMBERS]] = Field(default_factory=dict)
    functions: dict[Name, Annotated[Functions, *FUNCTIONS]] = Field(default_factory=dict)


class Roster(Control):
    """The answer to hello: training samples of every site, [folds, sites] in the plan's order.

    `exact` tells whether the model is solved exactly, because every site's policy allows it. `equal` repeats are
    skipped, because at every site they equal an earlier one.
    """

    train: Annotated[Counts, *ROSTER]
    exact: bool = False
    equal: Annotated[Numbers, *NUMBERS] = ()


class HelloRound(Round):
    """The first round."""

    kind, up, down, region_up = Kind.HELLO, Hello, Roster, RegionHello

    def due(self, run: RunState) -> Due | None:
        """Return this round until there is a roster."""
        return None if run.roster else run.next(self.kind)

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Hello:
        """Return a site's hello."""
        plan, data = site.plan, site.data
        return Hello(
            **OUR_VERSION,
            spec_sha256=plan.spec_sha256,
            plan_sha256=plan.sha256(),
            weights_sha256=plan.weights_sha256,
            samples=site.samples(),
            dropped=0 if data.parts is not None else data.dropped,  # with parts, the number would reveal patients
            warnings=list(data.warnings),
            retain=site.retain,
            log=None if data.parts is None else data.parts.heads(),
            alike=data.alike(site.spec),
            functions=tuple(map(origin, site.spec.functions.values())),
        )

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check a site's run, its training samples, and its model."""
        hello = message.body
        if isinstance(hello, Hello):
            _check_hello(checks, site, hello, {site: hello.samples}, [hello.functions])
            _check_alike(checks, hello.alike)
            return
        assert isinstance(hello, RegionHello)
        checks.names("samples", site, hello.samples, sites=True)
        for field, names in (
            ("dropped", [*hello.dropped]),
            *((f"warnings.{kind}", told) for kind, told in hello.warnings.items()),
        ):
            if set(names) - set(hello.samples) or len(set(names)) < len(names):
                raise ProtocolError(
                    422,
                    f"d.{field}: names others than {site} has, or one twice",
                    code="site-unknown",
                    field=f"d.{field}",
                )
        _check_hello(checks, site, hello, hello.samples, [hello.functions.get(own, ()) for own in hello.samples])
        for own in hello.samples:
            _check_alike(checks, hello.alike.get(own, ()))

    def pooled(self, here: Collected) -> Roster:
        """Return the roster.

        Raises:
            RunFailedError: a fold has no training samples, or a candidate no validation samples.
        """
        spec, plan, hello = here.spec, here.plan, merge_hellos(here.children, here.ready.messages)
        samples = [hello.samples[site] for site in plan.sites]
        train = tuple(tuple(own[fold][0] for own in samples) for fold in range(plan.folds))
        if problem := idle(spec, train):
            raise RunFailedError("aggregator", f"train: {problem}", code="preparation-impossible", field="train")
        for fold in range(plan.folds):
            if spec.place(fold)[1] is not None and not any(own[fold][1] for own in samples):
                name = spec.training_name(fold)
                reason = f"tuning: no site has samples to validate {name} with"
                raise RunFailedError("aggregator", reason, code="no-samples", field="tuning")
        equal = equal_repeats(hello.alike.values(), spec.folds_per_repeat)
        return Roster(train=train, exact=is_exact(spec, hello.warnings), equal=equal)

    def combined(self, here: Collected) -> RegionHello:
        """Return the hellos of all sites, with the region's own version."""
        return merge_hellos(here.node.children, here.ready.messages).model_copy(update=OUR_VERSION)

    def apply(self, run: RunState, update: Message) -> None:
        """Set the roster."""
        body = update.body
        assert isinstance(body, Roster)
        if body.exact is {"steps": True, "exact": False}.get(run.spec.solver):
            raise ProtocolError(
                502,
                f"d.exact: got {str(body.exact).lower()}, but the run's solver is {run.spec.solver}",
                code="solver-differs",
                field="d.exact",
            )
        repeats = run.spec.tested_folds // run.spec.folds_per_repeat
        if not set(body.equal) <= set(range(1, repeats)):
            raise ProtocolError(
                502,
                f"d.equal: got {body.equal}, expected repeats after the first, of {repeats}",
                code="fields-differ",
                field="d.equal",
            )
        run.exact = body.exact
        run.note(study=run.progress.study.model_copy(update={"equal": body.equal}))
        run.set_roster(body.train)

    def remember(self, checks: Checks, ready: Ready) -> None:
        """Store all sample counts."""
        hello = merge_hellos(checks.node.children, ready.messages)
        checks.set_samples(hello.samples)
        checks.retain = hello.retain

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record the participants."""
        record.note_hello(ready, update)


def merge_hellos(children: Sequence[str], messages: Sequence[Message]) -> RegionHello:
    """Merge the hellos of sites and regions into one."""
    hellos = [_as_region(child, message.body) for child, message in zip(children, messages, strict=True)]
    warnings: dict[str, list[str]] = {}
    for hello in hellos:
        for kind, sites in hello.warnings.items():
            warnings.setdefault(kind, []).extend(sites)
    together: dict[str, object] = {"warnings": warnings, "retain": all(hello.retain for hello in hellos)}
    for field in ("samples", "dropped", "functions", "alike"):
        together[field] = {site: own for hello in hellos for site, own in getattr(hello, field).items()}
    return RegionHello.model_validate({**dict(hellos[0]), **together})


def _as_region(child: str, hello: Body) -> RegionHello:
    if isinstance(hello, RegionHello):
        return hello
    assert isinstance(hello, Hello)
    alone = {
        "samples": {child: hello.samples},
        "dropped": {child: hello.dropped} if hello.dropped else {},
        "warnings": {kind: [child] for kind in hello.warnings},
        "alike": {child: hello.alike} if hello.alike else {},
        "functions": {child: hello.functions} if hello.functions else {},
    }
    return RegionHello.model_validate({name: value for name, value in hello if name != "log"} | alone)


def _check_hello(
    checks: Checks,
    who: str,
    hello: Hello | RegionHello,
    samples: Mapping[str, Sequence[Sequence[int]]],
    functions: Sequence[Sequence[CodeOrigin]],
) -> None:
    plan = checks.plan
    _check_version(who, dict(hello))
    for own in functions:  # before the weights, which would differ for another model
        _check_functions(checks, own)
    expected = {"spec_sha256": plan.spec_sha256, "weights_sha256": plan.weights_sha256, "plan_sha256": plan.sha256()}
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
        steps = math.ceil(most / checks.spec.at(site).training.step_size)
        if not 0 < steps <= MAX_STEPS:
            raise ProtocolError(
                422,
                f"d.samples: {most} samples to train on are {steps} steps an epoch, expected 1 to {MAX_STEPS}",
                code="too-many-steps",
                field="d.samples",
            )


def _check_version(who: str, said: Mapping[str, object]) -> None:
    """Check that the sender of a hello may run with this process.

    Raises:
        ProtocolError: its version or wire does not fit.
    """
    try:
        check_versions(who, said, "the aggregator")
    except UserError as error:
        raise ProtocolError(422, f"d.{error}", code=error.code, field=f"d.{error.field}") from None


def _check_functions(checks: Checks, told: Sequence[CodeOrigin]) -> None:
    """Check that a site names the origins of its functions, and has the aggregator's version of the model's."""
    by_name, functions = {one.name: one for one in told}, checks.spec.functions
    if len(by_name) < len(told) or by_name.keys() != set(functions.values()):
        raise ProtocolError(
            422,
            f"d.functions: names others than the run loads, expected {', '.join(functions.values()) or 'none'}",
            code="fields-differ",
            field="d.functions",
        )
    own = origin(functions["model.factory"]) if "model.factory" in functions else None
    if own is not None and (got := by_name[own.name]) != own:
        raise ProtocolError(
            422,
            f"d.functions: its model differs: {own.name} comes from {got}, at the aggregator from {own}: install "
            "the same",
            code="hello-differs",
            field="d.functions",
        )


def _check_alike(checks: Checks, folds: Sequence[int]) -> None:
    """Check that a site names, for each fold of several repeats, the first one with the same test set."""
    repeated = checks.spec.tested_folds > checks.spec.folds_per_repeat
    if tuple(folds) != alike(folds) or len(folds) != checks.spec.tested_folds * repeated:
        raise ProtocolError(
            422,
            f"d.alike: expected, for each of {checks.spec.tested_folds} folds, the first one that equals it",
            code="fields-differ",
            field="d.alike",
        )
