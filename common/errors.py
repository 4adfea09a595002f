"""Errors that a person or another process reads.

RankdadError                  exit 1
├── UserError                 exit 2: something that the caller can put right before anything ran
│   ├── SpecError             a field of a JSON file: its name, its value, what was expected
│   ├── DataError             a data file: its path, what is wrong, what was expected
│   ├── PolicyError           the spec asks for what this site does not allow
│   │   └── FewSamplesError   by the number of its samples, which is the site's business
│   └── UnreachableError      nobody answers at the aggregator's address
├── ProtocolError             a message that has to be refused: an HTTP status and a reason
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
    f"{FAILED}": "a run or a process could not go on, a check found a fault, or a question was answered no",
    f"{REFUSED}": "nothing was begun, or it stopped until something is mended: a wrong command line, file, table or "
    "policy, a refusal by a site's policy, no answer at an address, a full disk",
    f"{PARTLY}": "done, but not for all: `ask` where a site would refuse or has not answered, `predict` where rows are "
    "refused",
    f"{INTERRUPTED} + N": "signal N stopped it, such as 130 after Ctrl-C and 143 after SIGTERM; a run goes on when "
    "it is started again",
}
CODE = r"^[a-z0-9]+(-[a-z0-9]+)*$"  # as every error's is written
RECOVERABLE = frozenset({"cannot-write", "log-out-of-reach"})  # a disk that a person mends while the run waits
DATA_REFUSED = "data-refused"  # what others hear in place of a code that tells of data
REASON_CHARACTERS = 500  # longest reason that travels: enough for a sentence, too little for data


def visible(text: str, most: int = REASON_CHARACTERS) -> str:
    """Return text that others have written as data: on one line, cut at a length, nothing in it acts on a terminal.

    Control characters, those that turn the direction of writing, and others that show nothing are escaped.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 sample, 2,000 samples."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(names: Sequence[str], most: int) -> str:
    """Return names in a sentence, the first of many."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def one_line(error: BaseException) -> str:
    """Return an unexpected error's kind and words on one line."""
    words = " ".join(str(error).split())
    return visible(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def public_reason(error: BaseException) -> str:
    """Return what others may hear of an error; of an unexpected one its kind, since its text may quote data."""
    if isinstance(error, RankdadError):
        return error.public_message
    return f"an unexpected error ({type(error).__name__}), of which its log says more"


@contextmanager
def naming(says: Callable[[str], bool], *, alike: bool = False) -> Iterator[None]:
    """Have errors in reading files tell others no sentence, and their field if the specification says it.

    Whatever class they are of: a field may be a file's header, and a pattern in a specification stands for headers.

    Args:
        says: whether the specification says a field.
        alike: whether others are to hear the same of all these errors. Of runs that leave all but one patient out,
            which of two errors comes first tells what that one has.
    """
    try:
        yield
    except RankdadError as error:
        error.is_public, error.field_is_public = False, not alike and says(error.field)
        error.code_is_public = not alike
        raise


class RankdadError(Exception):
    """Something that ends a command with a sentence instead of a traceback.

    Args:
        sentence: what is wrong, what was expected, and what to do.
        code: what kind of error it is, in words-with-hyphens: stable, so that programs and tests decide by it.
        field: of the specification, the message or the command line; empty where it is none's.
        site: whose it is, where that is known.
        file: that holds what is wrong.
        row: of the file, counted as the sentence counts.

    Attributes:
        quoted: lines that stand below the sentence, such as the end of a log.
        is_public: whether others may hear the sentence word by word: it says nothing of a site's data and files.
        field_is_public: whether they may hear the field.
        code_is_public: whether they may hear the code.
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
        """Travel between processes, whose constructor asks for other arguments than an exception keeps."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @property
    def is_recoverable(self) -> bool:
        """Whether the process, started again, continues its run, once a person has mended the disk."""
        return self.code in RECOVERABLE

    @property
    def public_message(self) -> str:
        """What other sites, the aggregator and the run's owner may hear of it."""
        if self.is_public:
            return str(self)
        return f"{self.public_field}{': ' * bool(self.public_field)}{self.public_code} (the site's log says more)"

    @property
    def public_field(self) -> str:
        """The field, if others may hear it."""
        return self.field if self.field_is_public else ""

    @property
    def public_code(self) -> str:
        """The code, if others may hear it."""
        return self.code if self.code_is_public else DATA_REFUSED


class UserError(RankdadError):
    """A mistake in what the caller passed in."""

    exit_code = REFUSED


class SpecError(UserError):
    """A field of a JSON file does not hold what it should; a file that is named is the site's own business."""

    def __init__(self, field: str, problem: str, *, code: str, file: str | Path | None = None) -> None:
        sentence = f"{file}: {field}: {problem}" if file else f"{field}: {problem}"
        super().__init__(sentence, code=code, field=field, file=file or "")
        self.is_public = self.field_is_public = not file


class DataError(UserError):
    """A data file cannot be used.

    Args:
        path: of the file.
        problem: what is wrong.
        code: what kind of error it is.
        field: of the specification that asks for what the file does not hold, or its column.
        row: of the file.
        place: where in the file, such as row and column.
        hint: that ends the sentence.
    """

    field_is_public = False  # a reader does not ask where it has it from; see `naming`

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
    """The spec asks for something that this site does not allow.

    Args:
        field: of the spec.
        problem: what it asks for, what the policy allows, and which line of it would have to change.
        code: what kind of error it is.
        change: lines of the policy that refuse it, as they would let it in.
        lets_out: what they would let out then.
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


class FewSamplesError(PolicyError):
    """A site has fewer samples for a step, or for sums, than its policy asks for."""

    is_public = False

    @classmethod
    def of(cls, error: PolicyError, *, code: str, besides: str = "") -> FewSamplesError:
        """Return a policy's refusal as one whose numbers are the site's business.

        Args:
            error: the refusal.
            code: what kind of error it is.
            besides: what else refuses.
        """
        problem = error.problem + f"; {besides}" * bool(besides)
        return cls(error.field, problem, code=code, change=error.change, lets_out=error.lets_out)


class UnreachableError(UserError):
    """Nobody answered at the aggregator's address within the time that the caller allowed."""

    def __init__(self, sentence: str, *, code: str = "unreachable") -> None:
        super().__init__(sentence, code=code)


class ProtocolError(RankdadError):
    """A message has to be refused.

    Args:
        status: HTTP status with which a server answers.
        reason: one line that names the field.
        code: what kind of error it is.
        field: of the message.
        site: that sent it.
    """

    is_public = True

    def __init__(self, status: int, reason: str, *, code: str, field: str = "", site: str = "") -> None:
        self.status = status
        super().__init__(visible(reason), code=code, field=field, site=site)


class NonFiniteError(RankdadError):
    """A loss or a gradient holds NaN or infinity.

    Args:
        what: the loss, or the gradient of which parameter.
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
    """The run ended because a site could not go on.

    Args:
        site: its name.
        reason: what it said.
        code: of the error at the site.
        field: that the error at the site is about.
    """

    is_public = True

    def __init__(self, site: str, reason: str, *, code: str, field: str = "") -> None:
        self.reason = visible(reason)
        super().__init__(f"{site} could not go on: {self.reason}", code=code, field=field, site=site)
