"""Seconds a round on Flower: the same bytes through our nodes and through its own FedAvg, in turns, without training.

Each job runs on a SuperLink and four SuperNodes, which are processes of this machine. A round goes from the ServerApp
to all nodes and back. FedAvg averages; ours hands the bytes on as they are.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.engines import print_rounds
from benchmarks.flower_poc import Deployment
from benchmarks.nvflare_poc import SITES
from rankdad.common.errors import UserError

PROJECT = """[project]
name = "rounds"
version = "1.0.{turn}"
license = "MIT"
description = "rounds"
dependencies = []

[tool.flwr.app]
publisher = "rankdad"

[tool.flwr.app.components]
serverapp = "measured.server:app"
clientapp = "measured.client:app"
"""
OURS = (
    """
import json, time
from queue import SimpleQueue
from flwr.serverapp import ServerApp
from rankdad.platforms.flower.nodes import Nodes
from rankdad.platforms.flower.settings import FlowerSettings

app = ServerApp()


@app.main()
def main(grid, context):
    inbox, times, sites = SimpleQueue(), [], %(sites)r
    nodes = Nodes(grid, inbox, FlowerSettings(directory="."), print)
    with nodes.working():
        for _ in range(%(rounds)d + 1):
            began = time.perf_counter()
            for site in sites:
                nodes.post(site, bytes(%(size)d))
            for _ in sites:
                inbox.get(timeout=600)
            times.append(time.perf_counter() - began)
    json.dump(times[1:], open(%(file)r, "w"))
""",
    """
from rankdad.platforms.flower import client_app

client_app.answer = lambda place, run, job, reply: reply
app = client_app.app
""",
)
FEDAVG = (
    """
import json, time
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    times, count = [], %(count)d

    def note(number, arrays):
        times.append(time.perf_counter())

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    start = ArrayRecord(numpy_ndarrays=[np.zeros(%(size)d // 4, np.float32)])
    strategy.start(grid=grid, initial_arrays=start, num_rounds=%(rounds)d + 1, evaluate_fn=note)
    rounds = [after - before for before, after in zip(times, times[1:])]
    json.dump(rounds[1:], open(%(file)r, "w"))
""",
    """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
""",
)
JOBS = {"ours": OURS, "FedAvg, as it comes": FEDAVG}


def bench_flower(size: int, rounds: int, turns: int, console: Console) -> dict[str, list[float]]:
    """Print and return the seconds of every round, by job.

    Args:
        size: bytes that travel each way, for each node.
        rounds: of each job, after a first one that is not counted.
        turns: how often each job runs.
        console: where the table is printed.

    Raises:
        UserError: a job has failed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in JOBS}
    with tempfile.TemporaryDirectory() as name:
        deployment = Deployment(Path(name))
        with deployment.running():
            for turn in range(turns):
                for job in JOBS:
                    seconds[job] += _run(deployment, Path(name) / f"{turn}-{len(job)}", job, size, rounds)
    print_rounds(seconds, console)
    return seconds


def _run(deployment: Deployment, folder: Path, name: str, size: int, rounds: int) -> list[float]:
    file, (server, client) = folder / "times.json", JOBS[name]
    code = folder / "job" / "measured"
    code.mkdir(parents=True)
    (folder / "job" / "pyproject.toml").write_text(PROJECT.format(turn=folder.name.replace("-", "")))
    (code / "__init__.py").write_text("")
    sizes = {"rounds": rounds, "size": size, "file": str(file), "sites": SITES, "count": len(SITES)}
    (code / "server.py").write_text(server % sizes)
    (code / "client.py").write_text(client)
    status, log = deployment.submit(folder / "job", 60.0 * (rounds + 2))
    if not file.exists():
        raise UserError(f"{name}: the job has ended with {status} {log[-500:]}", code="job-failed")
    times: list[float] = json.loads(file.read_text())
    return times
