"""Files are written whole or not at all, and names do not lead out of a folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from errno import EDQUOT, ENOSPC, EROFS
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rankdad.common import files
from rankdad.common.data import npz
from rankdad.common.data.tokens import encoder_of
from rankdad.common.errors import DataError, UserError
from rankdad.common.files import (
    is_within,
    make_folder,
    naming_the_disk,
    open_private,
    warn_if_readable,
    write_whole,
)
from rankdad.common.logs import LogFile
from rankdad.common.models.weights import load_pretrained
from rankdad.common.run.checkpoints import digest_of
from rankdad.common.spec.model import Pretrained
from rankdad.common.spec.text import TextData, Tokenizer
from rankdad.common.tensors import read_tensors
from rankdad.local.agent.state import RunFolder
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.privacy.log_file import restore
from rankdad.remote.tables import text_of
from tests.conftest import site_config


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


@pytest.mark.parametrize(
    ("write", "mode"),
    [
        (lambda path: write_whole(path, "secret", private=True), 0o600),
        (lambda path: open_private(path).close(), 0o600),
        (lambda path: LogFile(path).close(), 0o600),
        (lambda path: make_folder(path, private=True), 0o700),
    ],
)
def test_what_is_private_is_so_under_any_umask(tmp_path: Path, write: Callable[[Path], object], mode: int) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "one")
    finally:
        os.umask(before)
    assert (tmp_path / "one").stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_whole(path / "decision.json", "{}", private=True),
        lambda path: make_folder(path / "runs" / "a"),
        lambda path: RunFolder(site_config(1, output=str(path)), "a").audit("refused"),
        lambda path: restore(path, "site1", DisclosureLog(path.parent / "old", "site1").contents(), path),
    ],
)
def test_what_root_writes_is_of_its_folders_owner(tmp_path: Path, write: Callable[[Path], object]) -> None:
    """An approval by `docker exec`, which is root, could not be read by the agent."""
    folder = make_folder(tmp_path / "result")
    os.chown(folder, 12345, 23456)
    write(folder)
    assert {(one.stat().st_uid, one.stat().st_gid) for one in folder.rglob("*")} == {(12345, 23456)}


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1), (0o620, 1)])
def test_a_secret_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: int
) -> None:
    path = tmp_path / "my token"
    path.write_text("x")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        warn_if_readable(path, "token_file")
        warn_if_readable(tmp_path / "none", "key")
    events = [vars(record)["event"] for record in caplog.records]
    assert events == [{"code": "secret-readable", "field": "token_file"}] * warned
    assert all(f"chmod 600 '{path}'" in message for message in caplog.messages)


@pytest.mark.parametrize("number", [ENOSPC, EDQUOT, EROFS])
def test_what_a_disk_refuses_is_a_sentence_and_other_errors_stay(number: int) -> None:
    with pytest.raises(UserError) as caught, naming_the_disk():
        raise OSError(number, "no", "some/file")
    assert (caught.value.code, caught.value.file, caught.value.is_recoverable) == ("cannot-write", "some/file", True)
    with pytest.raises(ConnectionResetError), naming_the_disk():
        raise ConnectionResetError(104, "reset")


def test_a_process_that_writes_to_an_old_log_writes_nothing_into_the_new_one(tmp_path: Path) -> None:
    """The last line of an orphan was taken for the reason why the next simulation ended."""
    orphan, log = LogFile(tmp_path / "log.txt"), LogFile(tmp_path / "log.txt", anew=True)
    log.write("its own\n")
    orphan.write("of before\n")
    assert (tmp_path / "log.txt").read_text() == "its own\n"


def test_a_log_on_a_full_disk_loses_lines_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(ENOSPC, "full")

    log = LogFile(tmp_path / "log.txt")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        print("lost", file=log)
    print("kept", file=log)
    log.close()
    assert (tmp_path / "log.txt").read_text() == "kept\n"


@pytest.mark.parametrize(
    "read",
    [
        read_tensors,
        digest_of,
        lambda path: text_of(path.parent, path.stem),
        lambda path: npz.read_arrays(path, ["x"]),
        lambda path: load_pretrained(nn.Linear(1, 1), Pretrained(file=path.name, sha256="0" * 64), path.parent),
        lambda path: encoder_of(
            TextData.model_construct(tokenizer=Tokenizer(file=path.name, sha256="0" * 64, tokens=9)), path.parent
        ),
    ],
    ids=["tensors", "digest", "table", "npz", "weights", "tokenizer"],
)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_nothing_is_opened_that_blocks_or_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object], make: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(npz, "check_file", lambda path: None)  # it takes a file's place after that
    make(tmp_path / "file.csv")
    with pytest.raises((OSError, DataError)):
        read(tmp_path / "file.csv")


def test_tensors_are_read_where_open_files_have_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows; macOS has them in another folder than Linux."""
    save_file({"x": torch.ones(2)}, tmp_path / "x.safetensors")
    for folders in ((tmp_path / "none",), (Path("/dev/fd"),)):
        monkeypatch.setattr(files, "DESCRIPTORS", folders)
        assert read_tensors(tmp_path / "x.safetensors")[1]["x"].tolist() == [1, 1]
