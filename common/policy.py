"""A site's policy: limits that a hospital sets for itself and that neither the spec nor the aggregator can change.

A run is checked against it before any data are read, and by the number of samples before anything is sent. Which model
factories may run is not said here but in `allow_factories` of the site's own file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import FewSamplesError, PolicyError, counted
from rankdad.common.methods import METHODS
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec import (
    KFold,
    MethodSpec,
    PositiveInt,
    RunSpec,
)
from rankdad.common.spec.asked import not_listed, sites_together
from rankdad.common.spec.model import Sha256
from rankdad.common.spec.patterns import escaped, literal
from rankdad.common.spec.table_schema import Column

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
FILE = "policy.json"  # what `split`, `simulate` and `provision` call it
WHOLE = "the whole gradient of a layer, of as high a rank as there are samples: a batch can be rebuilt from it"
MORE_ROWS = "more rows of a layer's gradient for each sample: the more, the easier samples are told apart"
FEWER_SAMPLES = "what fewer samples add up to: the fewer, the easier one is told apart, and of one it is the sample"
FEWER_SITES = "what fewer sites add up to: of two, each learns the other's part, and of one it is the site's own"
MORE_SITES = "more sites in every round"
VISITS = "sums of fewer people than min_rows, where several rows are one person's"
CHOSEN_WEIGHTS = (
    "what weights of another's making can be made to tell: a unit that answers to one patient alone sends their row"
)
PRODUCTS = "products of columns: of few samples these can be solved for single rows"
MAX_NAMES = 20  # of files or columns in a sentence
LARGER_STEPS = "larger batches"
SMALLER_STEPS = "smaller batches"


class MinLevel(Part):
    """How many patients a level has at least, where it has any."""

    count: PositiveInt = 3
    """Patients."""
    by: Literal["site", "part"] = "site"
    """Of what: of all patients of the site, or of each part."""


def _counted(given: object) -> object:
    return {"count": given} if isinstance(given, int) else given


class Told(NamedTuple):
    """What sums of a linear model tell of a set of a site's patients."""

    people: int
    """How many they are; without groups, samples."""
    numbers: int
    """That leave."""
    rank: int
    """Of what is known of the products of columns: each slope at other weights is another direction of them."""


