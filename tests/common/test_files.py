"""Files are written whole or not at all, and names do not lead out of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankdad.common.errors import UserError
from rankdad.common.files import is_within, write_whole


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "out/a", "a\0b", "loop/a"])
def test_a_name_that_leads_out_or_nowhere_is_not_within(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    assert not is_within(folder / name, folder)
    assert is_within(folder / "sub" / ".." / "a", folder)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new folder" / "a.json"
    write_whole(path, "old", private=True)
    assert path.stat().st_mode & 0o777 == 0o600

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"a\.json: cannot be written: No space left on device"):
        write_whole(path, "new")
    assert path.read_text() == "old"
