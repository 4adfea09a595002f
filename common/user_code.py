"""User-defined functions, named "package.module:function", imported only if the caller allows them.

Code of an installed distribution is allowed with its version: "package.module:function@distribution==1.2.3".
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import Distribution, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import Field

from rankdad.common.errors import PolicyError, SpecError, one_line

NAME = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
FunctionName = Annotated[str, Field(pattern=rf"^{NAME}$")]
PERMITTED = rf"^{NAME}(@[A-Za-z0-9][\w.-]*==(\*|[\w.!+-]+))?$"
Permitted = Annotated[str, Field(pattern=PERMITTED)]
ANY = "*"  # in place of a version
MOST, LONGEST = 10, 127  # functions that a run loads; characters of a distribution's name or version


@dataclass(frozen=True)
class CodeOrigin:
    """The installed distribution of a function; its fields are empty for a file in a folder."""

    name: FunctionName
    distribution: str = ""
    version: str = ""

    def __str__(self) -> str:
        """Return the distribution and version as text."""
        return f"{self.distribution} {self.version}" if self.distribution else "no installed package"

    @property
    def entry(self) -> str:
        """Entry of an allow-list for exactly this version."""
        return f"{self.name}@{self.distribution}=={self.version}" if self.distribution else self.name


def permit(name: str, allowed: Collection[str], field: str) -> CodeOrigin:
    """Return the origin of a function if the caller allows it, without importing its module.

    Args:
        name: "package.module:function".
        allowed: entries of an allow-list, with versions for installed distributions.
        field: of the spec, for errors.

    Raises:
        PolicyError: the caller does not allow it, or allows another version.
    """
    listed = [package for entry in allowed for own, _, package in [entry.partition("@")] if own == name]
    if not listed:
        raise PolicyError(
            field,
            f"{name} is not allowed here: read its code, then pass --allow-factory {name}, or list it under "
            "allow_factories in a site's file",
            code="factory-not-allowed",
        )
    found = origin(name)
    if not any(_is_listed(found, package) for package in listed):
        expected = " or ".join(package or "no installed package" for package in listed)
        any_version = f", or {name}@{found.distribution}=={ANY} for any version" * bool(found.distribution)
        raise PolicyError(
            field,
            f"{name} comes from {found} here, expected {expected}: install that, or read this code and list it as "
            f"{found.entry}{any_version}",
            code="factory-version-differs",
        )
    return found


def _is_listed(found: CodeOrigin, package: str) -> bool:
    name, _, version = package.partition("==")
    return _plain(name) == _plain(found.distribution) and version in (ANY if name else "", found.version)


def _plain(name: str) -> str:
    """Return a distribution's normalised name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pack(functions: Sequence[CodeOrigin]) -> bytes:
    """Encode the origins of functions, for hello."""
    return " ".join(one.entry for one in functions).encode()


def unpack(data: bytes) -> tuple[CodeOrigin, ...]:
    """Decode the origins of functions from the network.

    Raises:
        ValueError: the bytes are invalid.
    """
    entries = data.decode("ascii").split()
    if len(entries) > MOST or not all(re.fullmatch(PERMITTED, one) for one in entries):
        raise ValueError(f"expected at most {MOST} functions, each with its package and version")
    parts = [re.split("@|==", one) for one in entries]
    if any(len(text) > LONGEST for _, *package in parts for text in package):
        raise ValueError(f"a package's name or version has more than {LONGEST} characters")
    return tuple(CodeOrigin(*own) for own in parts)


def by_site(code: Mapping[str, Collection[CodeOrigin]]) -> list[dict[str, Any]]:
    """Return each distribution and version once, with its sites.

    Args:
        code: by site.
    """
    every = sorted({one for own in code.values() for one in own}, key=str)
    return [{**asdict(one), "sites": [site for site, own in code.items() if one in own]} for one in every]


def origin(name: str) -> CodeOrigin:
    """Return the installed distribution that Python would find for a function's module, without importing it.

    A file that shadows a distribution's, such as one in the current folder, has no distribution.
    """
    _search_here()
    module, _, _ = name.partition(":")
    top = _top(module)
    try:
        found = None if top == "rankdad" else find_spec(top)  # its version is in hello
    except (ImportError, ValueError):
        found = None
    if found is None:
        return CodeOrigin(name)
    places = [Path(place).resolve() for place in found.submodule_search_locations or [found.origin or ""]]
    for one in dict.fromkeys(_providers(tuple(sys.path)).get(top, ())):
        provider = distribution(one)
        if _provides(provider, module, places):
            told = (re.sub(r"[^a-zA-Z0-9_.!+-]", "-", text)[:LONGEST] for text in (one, str(provider.version)))
            return CodeOrigin(name, *told)
    return CodeOrigin(name)


@lru_cache(maxsize=1)  # it takes most of a second
def _providers(_: tuple[str, ...]) -> Mapping[str, list[str]]:
    return packages_distributions()


def _provides(provider: Distribution, module: str, places: list[Path]) -> bool:
    """Return whether a distribution has a module's file, below one of these folders of its top-level package."""
    stem = module.replace(".", "/")
    files = [file for file in provider.files or () if str(file).startswith((f"{stem}.", f"{stem}/__init__."))]
    located = [Path(str(provider.locate_file(file))).resolve() for file in files]
    checkout = _checkout(provider)
    if checkout is not None:
        located += [place for place in places if place.is_relative_to(checkout)]
    return any(file.is_relative_to(place) for file in located for place in places)


def _checkout(provider: Distribution) -> Path | None:
    """Return the folder of an editable distribution."""
    written = json.loads(provider.read_text("direct_url.json") or "{}")
    if not written.get("dir_info", {}).get("editable"):
        return None
    return Path(url2pathname(urlsplit(written["url"]).path)).resolve()


def resolve(name: str, allowed: Collection[str], field: str) -> Callable[..., Any]:
    """Import a function that a spec names.

    Args:
        name: "package.module:function".
        allowed: entries of an allow-list, as for `permit`.
        field: of the spec, for errors.

    Raises:
        PolicyError: the caller does not allow it; nothing is imported then.
        SpecError: it cannot be imported, or is no function.
    """
    permit(name, allowed, field)
    module_name, _, function_name = name.partition(":")
    try:
        function: object = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:
        ours = "rankdad" in (_top(module_name), _top(getattr(error, "name", None) or ""))
        advice = "; rankdad is this program's own package: give yours another name" if ours else ""
        raise SpecError(
            field, f"{name} cannot be imported: {one_line(error)}{advice}", code="factory-cannot-be-imported"
        ) from error
    if not callable(function):
        raise SpecError(
            field, f"{name} is {type(function).__name__}, expected a function", code="factory-not-a-function"
        )
    return function


def _top(module: str) -> str:
    return module.partition(".")[0]


def _search_here() -> None:
    """Add the current folder to Python's search path."""
    here = str(Path.cwd())
    if here not in sys.path:  # missing for console scripts, unlike `python -m`
        sys.path.insert(0, here)
