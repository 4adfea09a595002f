from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from rankdad.__main__ import main


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that ends in a user's mistake, in this process, and return what it says."""

    def command(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["rankdad", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return command
