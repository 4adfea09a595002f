"""Errors with a code, a field and a sentence.

RankdadError                  exit 1
├── UserError                 exit 2: the caller can correct it
│   ├── SpecError             a field of a JSON file: its name, its value, what was expected
│   ├── DataError             a data file: its path, what is wrong, what was expected
│   ├── PolicyError           the site's policy does not allow the run
│   │   └── FewSamplesError   because of its number of samples, which is private
│   └── UnreachableError      the aggregator does not answer
├── ProtocolError             a refused message: an HTTP status and a reason
├── NonFiniteError            NaN or infinity in a loss or gradient: the parameter's name
├── ModelError                the user's model raised: its own words
└── RunFailedError            the run ended because of one site: its name and its reason
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

FAILED, REFUSED, PARTLY, INTERRUPTED = 1, 2, 3, 128
STATUSES = {  # with which commands end
    "0": "all was done",
    f"{FAILED}": "a run or process failed, a check found a fault, or a question was answered no",
    f"{REFUSED}": "nothing was begun, or it stopped until something is mended: a wrong command line, file, table or "
    "policy, a refusal by a site's policy, no answer at an address, a full disk",
    f"{PARTLY}": "done, but not for all: `ask` where a site would refuse or has not answered, `predict` where rows are "
    "refused",
    f"{INTERRUPTED} + N": "signal N stopped it, such as 130 after Ctrl-C and 143 after SIGTERM; a run goes on when "
    "it is started again",
}
CODE = r"^[a-z0-9]+(-[a-z0-9]+)*$"  # as every error's is written
RECOVERABLE = frozenset({"cannot-write", "log-out-of-reach", "sample-changed"})  # mended while the run waits
ENDED = "stopped"  # of the aggregator: a hospital or the owner has ended the run
DATA_REFUSED = "data-refused"  # what others hear in place of a code that tells of data
REASON_CHARACTERS = 500  # longest reason that travels: enough for a sentence, too little for data


def visible(text: str, most: int = REASON_CHARACTERS) -> str:
    """Return untrusted text safe for display: on one line, truncated, with control characters escaped.

    Characters that change the direction of writing or are invisible are escaped, too.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 sample, 2,000 samples."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int) -> str:
    """Join names for a sentence, with at most `most` of them."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def one_line(error: BaseException) -> str:
    """Return the type and the message of an unexpected error, on one line."""
    words = " ".join(str(error).split())
    return visible(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def public_reason(error: BaseException) -> str:
    """Return the part of an error that others may read; for unexpected ones the type, since the text may quote data."""
    if isinstance(error, RankdadError):
        return error.public_message
    return f"an unexpected error ({type(error).__name__}); see the site's log"


@contextmanager
def naming(says: Callable[[str], bool], *, alike: bool = False) -> Iterator[None]:
    """Hide the sentences of errors in reading files from others, and their fields unless the spec has them.

    This applies to errors of any class: a field may be a file's header, and a pattern in a spec may match headers.

    Args:
        says: returns whether the spec contains a field.
        alike: whether to hide all differences between these errors. With runs that exclude all but one patient, the
            first of two errors would reveal what that patient has.
    """
    try:
        yield
    except RankdadError as error:
        error.is_public, error.field_is_public = False, not alike and says(error.field)
        error.code_is_public = not alike
        raise


class RankdadError(Exception):
    """An error that ends a command with a sentence instead of a traceback.

    Args:
        sentence: what is wrong, what was expected, and what to do.
        code: kind of error, in words-with-hyphens: stable, for programs and tests.
        field: of the spec, the message or the command line; "" if there is none.
        site: where it occurred, if known.
        file: with the mistake.
        row: of the file, as counted in the sentence.

    Attributes:
        quoted: further lines, such as the end of a log.
        is_public: whether others may read the sentence: it does not describe a site's data or files.
        field_is_public: whether they may read the field.
        code_is_public: whether they may read the code.
    """

    exit_code = FAILED
    is_public = False
    field_is_public = True
    code_is_public = True
    quoted: tuple[str, ...] = ()

    def __init__(
        self,
        sentence: str,
        *,
        code: str,
        field: str = "",
        site: str = "",
        file: str | Path = "",
        row: int | None = None,
    ) -> None:
        super().__init__(sentence)
        self.code, self.field, self.site, self.file, self.row = code, field, site, str(file), row

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling between processes: the constructor has other arguments than the exception."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @property
    def is_recoverable(self) -> bool:
        """Whether the process, started again, continues its run, once a person has mended the cause."""
        return self.code in RECOVERABLE

    @property
    def public_message(self) -> str:
        """Return the part of it that other sites, the aggregator and the run's owner may read."""
        if self.is_public:
            return str(self)
        return f"{self.public_field}{': ' * bool(self.public_field)}{self.public_code} (see the site's log)"

    @property
    def public_field(self) -> str:
        """Return the field, if others may read it."""
        return self.field if self.field_is_public else ""

    @property
    def public_code(self) -> str:
        """Return the code, if others may read it."""
        return self.code if self.code_is_public else DATA_REFUSED


