"""The service in processes of its own, driven as the platform does it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from rankdad.common.data import read_site
from rankdad.common.documents import validate
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac.compspec import compspec
from rankdad.platforms.coinstac.service import Service
from rankdad.simulations.lockstep import run
from tests.coinstac.app import App
from tests.coinstac.client import ComputationError
from tests.coinstac.nodes import ProcessNode
from tests.coinstac.platform import Faults, Platform, shuffled_ids
from tests.coinstac.typed import Tick
from tests.conftest import OPEN, run_document, write_site
from tests.platforms.nodes import site_file
from tests.ports import free_port
from tests.warm import Warm

WIDE = {
    "model": {"name": "mlp", "hidden": [1024, 1024]},
    "data": {"shape": [784]},
    "task": {"name": "classification", "classes": 10},
    "method": {"name": "rank-dad", "rank": 10},
}


def inputs(sites: int, **document: Any) -> tuple[RunSpec, list[dict[str, Any]]]:
    """Return a run and every member's form."""
    names = [f"site-{number}" for number in range(sites)]
    whole = run_document(**document, federation={"sites": names})
    return validate(RunSpec, whole), [{"spec": whole}] * sites


def platform_of(
    form: Sequence[Mapping[str, Any]], folder: Path, write: Callable[[Path, int], Sequence[str]], **options: Any
) -> Platform:
    """Return a run of what people have filled in, in the platform's app, with their files where it links them.

    Args:
        form: the owner's fields, once for each member.
        folder: of the run.
        write: writes a member's files into a folder of its own, and returns the names of those that it chooses.
        options: of the platform.
    """
    app, ids = App(compspec()), shuffled_ids(len(form))
    assert app.problems() == []
    members = []
    for place, (client, owner) in enumerate(zip(ids, form, strict=True)):
        own = folder.parent / "members" / client
        own.mkdir(parents=True)
        given = {"files": [own / name for name in write(own, place)], "min_rows": "8", "max_rank": Tick.USE_DEFAULT}
        members.append(app.consortium(owner).member(client, given))
    assert not any(mapped.lost for mapped in members)
    platform = Platform([mapped.inputspec for mapped in members], folder, client_ids=ids, **options)
    for mapped, node in zip(members, platform.sites, strict=True):
        mapped.link(node.input)
    return platform


def write_member(folder: Path, place: int) -> Sequence[str]:
    write_site(folder, 70 - 9 * place, place)
    site_file(folder, name=f"site-{place}", policy=OPEN)
    return ["data.npz", "site.json"]


def small(sites: int, epochs: int = 2) -> tuple[RunSpec, list[dict[str, Any]]]:
    training = {"epochs": epochs, "batch_size": 12 * sites}
    return inputs(sites, method={"name": "rank-dad", "rank": 2}, training=training)


def without_the_platform(spec: RunSpec, folders: list[Path], directory: Path) -> dict[str, str]:
    data = {
        site: read_site(spec, folder, place)
        for place, (site, folder) in enumerate(zip(spec.federation.sites, folders, strict=True))
    }
    return next(iter(run(spec, data, directory).values())).weights_sha256


def digests(platform: Platform) -> dict[str, str]:
    return dict(json.loads((platform.remote.output / "run" / "summary.json").read_text())["weights_sha256"])


