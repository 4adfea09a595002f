"""What the image's commands need is in it: pruning that goes too far fails here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from typer.main import get_command

from rankdad.__main__ import app
from rankdad.remote.report.run_report import CAPTIONS
from tests.conftest import OPEN
from tests.docker.images import container, docker, image

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.xdist_group("docker"), pytest.mark.timeout(600)]

USER = 1000
NETWORKS: dict[str, tuple[list[int], dict[str, Any]]] = {  # the shape of a sample, and the network
    "linear": ([6], {}),
    "mlp": ([6], {"hidden": [8]}),
    "gru": ([5, 3], {"hidden": [8]}),
    "vit": ([1, 8, 8], {"width": 8, "depth": 1, "heads": 2, "patch": 4}),
    "cnn": ([1, 8, 8], {"filters": [4, 4]}),
    "cnn3d": ([1, 8, 8, 8], {"filters": [4, 4]}),
}
EACH = """
import json, sys
from rankdad.__main__ import app
for words in json.loads(sys.argv[1]):
    print("$ rankdad", *words, flush=True)
    app(words, standalone_mode=False)
"""


NOT_MONITORED = ("auc_within_over_epochs", "pearson_r_over_epochs")  # a run looks at one metric


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A container of the image that does nothing by itself, and the folder that it has as /work."""
    folder = tmp_path_factory.mktemp("work")
    folder.chmod(0o777)
    with container("--volume", f"{folder}:/work", "--entrypoint", "sleep", image(), "600") as name:
        yield name, folder


def rankdad(name: str, *commands: list[str]) -> str:
    """Run commands one after the other, in one process."""
    return docker("exec", name, "python", "-IBu", "-c", EACH, json.dumps(commands))


def spec_of(network: str, data: str) -> dict[str, Any]:
    shape, sizes = NETWORKS[network]
    task = {"name": "regression"} if network == "mlp" else {"name": "classification", "classes": 3}
    training = {"epochs": 2, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.01}}
    training["monitor"] = "mae" if network == "mlp" else "accuracy"
    run = {"name": network, "task": task, "model": {"name": network} | sizes, "data": {"shape": shape}}
    rest = {"training": training, "method": {"name": "rank-dad", "rank": 2}, "federation": {"sites": ["a", "b"]}}
    rest["record"] = {"spectra": 1}
    if network == "linear":  # solved exactly, of one outcome, with all that a comparison draws
        rest = {"training": {"solver": "exact"}, "evaluation": {"name": "holdout", "references": ["local"]}}
        run["task"], rest["federation"] = task | {"classes": 2}, {"sites": ["a", "b"]}
    return {"run": run | rest, "simulation": {"source": {"name": "npz", "path": data}, "policy": OPEN}}


@pytest.mark.exhaustive
def test_every_module_is_there_and_compiled(inside: tuple[str, Path]) -> None:
    assert docker("exec", inside[0], "python", "-IB", "/opt/rankdad/imported.py") == ""


def test_every_command_explains_itself(inside: tuple[str, Path]) -> None:
    def below(command: Any, words: list[str]) -> Iterator[list[str]]:
        yield [*words, "--help"]
        for name, one in getattr(command, "commands", {}).items():
            yield from below(one, [*words, name])

    commands = list(below(get_command(app), []))
    assert len(commands) > 12
    assert rankdad(inside[0], *commands).count("Usage:") == len(commands)


@pytest.mark.exhaustive
def test_every_network_trains_and_every_picture_is_drawn(inside: tuple[str, Path]) -> None:
    name, folder = inside
    generator = np.random.default_rng(0)
    for network, (shape, _) in NETWORKS.items():
        labels = (
            generator.normal(size=60)
            if network == "mlp"
            else generator.integers(0, *((2, 400) if network == "linear" else (3, 60)))
        )
        np.savez(folder / f"{network}.npz", x=generator.normal(size=(len(labels), *shape)), y=labels)
        (folder / f"{network}.json").write_text(json.dumps(spec_of(network, f"/work/{network}.npz")))
    runs = {network: [f"/work/{network}.json", "--output", f"/work/runs/{network}"] for network in NETWORKS}
    over_http = runs.pop("vit")
    said = docker("exec", name, "rankdad", "simulate", "--ledger", *over_http)
    said += rankdad(
        name,
        *(["simulate", "--lockstep", *words] for words in runs.values()),
        *(["report", f"/work/runs/{network}"] for network in ("linear", "mlp", "vit")),
        ["predict", "/work/runs/vit", "/work/vit.npz", "--output", "/work/runs/predictions.csv"],
        ["export", "/work/runs/vit", "--step", "2", "--output", "/work/runs/exported"],
    )
    assert said.count("weights: equal at all sites") == len(NETWORKS)
    pages = "".join((folder / "runs" / network / "report.html").read_text() for network in ("linear", "mlp", "vit"))
    drawn = [text for name, text in CAPTIONS.items() if name not in NOT_MONITORED]
    assert [caption for caption in drawn if str(escape(caption)) not in pages] == []
    assert pages.count("<svg") > len(drawn)
    assert len((folder / "runs" / "predictions.csv").read_text().splitlines()) == 61
    assert list((folder / "runs" / "exported").rglob("*.safetensors"))
