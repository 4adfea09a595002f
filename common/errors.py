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
import re
from collections.abc import Mapping
from pathlib import Path

QUOTED = r"'(\\.|[^'\\])*'|\"(\\.|[^\"\\])*\""  # as repr writes it
HELD = r"holds [-+.\de]+(?= in row)"
CODE = r"^[a-z0-9]+(-[a-z0-9]+)*$"  # as every error's is written
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


def one_line(error: BaseException) -> str:
    """Return an unexpected error's kind and words on one line."""
    words = " ".join(str(error).split())
    return visible(f"{type(error).__name__}: {words}" if words else type(error).__name__)


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
    """

    exit_code = 1
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
    def public_message(self) -> str:
        """What other sites may hear of it."""
        return str(self)


class UserError(RankdadError):
    """A mistake in what the caller passed in."""

    exit_code = 2


class SpecError(UserError):
    """A field of a JSON file does not hold what it should."""

    def __init__(self, field: str, problem: str, *, code: str, file: str | Path | None = None) -> None:
        sentence = f"{file}: {field}: {problem}" if file else f"{field}: {problem}"
        super().__init__(sentence, code=code, field=field, file=file or "")


class DataError(UserError):
    """A data file cannot be used.

    Args:
        path: of the file.
        problem: what is wrong, with what it holds in quotes.
        code: what kind of error it is.
        field: of the specification that asks for what the file does not hold, or its column.
        row: of the file.
        place: where in the file, such as row and column.
        called: what others hear in place of the file's name, where that is a subject's.
        hint: what others do not hear, since it comes from the file.
    """

    def __init__(
        self,
        path: str | Path,
        problem: str,
        *,
        code: str,
        field: str = "",
        row: int | None = None,
        place: str = "",
        called: str = "",
        hint: str = "",
    ) -> None:
        self.path, self.problem = Path(path), f"{place}: {problem}" if place else problem
        kept = re.sub(HELD, "holds a value", re.sub(QUOTED, "a value", problem))  # a place may hold an apostrophe
        self._told = f"{called or self.path.name}: {place}{': ' * bool(place)}{kept}"
        super().__init__(f"{path}: {self.problem}{hint}", code=code, field=field, file=path, row=row)

    @property
    def public_message(self) -> str:
        """What other sites may hear of it: no folder, and nothing that is quoted from the file."""
        return self._told


class PolicyError(UserError):
    """The spec asks for something that this site does not allow.

    Args:
        field: of the spec.
        problem: what it asks for, what the policy allows, and which line of it would have to change.
        code: what kind of error it is.
        allows: what the policy allows, in words.
        change: lines of the policy that refuse it, as they would let it in.
    """

    def __init__(
        self, field: str, problem: str, *, code: str, allows: str = "", change: Mapping[str, object] | None = None
    ) -> None:
        self.problem, self.allows, self.change = problem, allows, dict(change or {})
        super().__init__(f"{field}: {problem}", code=code, field=field)


class FewSamplesError(PolicyError):
    """A site has fewer samples for a step, or for sums, than its policy asks for."""

    @classmethod
    def of(cls, error: PolicyError, *, code: str, besides: str = "", allows: str = "") -> FewSamplesError:
        """Return a policy's refusal as one whose numbers are the site's business.

        Args:
            error: the refusal.
            code: what kind of error it is.
            besides: what else refuses.
            allows: what others may hear of that.
        """
        problem, told = error.problem + f"; {besides}" * bool(besides), error.allows + f"; {allows}" * bool(allows)
        return cls(error.field, problem, code=code, allows=told, change=error.change)

    @property
    def public_message(self) -> str:
        """What other sites may hear of it: the field of the spec, what the policy allows, and no count."""
        allows = f", which allows {self.allows}" if self.allows else ""
        return f"{self.field}: it has fewer samples here than its policy asks for{allows}"


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

    def __init__(self, status: int, reason: str, *, code: str, field: str = "", site: str = "") -> None:
        self.status = status
        super().__init__(visible(reason), code=code, field=field, site=site)


class NonFiniteError(RankdadError):
    """A loss or a gradient holds NaN or infinity.

    Args:
        what: the loss, or the gradient of which parameter.
    """

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

    def __init__(self, site: str, reason: str, *, code: str, field: str = "") -> None:
        self.reason = visible(reason)
        super().__init__(f"{site} could not go on: {self.reason}", code=code, field=field, site=site)