class Policy(Part):
    """What may be asked of a site, and what it lets out, and in.

    The defaults let out what is summed up or reduced over enough samples.
    """

    min_rows: PositiveInt = 8
    """Fewest samples behind anything that leaves the site in one round; where the data name groups, such as patients,
    fewest groups. A validation or test set with fewer is left out of the evaluation; a run with steps of fewer is
    refused."""
    rows_per_rank: PositiveInt | None = 4
    """Fewest samples of a step for each row that is sent of a layer; null is no limit. Of few samples rank-dad then
    sends fewer rows than the spec allows; the other methods are refused. A layer that travels dense, since that is
    smaller or the method is dsgd, may have twice as many units: then no sum or difference of units is nearly all one
    patient's. Of local steps each batch counts for itself. With 4 a table has at least two patients for each column,
    a step of one sends no more numbers than it has cells, for which rank-dad sends fewer rows of a wide network, and at
    nearly the same weights half as many steps as patients are sent; larger numbers ask for more. It makes it hard to
    tell samples apart, not impossible."""
    max_rank: PositiveInt | None = None
    """Most rows that are sent of a layer's gradient; null is no limit. With one, methods that
    send gradients of any rank are refused. What travels dense, since that is smaller or the method is dsgd, may have a
    rank twice as large."""
    methods: tuple[MethodName, ...] = ("dsgd", "rank-dad")
    """Methods that may run here. With powersgd the aggregator chooses directions in which gradients are measured; top-k
    sends the largest entries of a gradient of any rank."""
    unreduced_factors: bool = False
    """Whether dad and edad, if `methods` has them, may send factors as they are: what each single sample puts
    into a layer, which for the first layer is the raw data."""
    keyed_folds: bool = False
    """Whether folds follow from hashes of keys, which everybody can compute, so that one person at two hospitals is in
    one fold, and of two answers the difference may be one patient. false: patients are dealt once, by a secret of the
    site, into at most ten parts of at least `min_rows`, and those who come later into as many of their own; every
    fold, validation and test set is made of parts: no difference of answers is about fewer patients."""
    min_level: Annotated[MinLevel, BeforeValidator(_counted)] = MinLevel()
    """Fewest patients, if any, who have a level, a class, a gap or a value that all others have not. What fewer have is
    moved to what is usual before anything is computed. A number is for the whole site; {"count": 3, "by": "part"} for
    each part."""
    site_coefficients: bool = True
    """Whether a linear model's coefficients of this site's own rows, with their standard errors, may leave it: for the
    report, never those of fewer than three patients a column."""
    runs_per_day: PositiveInt | None = None
    """Most runs of one owner, or where owners are unknown of one aggregator, within 24 hours: refused ones count, too,
    since each refusal is an answer. null is no limit, and nothing is counted."""
    runs: PositiveInt | None = None
    """Likewise, since the site has a limit."""
    max_upload: PositiveInt | None = None
    """Most bytes that are sent in one step; null is no limit."""
    accept_replica: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 1e-3
    """How far from the site's own the weights may be that the aggregator gives it after a comparison, relative to their
    size; null takes any. With a number a site that has a checkpoint goes on from no other; with 0 one that has lost its
    checkpoints does not either."""
    pretrained: tuple[Sha256, ...] | None = ()
    """sha256 digests of the files of weights that a run may begin with, `model.pretrained`; null is any."""
    min_sites: PositiveInt = 2
    """Fewest sites that take part in every step and round, of a region as of the run: a run that could go on with
    fewer, by its quorum, its overrides or a site that it leaves out, is refused."""
    files: tuple[str, ...] | None = None
    """Files of the data folder that a run may read, by name or pattern, "." being the folder itself; null is any. A
    pattern that a run asks for has to be listed as it is."""
    columns: tuple[Column, ...] | None = None
    """Columns of tables that a run may read for whatever use, by name or pattern; null is any."""
    group: Column | None = None
    """Column that says what a person is here: a run's `data.group` has to be it. null leaves that to the run, which may
    take a patient's visits for as many patients."""
    largest_share: Annotated[float, Field(gt=0, le=1)] = 0.333
    """Without `keyed_folds`: most of a part's rows that one person may have. Rows beyond are left out, the same in
    every run; 1 leaves none out, and sums of a part may be nearly one person's."""
    retain: bool = False
    """Whether the aggregator may keep this site's contributions beyond a run's end, if all other sites say so, too.
    false: it deletes them, and the site has a receipt."""
    strata: tuple[Column, ...] | None = None
    """Without `keyed_folds`: columns by which patients are dealt evenly to parts, as far as the run reads them as input
    or outcome; null, or where it reads none of them, by the run's outcome."""

    @classmethod
    def read(cls, path: str | None) -> Policy:
        """Read a site's policy; without a file the defaults hold.

        Raises:
            UserError: the file is unreadable, or a field is wrong.
        """
        return cls() if path is None else validate(cls, load_json(path), file=path)

    def mended(self, change: Mapping[str, object]) -> Policy:
        """Return the policy with some lines changed, as a refusal names them."""
        lines = Policy.model_validate(change)
        return self.model_copy(update={line: getattr(lines, line) for line in change})

    def text(self) -> str:
        """Return the policy as a file holds it: every line is there to be changed."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    def others(self) -> dict[str, tuple[object, object]]:
        """Return the lines in which it is not the default: each as it is here, and as it is there."""
        own, default = self.model_dump(mode="json"), Policy().model_dump(mode="json")
        return {line: (own[line], default[line]) for line in own if own[line] != default[line]}

    def check(self, spec: RunSpec, plan: Plan) -> None:
        """Check a run as far as that needs no data.

        Raises:
            PolicyError: naming the field of the spec that asks for too much.
        """
        self._check_sites(spec)
        self._check_listed("files", spec.files, "file-not-allowed")
        columns = {field: tuple(map(escaped, names)) for field, names in spec.columns.items()}
        self._check_listed("columns", columns, "column-not-allowed")
        self._check_group(spec)
        self._check_pretrained(spec)
        if spec.solver == "exact":  # no step is taken
            return
        self._check_method(spec.method)
        self._check_rank(spec, plan)
        self.check_step(spec, plan, spec.training.step_size)
        size = step_bytes(plan, up=True)
        if self.max_upload is not None and size > self.max_upload:
            allows = f"at most {self.max_upload:,} (max_upload)"
            raise refusal(
                "method",
                f"sends up to {size:,} bytes a step",
                allows,
                {"max_upload": size},
                "more bytes",
                owner="a lower rank",
            )

    def check_step(
        self, spec: RunSpec, plan: Plan, samples: int, people: int | None = None, *, left_out: bool = False
    ) -> None:
        """Check that a step of so many samples may send what the run sends.

        Args:
            spec: of the run.
            plan: of the run.
            samples: of the step.
            people: of how many groups they may be at least; None where each sample is its own.
            left_out: whether these are what the step lacks to one of all, which another training makes.

        Raises:
            PolicyError: it may not.
        """
        count = samples if people is None else people
        if count < self.min_rows:
            grouped = f", maybe of {counted(count, spec.group_noun)}" if count < samples else ""
            makes = "makes steps that leave out just" if left_out else "makes steps of"
            asks = f"{makes} {counted(samples, 'sample')} here{grouped}"
            allows = f"none of fewer than {self.min_rows} (min_rows)"
            change: dict[str, object] = {"min_rows": count}
            owner = _steps(spec, SMALLER_STEPS if left_out else LARGER_STEPS)
            raise refusal("training.batch_size", asks, allows, change, FEWER_SAMPLES, owner=owner)
        most, rows = self.rank(samples), rows_sent(spec)
        if most is None:
            return
        least = fewest_rows_sent(spec)
        allows = f"at most {most} (rows_per_rank {self.rows_per_rank})"
        if least is not None and least > most:
            needs = f"needs at least {counted(least, 'row')}{_projected(spec)}"
            asks = f"{needs} of a step of {counted(samples, 'sample')} here"
            change = _fewer_per_row(samples, least)
            owner = _steps(spec, LARGER_STEPS)
            raise refusal(spec.method.rank_field, asks, allows, change, MORE_ROWS, owner=owner)
        (name, units), half = most_units(plan), 2 * (self.rank(count) or 0)
        if units > half:
            noun = spec.group_noun if spec.grouped else "sample"
            asks = f"sends the gradient of {name} whole, of {units} units, for steps of {counted(count, noun)} here"
            allows = f"at most {half} (rows_per_rank {self.rows_per_rank})"
            change = _fewer_per_row(count, -(-units // 2))
            owner, rows = "rank-dad" if spec.method.whole else "a lower rank", self.rows_per_rank or 0
            owner += f", at most {half} units, or steps of at least {counted(-(-units // 2) * rows, noun)},"
            raise refusal(spec.method.rank_field, asks, allows, change, WHOLE, owner=owner)

    def check_products(
        self,
        columns: int,
        told: Mapping[str, Told],
        noun: str = "sample",
        *,
        field: str = "evaluation.references",
        owner: str = "a run without the reference linear",
        kept: int = 0,
    ) -> None:
        """Check that the sums of a linear model of so many columns may leave the site, or those of harmonisation.

        Products of columns say as much as that many rows would, and numbers as many as cells could be solved for them.

        Args:
            columns: of the inputs, and one of ones.
            told: what the sums tell of a set, by what it is called.
            noun: what these are called, in the singular.
            field: of the spec that asks for the sums.
            owner: what the owner could ask for instead.
            kept: how many of the columns are kept by harmonisation; 0 is a linear model.

        Raises:
            FewSamplesError: they may not.
        """
        change, allows = dict[str, object](), list[str]()
        if kept:
            width, of_what = f"{counted(kept, 'kept column')} with {counted(columns - kept, 'feature')}", "to harmonise"
        else:
            width = f"{columns} columns ({counted(columns - 1, 'input')} and one for the intercept)"
            of_what = "for a linear model"
        limits = list[tuple[int, str, float]]()  # rows_per_rank that lets a set's products out, and its numbers
        for name, (people, numbers, rank) in told.items():
            of = f"of {counted(people, noun)} {name}"
            sums = f"products of {width}, {of}"
            if rank not in (columns, kept):
                sums = f"slopes at {rank} weights, {of}, in {width}"
            limits += [
                (people // rank, f"adds up {sums}", rank),
                (
                    2 * people * columns // numbers,
                    f"sends {numbers:,} numbers {of} about {width}",
                    numbers / (2 * columns),
                ),
            ]
        allowed, asks, each = min(limits, key=lambda limit: limit[0])
        widest = kept or columns
        if self.max_rank is not None and widest > self.max_rank:
            change["max_rank"] = widest
            allows.append(f"max_rank {self.max_rank}")
        if self.rows_per_rank is not None and allowed < self.rows_per_rank:
            change["rows_per_rank"] = allowed or None
            needed = math.ceil(self.rows_per_rank * each)
            allows.append(f"that from {counted(needed, noun)} on (rows_per_rank {self.rows_per_rank})")
        if change:
            error = refusal(field, f"{asks}, {of_what}", " and ".join(allows), change, PRODUCTS, owner=owner)
            raise FewSamplesError.of(error, code="sums-of-too-few" if kept else "linear-needs-samples")

    @property
    def sharing(self) -> int:
        """How many patients share a step at least: nobody has more than one part of so many of what it sends."""
        return min(self.min_rows, self.min_level.count)

    def rank(self, samples: int) -> int | None:
        """Return how many rows of a layer a step of so many samples may send, whatever the spec; None is no limit.

        The projections for a factored second moment are one of them.
        """
        return None if self.rows_per_rank is None else samples // self.rows_per_rank

    def check_replica(self, spec: RunSpec, site: str, name: str, apart: float) -> None:
        """Check that the weights that the aggregator gives a site after a comparison are near enough to its own.

        Args:
            spec: of the run.
            site: that compares.
            name: of the weights that are furthest from its own.
            apart: how far, relative to their size.

        Raises:
            PolicyError: they are not.
        """
        if self.accept_replica is None or apart <= self.accept_replica:
            return
        error = PolicyError(
            "federation.drift",
            f"in the run {spec.name} the aggregator gives {site} other weights, those of {name} {apart:.3g} of their "
            f"size from the site's own, but its policy takes over none beyond {self.accept_replica:g} "
            f'(accept_replica), and it stays as it is; "accept_replica": null in its policy lets in any weights, '
            "those too that single samples can be read from",
            code="weights-apart",
        )
        error.is_public = False  # how far they are apart is the site's business
        raise error

    def check_snapshot(self, *, has_checkpoint: bool) -> None:
        """Check that a site may go on from the aggregator's checkpoint.

        Args:
            has_checkpoint: whether the site has one itself, which the aggregator says is too old.

        Raises:
            PolicyError: it may not.
        """
        lets_in = "lets in what the aggregator says the weights are, those too that single samples can be read from"
        if has_checkpoint and self.accept_replica is not None:
            raise PolicyError(
                "snapshot",
                "the aggregator says that its ledger no longer reaches back to this site's checkpoint, and gives it "
                "other weights, but its policy takes over none that are further from its own than "
                f'{self.accept_replica:g} (accept_replica); "accept_replica": null in its policy {lets_in}',
                code="weights-apart",
            )
        if self.accept_replica == 0:
            raise PolicyError(
                "snapshot",
                "the site has no checkpoint from which it could go on but the aggregator's, and its policy takes over "
                f'no weights (accept_replica 0); "accept_replica": 0.001 in its policy {lets_in}',
                code="weights-not-accepted",
            )

    def warnings(self, spec: RunSpec) -> tuple[str, ...]:
        """Return what in a run may come to grief at this policy."""
        drift, limit = spec.federation.drift, self.accept_replica
        if limit is None or drift < limit:
            return ()
        return (
            f"a comparison of weights may end the run: they are made equal where they are more than {drift:g} apart "
            f"(federation.drift), but this site's policy takes over none beyond {limit:g} (accept_replica)",
        )

    def _check_sites(self, spec: RunSpec) -> None:
        together = sites_together(spec)
        field = next((field for field, count in together.items() if count < self.min_sites), None)
        if field is not None:
            fewest = min(together.values())
            asks = f"has rounds with as few as {counted(fewest, 'site')}"
            allows = f"none of fewer than {self.min_sites} (min_sites)"
            raise refusal(
                field, asks, allows, {"min_sites": fewest}, FEWER_SITES, code="too-few-sites", owner=MORE_SITES
            )

    def _check_listed(self, line: Literal["files", "columns"], asked: Mapping[str, Sequence[str]], code: str) -> None:
        listed = getattr(self, line)
        if listed is None:
            return
        others = not_listed(listed, asked)
        if others:
            told = ", ".join(map(literal, list(others)[:MAX_NAMES]))
            told += f" and {len(others) - MAX_NAMES:,} more" * (len(others) > MAX_NAMES)
            raise PolicyError(
                next(iter(others.values())),
                f"the run reads {told}, which this site's policy does not list ({line})",
                change={line: [*listed, *others]},
                code=code,
                lets_out=f"what answers about these {line} add up to",
            )

    def _check_group(self, spec: RunSpec) -> None:
        group = getattr(spec.data, "group", None)
        if self.group is not None and group != self.group:
            asks = f"takes {f'what is alike in {group}' if group else 'every row'} for one person"
            change: dict[str, object] = {"group": group}
            raise refusal("data.group", asks, f"{self.group} alone (group)", change, VISITS, code="group-differs")

    def _check_pretrained(self, spec: RunSpec) -> None:
        begun = spec.model.pretrained
        if begun is None or self.pretrained is None or begun.sha256 in self.pretrained:
            return
        asks = f"begins with weights from a file, {begun.file}, of the sha256 {begun.sha256}"
        allows = f"{'others' if self.pretrained else 'none'} (pretrained)"
        change: dict[str, object] = {"pretrained": [*self.pretrained, begun.sha256]}
        raise refusal("model.pretrained.sha256", asks, allows, change, CHOSEN_WEIGHTS, code="weights-not-listed")

    def _check_method(self, method: MethodSpec) -> None:
        unreduced = bool(method.sends_rows_as_they_are)
        if method.name in self.methods and (self.unreduced_factors or not unreduced):
            return
        change: dict[str, object] = {}
        asks = f"asks for {method.name}"
        lets_out = method.lets_out or f"what {method.name} sends"
        allows = f"{', '.join(self.methods) or 'none'} (methods)"
        if method.name not in self.methods:
            change["methods"] = [*self.methods, method.name]
        change |= dict.fromkeys(self._limits(method))  # which would refuse it next
        if unreduced:
            asks, lets_out = f"{asks}, which sends unreduced factors", _lost(method)
            if not self.unreduced_factors:
                change["unreduced_factors"] = True
                allows = "none (unreduced_factors)" if method.name in self.methods else allows
        raise refusal("method.name", asks, allows, change, lets_out)

    def _check_rank(self, spec: RunSpec, plan: Plan) -> None:
        method, rows = spec.method, rows_sent(spec)
        if method.whole and self.max_rank is not None:
            name, rank = largest_whole(plan)
            if rank > 2 * self.max_rank:
                asks, change = f"sends the gradient of {name} whole, of rank {rank}", {"max_rank": -(-rank // 2)}
                allows = f"at most {2 * self.max_rank} (max_rank {self.max_rank})"
                raise refusal("method.name", asks, allows, dict(change), WHOLE)
        limits = self._limits(method)
        if limits:
            allows = " and ".join(f"{name} {limit}" for name, limit in limits.items())
            asks = f"asks for {method.name}, whose rank has no limit"
            raise refusal("method.name", asks, allows, dict.fromkeys(limits), _lost(method))
        if rows is not None and self.max_rank is not None and rows > self.max_rank:
            asks, allows = f"asks for {rows} rows{_projected(spec)}", f"at most {self.max_rank} (max_rank)"
            raise refusal(method.rank_field, asks, allows, {"max_rank": rows}, MORE_ROWS, owner="a lower one")

    def _limits(self, method: MethodSpec) -> dict[str, int]:
        """Return the limits that refuse a method without a rank of its own; whole gradients have their layer's."""
        if method.whole:
            return {}
        limits = {"max_rank": self.max_rank, "rows_per_rank": self.rows_per_rank}
        return {name: limit for name, limit in limits.items() if limit is not None and method.most_rows is None}


