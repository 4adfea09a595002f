"""What a site has followed it follows again, started another time, and nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from rankdad.common.errors import ProtocolError, UserError
from rankdad.local.drivers.followed import Followed


def test_a_site_goes_by_the_same_updates_again(tmp_path: Path) -> None:
    with closing(Followed(tmp_path / "run")) as first:
        assert not first.again
        for round_ in (0, 1, 4):
            first.note(round_, b"update %d" % round_)
    with closing(Followed(tmp_path / "run")) as second:
        assert second.again
        second.note(1, b"update 1")
        second.note(3, b"one that it was not there for")
        with pytest.raises(ProtocolError) as caught:
            second.note(4, b"another update")
        assert (caught.value.code, caught.value.field) == ("update-differs", "r")
        second.note(4, b"update 4")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError) as caught:
        Followed(tmp_path / "run")
    assert (caught.value.code, caught.value.field) == ("cannot-write", "output")