def test_a_message_that_is_none_of_the_platforms_is_answered_with_a_sentence(tmp_path: Path) -> None:
    service = Service(tmp_path)
    for text, said in (
        ("{", "the message is malformed"),
        ("[" * 100_000, "the message is malformed"),
        ('{"mode": [], "data": {"input": {}, "state": {"outputDirectory": "x"}}}', "mode: got '[]'"),
        ("[]", "the message is malformed"),
        ('{"mode": "other", "data": {"input": {}, "state": {"outputDirectory": "x"}}}', "mode: got 'other'"),
        ('{"mode": "local", "data": {"input": 1, "state": {"outputDirectory": "x"}}}', "input: is missing"),
        ('{"mode": "local", "data": {"input": {}}}', "state"),
    ):
        answer = json.loads(service.answer(text))
        assert (answer["type"], answer["code"], answer["end"]) == ("stderr", 1, True)
        assert said in answer["data"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"outputDirectory": "/etc"}, "state.outputDirectory: is outside of"),
        ({"outputDirectory": "output/../../x"}, "state.outputDirectory: is outside of"),
        ({"outputDirectory": "output/a", "baseDirectory": "/root"}, "state.baseDirectory: is outside of"),
        ({"outputDirectory": "output/link"}, "state.outputDirectory: is outside of"),
        ({"outputDirectory": "\0"}, "state.outputDirectory: is outside of"),
    ],
)
def test_paths_in_messages_stay_within_the_mounts(tmp_path: Path, state: dict[str, str], said: str) -> None:
    mounts = tmp_path / "mounts"
    (mounts / "output").mkdir(parents=True)
    (mounts / "output" / "link").symlink_to(tmp_path)
    here = {key: value if value[0] in "/\0" else str(mounts / value) for key, value in state.items()}
    answer = json.loads(Service(mounts).answer(json.dumps({"mode": "local", "data": {"input": {}, "state": here}})))
    assert said in answer["data"]


def test_no_browser_can_speak_to_it(tmp_path: Path) -> None:
    """A page in a member's browser may open a WebSocket to any address, but cannot leave out its own."""

    async def talk() -> None:
        server = asyncio.create_task(Service(tmp_path).serve("127.0.0.1", port))
        for origin in ("https://example.org", "http://127.0.0.1", "null", "file://"):
            with pytest.raises(InvalidStatus, match="403"):
                await opened(Origin(origin))
        await opened(None)
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server

    async def opened(origin: Origin | None) -> None:
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                async with connect(f"ws://127.0.0.1:{port}/", origin=origin, proxy=None):
                    return
            await asyncio.sleep(0.05)

    port = free_port()
    asyncio.run(talk())


def warm(words: list[str], environment: dict[str, str], folder: Path, log: IO[bytes]) -> Warm:
    return Warm(*words[words.index("rankdad") + 1 :], environment=environment, folder=folder, log=log)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        Faults(kills=[(4, "local0", "before"), (5, "local1", "during"), (6, "remote", "during")]),
        Faults(kills=[(7, "remote", "before"), (8, "local0", "answered"), (9, "remote", "answered")]),
        Faults(fresh_every_iteration=True, leave_old_running=True),
    ],
    ids=["killed", "killed otherwise", "a fresh process each time"],
)
def test_processes_end_with_the_weights_of_the_run_over_http(tmp_path: Path, faults: Faults) -> None:
    spec, form = small(2, epochs=1 if faults.fresh_every_iteration else 2)
    start = partial(ProcessNode, port_in_environment=faults.fresh_every_iteration, launch=warm)
    platform = platform_of(form, tmp_path / "platform", write_member, start=start, faults=faults)
    shown = platform.run()
    folders = [node.input for node in platform.sites]
    assert digests(platform) == without_the_platform(spec, folders, tmp_path / "http")
    assert set(shown["site_metrics"]) == set(spec.federation.sites)
    for node in platform.sites:
        assert (node.output / "model" / "best.safetensors").exists()
        assert (node.output / "report.html").exists()
        if faults.fresh_every_iteration:
            assert isinstance(node, ProcessNode)
            assert all(process.poll() is not None for process in node.processes), "nothing piles up"
    assert platform.cache_bytes() <= 300
    assert all(stop.seconds < 3 and stop.status == 0 for stop in platform.stops.values()), platform.stops