EVERYTHING = Policy(
    keyed_folds=True,
    min_rows=1,
    rows_per_rank=None,
    methods=tuple(METHODS),
    unreduced_factors=True,
    accept_replica=None,
    pretrained=None,
    min_sites=1,
    min_level=MinLevel(count=1),
    largest_share=1,
    retain=True,
)  # for sites of one owner, whose data need no protection from one another


def _lost(method: MethodSpec) -> str:
    """Return what a method lets out whose rank has no limit, or which reduces nothing."""
    if not method.sends_rows_as_they_are:
        return method.lets_out or WHOLE
    return f"what each sample puts into a layer, of the first the raw data, to {method.sends_rows_as_they_are}"


def largest_whole(plan: Plan) -> tuple[str, int]:
    """Return the layer whose gradient is sent whole and has the largest rank, and that; ("", 0) where none is."""
    whole = [(min(route.matrix), route.name) for route in plan.routes if route.dense]
    rank, name = max(whole, key=lambda one: one[0], default=(0, ""))
    return name, rank


def most_units(plan: Plan) -> tuple[str, int]:
    """Return the layer whose gradient is sent whole and tells most units apart, and how many; ("", 0) where none is."""
    each = [(r.matrix[0] if r.linear else min(r.matrix), r.name) for r in plan.routes if r.dense]
    units, name = max(each, key=lambda one: one[0], default=(0, ""))
    return name, units


