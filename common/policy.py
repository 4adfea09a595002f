"""A site's policy: the hospital's own limits, which neither the spec nor the aggregator can change.

A run is checked against it before any data are read, and by the number of samples before anything is sent. Allowed
model factories are not part of it, but in `allow_factories` of the site's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.methods import METHODS, UNUSABLE
from rankdad.common.numbers import PositiveInt
from rankdad.common.spec.model import Sha256
from rankdad.common.spec.table_schema import Column

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[*METHODS, *UNUSABLE]
FILE = "policy.json"  # written by `split`, `simulate` and `provision`


class MinLevel(Part):
    """Least number of patients with a level, if any patient has it."""

    count: PositiveInt = 3
    """Number of patients."""
    by: Literal["site", "part"] = "site"
    """Whether they are counted at the whole site, or in each part."""


def _counted(given: object) -> object:
    return {"count": given} if isinstance(given, int) else given


class Policy(Part):
    """A site's limits on what runs may read, send and load.

    The defaults allow sums and reductions over enough samples.
    """

    min_rows: PositiveInt = 8
    """Least number of samples behind anything that leaves the site in one round; if the data have groups, such as
    patients, least number of groups. A smaller validation or test set is left out of the evaluation; a run with smaller
    steps is refused."""
    rows_per_rank: PositiveInt | None = 4
    """Least number of samples in a step for each row that is sent of a layer; null for no limit. With few samples
    rank-dad sends fewer rows than the spec allows; other methods are refused. A gradient that is sent whole, because
    that is smaller or because the method is dsgd, may have twice as many units, so that no sum or difference of units
    is nearly all one patient's; of more units rank-dad sends a matrix of so few rows. With local steps, the limit
    applies to each batch. With 4, a table has at least two patients for each column; a step sends no more numbers than
    it has cells, so rank-dad sends fewer rows of a wide network; at most half as many steps as patients are sent at
    nearly the same weights; and texts differ at 32 or more places. Larger numbers require more samples. This makes it
    hard to separate samples, not impossible."""
    max_rank: PositiveInt | None = None
    """Largest number of rows that are sent of a layer's gradient; null for no limit. If it is set, methods that send
    gradients of any rank are refused. A dense gradient, because that is smaller or because the method is dsgd, may have
    twice this rank."""
    methods: tuple[MethodName, ...] = ("dsgd", "rank-dad")
    """Methods that may run here. With powersgd, the aggregator chooses directions for measuring gradients; top-k sends
    the largest entries of a gradient of any rank."""
    unreduced_factors: bool = False
    """Whether dad and edad, if `methods` lists them, may send unreduced factors: each single sample's input to a layer,
    which for the first layer is the raw data."""
    keyed_folds: bool = False
    """Whether folds follow from hashes of keys, which anyone can compute, so that a person at two hospitals is in one
    fold; the difference of two results may then reveal one patient. false: patients are assigned once, by a secret of
    the site, to at most ten parts of at least `min_rows`, and later patients to further parts; every fold, validation
    and test set is a union of parts, so that no difference of results is about fewer patients."""
    min_level: Annotated[MinLevel, BeforeValidator(_counted)] = MinLevel()
    """Least number of patients with a level, a class, a missing value or a value that differs from all others', if any
    has it. Rarer ones are replaced by usual values before anything is computed. A number applies to the whole site;
    {"count": 3, "by": "part"} to each part."""
    site_coefficients: bool = True
    """Whether a linear model's coefficients of this site's own rows, with their standard errors, may leave it: for the
    report, never those of fewer than three patients a column, nor of a fit that fewer than `min_rows` are behind."""
    runs_per_day: PositiveInt | None = None
    """Largest number of runs of one owner, or if owners are unknown of one aggregator, within 24 hours. Refused runs
    count, because a refusal is also an answer. null for no limit."""
    runs: PositiveInt | None = None
    """Largest number of runs of one owner or aggregator in total."""
    max_upload: PositiveInt | None = None
    """Largest number of bytes sent in one step; null for no limit."""
    accept_replica: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = 1e-3
    """Largest distance, relative to their size, of the weights that the aggregator gives the site after a comparison
    from the site's own; null for any. With a number, a site with a checkpoint accepts no other weights; with 0, a site
    that has lost its checkpoints accepts none either."""
    pretrained: tuple[Sha256, ...] | None = ()
    """sha256 digests of files with pretrained weights that a run may start from (`model.pretrained`); null for any."""
    vocabularies: tuple[Sha256 | PositiveInt, ...] | None = ()
    """Vocabularies beyond bytes that a run's texts may have: the sha256 of a tokenizer's file, or for other readers the
    number of tokens (`data.tokens`); null for any. An embedding's gradient has a row for each token of a step's texts,
    and a row of a rare token, such as a surname, names it. Tokens that fewer than `min_rows` patients of a batch have
    become the unknown token, and places where fewer have any become padding; of a byte, as many are enough as share a
    step (the smaller of `min_level` and `min_rows`)."""
    min_sites: PositiveInt = 2
    """Least number of sites in every step and round, of regions as well as of the run. A run that could continue with
    fewer, by its quorum, its overrides or a left-out site, is refused."""
    files: tuple[str, ...] | None = None
    """Files of the data folder that a run may read, by name or pattern; "." is the folder itself; null for any. A
    pattern of the run has to be listed literally."""
    columns: tuple[Column, ...] | None = None
    """Columns of tables that a run may read for any use, by name or pattern; null for any."""
    group: Column | None = None
    """Column that identifies a person here; a run's `data.group` has to be the same. null leaves this to the run, which
    may treat a patient's visits as different patients."""
    largest_share: Annotated[float, Field(gt=0, le=1)] = 0.333
    """Without `keyed_folds`: largest share of a part's rows that one person may have. Further rows are left out, the
    same ones in every run. With 1 none are, and sums of a part may be nearly one person's."""
    retain: bool = False
    """Whether the aggregator may keep this site's contributions beyond a run's end, if all other sites allow it, too.
    false: it deletes them, and the site gets a receipt."""
    strata: tuple[Column, ...] | None = None
    """Without `keyed_folds`: columns to balance between parts, if the run reads them as input or outcome; null, or if
    it reads none of them, for the run's outcome."""

    @classmethod
    def read(cls, path: str | None) -> Policy:
        """Read a site's policy; without a file, return the defaults.

        Raises:
            UserError: the file is unreadable, or a field is wrong.
        """
        return cls() if path is None else validate(cls, load_json(path), file=path)

    def mended(self, change: Mapping[str, object]) -> Policy:
        """Return the policy with the lines of a refusal changed."""
        lines = Policy.model_validate(change)
        return self.model_copy(update={line: getattr(lines, line) for line in change})

    def text(self) -> str:
        """Return the policy as the text of a file with every line."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    def others(self) -> dict[str, tuple[object, object]]:
        """Return the lines that differ from the default, with both values."""
        own, default = self.model_dump(mode="json"), Policy().model_dump(mode="json")
        return {line: (own[line], default[line]) for line in own if own[line] != default[line]}

    @property
    def sharing(self) -> int:
        """Least number of patients that share a step: no patient has a larger share of what it sends."""
        return min(self.min_rows, self.min_level.count)

    def rank(self, samples: int) -> int | None:
        """Return how many rows of a layer a step of this many samples may send; None for no limit.

        The projections for a factored second moment count as one row.
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
    vocabularies=None,
    min_sites=1,
    min_level=MinLevel(count=1),
    largest_share=1,
    retain=True,
)  # for sites of one owner, whose data need no protection from one another