class UserError(RankdadError):
    """A mistake in what the caller passed in."""

    exit_code = REFUSED


class SpecError(UserError):
    """A field of a JSON file has a wrong value; a named file is private."""

    def __init__(self, field: str, problem: str, *, code: str, file: str | Path | None = None) -> None:
        sentence = f"{file}: {field}: {problem}" if file else f"{field}: {problem}"
        super().__init__(sentence, code=code, field=field, file=file or "")
        self.is_public = self.field_is_public = not file


class DataError(UserError):
    """A data file cannot be used.

    Args:
        path: of the file.
        problem: what is wrong.
        code: kind of error.
        field: of the spec that requires it, or a column of the file.
        row: of the file.
        place: in the file, such as row and column.
        hint: end of the sentence.
    """

    field_is_public = False  # readers do not know whether a field is from the spec; see `naming`

    def __init__(
        self,
        path: str | Path,
        problem: str,
        *,
        code: str,
        field: str = "",
        row: int | None = None,
        place: str = "",
        hint: str = "",
    ) -> None:
        self.path, self.problem = Path(path), f"{place}: {problem}" if place else problem
        super().__init__(f"{path}: {self.problem}{hint}", code=code, field=field, file=path, row=row)


class PolicyError(UserError):
    """The site's policy does not allow what the run requires.

    Args:
        field: of the spec.
        problem: the request, the limit, and the policy line that would have to change.
        code: kind of error.
        change: policy lines that would allow it.
        lets_out: what these would disclose.
    """

    is_public = True

    def __init__(
        self,
        field: str,
        problem: str,
        *,
        code: str,
        change: Mapping[str, object] | None = None,
        lets_out: str = "",
    ) -> None:
        self.problem, self.change, self.lets_out = problem, dict(change or {}), lets_out
        super().__init__(f"{field}: {problem}", code=code, field=field)

    def reword(self, problem: str, change: Mapping[str, object], lets_out: str) -> None:
        """Have it name other lines."""
        self.problem, self.change, self.lets_out = problem, dict(change), lets_out
        self.args = (f"{self.field}: {problem}",)


class FewSamplesError(PolicyError):
    """A site has fewer samples for a step, or for sums, than its policy requires."""

    is_public = False

    @classmethod
    def of(cls, error: PolicyError, *, code: str, besides: str = "") -> FewSamplesError:
        """Return a policy's refusal as one whose numbers are private.

        Args:
            error: the refusal.
            code: kind of error.
            besides: another reason.
        """
        problem = error.problem + f"; {besides}" * bool(besides)
        return cls(error.field, problem, code=code, change=error.change, lets_out=error.lets_out)


class UnreachableError(UserError):
    """The aggregator did not answer in time."""

    def __init__(self, sentence: str, *, code: str = "unreachable", field: str = "") -> None:
        super().__init__(sentence, code=code, field=field)


class ProtocolError(RankdadError):
    """A message is refused.

    Args:
        status: HTTP status of the answer.
        reason: one line that names the field.
        code: kind of error.
        field: of the message.
        site: sender.
    """

    is_public = True

    def __init__(self, status: int, reason: str, *, code: str, field: str = "", site: str = "") -> None:
        self.status = status
        super().__init__(visible(reason), code=code, field=visible(field), site=site)


class NonFiniteError(RankdadError):
    """A loss or a gradient holds NaN or infinity.

    Args:
        what: the loss, or the gradient of a parameter.
    """

    is_public = True

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} holds NaN or infinity: lower the learning rate or clip", code="not-finite", field=what
        )


class ModelError(RankdadError):
    """The user's model raised an error in training or evaluation."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the model raised {one_line(error)}", code="model-raised")


class RunFailedError(RankdadError):
    """The run ended because a site failed.

    Args:
        site: its name.
        reason: of the site.
        code: of the error at the site.
        field: of the error at the site.
    """

    is_public = True

    def __init__(self, site: str, reason: str, *, code: str, field: str = "") -> None:
        self.reason = visible(reason)
        says = "the run was ended" if (site, code) == ("aggregator", ENDED) else f"{site} failed"
        super().__init__(f"{says}: {self.reason}", code=code, field=field, site=site)