def rows_sent(spec: RunSpec) -> int | None:
    """Return how many rows of a layer a run sends at most, projections among them; None if that has no limit."""
    return _with_projections(spec, spec.method.most_rows)


def fewest_rows_sent(spec: RunSpec) -> int | None:
    """Return with how few rows of a layer a run can do, projections among them; None if nobody can say."""
    return _with_projections(spec, spec.method.fewest_rows)


def _with_projections(spec: RunSpec, rows: int | None) -> int | None:
    return None if rows is None else rows + spec.training.sends_projections


def refusal(
    field: str,
    asks: str,
    allows: str,
    change: dict[str, object],
    lets_out: str,
    *,
    code: str = "policy-refuses",
    owner: str = "",
) -> PolicyError:
    """Return the error that says what a run asks, and what a policy allows.

    Then what the run's owner could change, and only then which line of the policy would, and what that lets out.
    """
    lines = " and ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in change.items())
    lets = "lets" if len(change) == 1 else "let"
    sentence = (
        f"the run {asks}, but this site's policy allows {allows}{f', which {owner} would respect' if owner else ''}; "
    )
    sentence += f"{lines} in its policy {lets} out {lets_out}"
    return PolicyError(field, sentence, change=change, code=code, lets_out=lets_out)


def refusals(check: Callable[[Policy], object], policy: Policy) -> list[PolicyError]:
    """Return all refusals of a policy: each as if those before it were mended."""
    found = list[PolicyError]()
    while True:
        try:
            check(policy)
        except PolicyError as error:
            found.append(error)
            mended = policy.mended(error.change)
            if mended == policy:
                return found
            policy = mended
        else:
            return found


