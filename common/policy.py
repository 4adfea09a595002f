"""A site's policy: limits that a hospital sets for itself and that neither the spec nor the aggregator can change.

A run is checked against it before any data are read, and by the number of samples before anything is sent. Which model
factories may run is not said here but in `allow_factories` of the site's own file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.methods import METHODS
from rankdad.common.numbers import PositiveInt
from rankdad.common.spec.model import Sha256
from rankdad.common.spec.table_schema import Column

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
FILE = "policy.json"  # what `split`, `simulate` and `provision` call it


class MinLevel(Part):
    """How many patients a level has at least, where it has any."""

    count: PositiveInt = 3
    """Patients."""
    by: Literal["site", "part"] = "site"
    """Of what: of all patients of the site, or of each part."""


def _counted(given: object) -> object:
    return {"count": given} if isinstance(given, int) else given


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
    report, never those of fewer than three patients a column, nor of a fit that fewer than `min_rows` are behind."""
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

    @property
    def sharing(self) -> int:
        """How many patients share a step at least: nobody has more than one part of so many of what it sends."""
        return min(self.min_rows, self.min_level.count)

    def rank(self, samples: int) -> int | None:
        """Return how many rows of a layer a step of so many samples may send, whatever the spec; None is no limit.

        The projections for a factored second moment are one of them.
        """
        return None if self.rows_per_rank is None else samples // self.rows_per_rank


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