@pytest.mark.slow
@pytest.mark.alone
def test_a_round_is_fast(tmp_path: Path) -> None:
    """784-1024-1024-10, rank 10, two sites: what the platform's way costs beyond compute, and how soon it begins."""
    _, form = inputs(2, training={"epochs": 1, "batch_size": 32, "optimizer": {"name": "adam", "lr": 1e-4}}, **WIDE)

    def write(folder: Path, place: int) -> Sequence[str]:
        generator = np.random.default_rng(place)
        x, y = generator.normal(size=(1500, 784)).astype("float32"), generator.integers(0, 10, 1500)
        np.savez(folder / "data.npz", x=x, y=y)
        site_file(folder, name=f"site-{place}")
        return ["data.npz", "site.json"]

    platform = platform_of(form, tmp_path / "platform", write)
    platform.run()
    steps = pd.read_csv(platform.remote.output / "run" / "steps.csv")
    timings = [pd.read_csv(node.output / "timings.csv") for node in platform.sites]
    compute = np.max([table["compute"] + table["reduce"] for table in timings], axis=0) + steps["aggregation_seconds"]
    rounds = [one.seconds for one in platform.iterations[3 : 3 + len(steps)]]  # joined, opened and hello come before
    beyond = statistics.median(np.array(rounds) - compute)
    opened = max(accepted for node in platform.nodes.values() for accepted in node.accepted)
    first = opened + sum(one.seconds for one in platform.iterations[:2])
    print(
        f"\n784-1024-1024-10, rank 10, 2 sites, {len(steps)} rounds: median {statistics.median(rounds):.3f} s, "
        f"{beyond:.3f} s beyond compute; socket open after {opened:.2f} s, first round complete after {first:.1f} s"
    )
    assert beyond <= 0.25
    assert opened <= 3
    assert first <= 25  # 15 where nothing else runs


@pytest.mark.exhaustive
def test_every_node_is_told_what_is_wrong(tmp_path: Path) -> None:
    _, form = small(2)
    platform = platform_of(form, tmp_path / "platform", write_member)
    (platform.sites[1].input / "data.npz").unlink()
    with pytest.raises(
        ComputationError, match=r"^site-1 \(member [0-9a-f]+\): Files \(files\): a chosen file is not in the"
    ):
        platform.run()
    assert len(platform.iterations) == 1


def spoiled(folder: Path, place: int, fault: str) -> Sequence[str]:
    """Write a member's table; that of the second member may have a fault."""
    generator, rows = np.random.default_rng(place), 60 + 20 * place
    case = np.arange(rows) % 2
    table = pd.DataFrame({"age": generator.normal(50, 8, rows) + 9 * case, "dose": generator.normal(20, 2, rows)})
    table["group"] = np.where(case, "Case", "control")
    if fault == "spelling" and place:
        table["group"] = table["group"].str.lower()
    if fault == "codes" and place:
        table.loc[:39, "dose"] = -9
    table.to_csv(folder / "t.csv", index=False)
    return ["t.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "form", "words"),
    [
        ("spelling", {}, ("Column of what is predicted", "'Case'", "'case'")),
        ("", {"method": "powersgd"}, ("owner: Method (method)", "rank-dad")),
        ("", {"start": "a trained model"}, ("model.json",)),
        ("", {"positive": "patient"}, ("positive: outcome-of-several",)),
    ],
)
def test_a_fault_ends_the_run_for_all_with_one_sentence_before_training(
    tmp_path: Path, fault: str, form: dict[str, Any], words: Sequence[str]
) -> None:
    start = partial(ProcessNode, launch=warm)
    owner = [{"label": "group", "epochs": 1, **form}] * 2
    platform = platform_of(owner, tmp_path / "platform", partial(spoiled, fault=fault), start=start)
    with pytest.raises(ComputationError) as raised:
        platform.run()
    assert raised.value.node == "remote", "whose answer every member and the owner is shown"
    assert not [word for word in words if word not in str(raised.value)], str(raised.value)
    assert len(platform.iterations) == 1


@pytest.mark.exhaustive
def test_codes_of_missing_values_and_the_outcome_stand_in_the_results(tmp_path: Path) -> None:
    owner = [{"label": "group", "epochs": 1.0, "learning_rate": 0.01, "batch_size": 20, "patience": 3}] * 2
    start = partial(ProcessNode, launch=warm)
    platform = platform_of(owner, tmp_path / "platform", partial(spoiled, fault="codes"), start=start)
    shown = platform.run()
    first = next(iter(shown["warnings"].values()))
    assert first.startswith(f"{platform.sites[1].client_id}: column dose has -9 ")
    assert shown["study"]["outcome"] == "group = Case"
    training = json.loads((platform.remote.output / "run" / "run.json").read_text())["training"]
    assert (training["optimizer"]["lr"], training["batch_size"], training["epochs"]) == (0.01, 20, 1)
    assert training["early_stopping"] == {"patience": 3}
    assert "column dose has -9" in platform.sites[1].log.read_text()