def refuse_together(checks: Mapping[str, Callable[[Policy], object]], policies: Mapping[str, Policy]) -> None:
    """Check every site's policy, and refuse once: what is mended would else be refused for the next line, or site.

    Args:
        checks: raise a policy's first refusal, by site.
        policies: by site.

    Raises:
        PolicyError: the first refusal, below which all are quoted if there are several.
    """
    found = list[PolicyError]()
    for site, check in checks.items():
        for error in refusals(check, policies[site]):
            error.site = site
            found.append(error)
    if found:
        if len(found) > 1:
            found[0].quoted = tuple(f"{error.site}: {error}" for error in found)
        raise found[0]


def _fewer_per_row(samples: int, rows: int) -> dict[str, object]:
    """Return the line that lets out so many rows of a step of so many samples."""
    return {"rows_per_rank": samples // rows or None}


def _projected(spec: RunSpec) -> str:
    return ' (one for "second_moment": "factored")' if spec.training.sends_projections else ""


def _steps(spec: RunSpec, batches: str) -> str:
    """Return what an owner could ask for so that steps are of more samples."""
    ways = [batches]
    if isinstance(spec.evaluation, KFold):
        ways.append("fewer folds")
    if spec.training.validation:
        ways.append("no validation")
    return " or ".join((", ".join(ways[:-1]) or ways[0], ways[-1])[: len(ways)])
