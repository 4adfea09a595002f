"""Small forms of the platform's, and members' files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.coinstac.app import App, Form, Mapped

MEMBER = {"source": "member", "label": "A"}
OWNER = {"source": "owner", "label": "A"}


def compspec(image: str = "example/a", remote: str | None = None, **inputs: Any) -> dict[str, Any]:
    service = {"type": "docker", "command": ["unused"]}
    keys = ("id", "name", "description", "repository", "version")
    return {
        "meta": {**dict.fromkeys(keys, "a"), "compspecVersion": 2},
        "computation": {
            **service,
            "dockerImage": image,
            "remote": {**service, "dockerImage": remote or image},
            "input": inputs,
            "output": {},
            "display": {"type": "table"},
        },
    }


def form(typed: Mapping[str, Any] | None = None, **inputs: Any) -> Form:
    return App(compspec(**inputs)).consortium(typed)


def member(kind: str, given: Any, **more: Any) -> Mapped:
    """What is saved of one field of a member's."""
    return form(a={**MEMBER, "type": kind, "default": [], **more}).member("m", {"a": given})


def files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return [folder / name for name in names]


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
