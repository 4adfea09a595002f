"""A member's container: it waits for the central node, starts a client anew that was not let in, prints nothing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from rankdad.common.errors import UserError
from rankdad.platforms.neuroflame import __main__ as entry

LET_IN_LATER = """
echo secret words; echo secret words >&2
[ -e again ] || { touch again; exit 1; }
touch output/inputs.json output/index.html
"""
NEVER = "echo secret words >&2; touch output/inputs.json; exit 1"


def member(folder: Path, script: str, port: int) -> Path:
    startup = folder / "runKit" / "startup"
    startup.mkdir(parents=True)
    (folder / "output").mkdir()
    target = {"servers": [{"service": {"target": f"127.0.0.1:{port}"}}]}
    (startup / "fed_client.json").write_text(json.dumps(target))
    (startup / "sub_start.sh").write_text(f"cd {folder}\n{script}\n")
    return folder


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK", 0.02), ("JOINING", 0.5)):
        monkeypatch.setattr(entry, name, seconds)
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.mark.parametrize(("script", "completes"), [(LET_IN_LATER, True), (NEVER, False)])
def test_a_client_is_started_until_a_run_has_begun_and_its_words_stay_in_the_results(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, completes: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as central:
        root = member(tmp_path, script, central.getsockname()[1])
        if completes:
            entry.take_part(root)
        else:
            with pytest.raises(UserError) as error:
                entry.take_part(root)
            assert error.value.code == "run-failed"
    assert "secret words" in (root / "output" / "log.txt").read_text()
    assert "secret" not in "".join(capfd.readouterr())


def test_a_central_node_that_never_answers_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(UserError) as error:
        entry.take_part(member(tmp_path, "touch started", port))
    assert error.value.code == "run-failed"
    assert not (tmp_path / "started").exists()
