"""Seconds a round on NVFlare: a run of ours, an echo of as many bytes through our nodes, and its own FedAvg, in turns.

Each job runs on a server and four clients, which are processes of this machine. A round goes from the controller to all
clients and back. The run trains on digits, whose steps have as many bytes; the echo and FedAvg train nothing.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.nvflare_poc import RANKDAD, ROOT, SITES, Poc, call, site_documents
from rankdad.common.errors import UserError
from rankdad.common.spec import RunSpec

RUN = """
import json, time
from rankdad.platforms.nvflare.controller import RunController
from rankdad.platforms.nvflare.executor import SiteExecutor as Executor


class Controller(RunController):
    def control_flow(self, abort_signal, fl_ctx):
        self.times = []
        super().control_flow(abort_signal, fl_ctx)
        times = [after - before for before, after in zip(self.times, self.times[1:])]
        json.dump(times[4:], open(%(file)r, "w"))

    def _post(self, node, reply, fl_ctx):
        if node == %(sites)r[0]:
            self.times.append(time.perf_counter())
        super()._post(node, reply, fl_ctx)
"""
ECHO = """
import json, time
from rankdad.platforms.nvflare.controller import RunController
from rankdad.platforms.nvflare.executor import SiteExecutor


class Controller(RunController):
    def control_flow(self, abort_signal, fl_ctx):
        times, sites = [], %(sites)r
        self._clients = frozenset(sites)
        for _ in range(%(rounds)d + 1):
            began = time.perf_counter()
            for site in sites:
                self._post(site, bytes(%(size)d), fl_ctx)
            for _ in sites:
                self._inbox.get(timeout=120)
            times.append(time.perf_counter() - began)
        json.dump(times[1:], open(%(file)r, "w"))


class Executor(SiteExecutor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return shareable
"""
FEDAVG = """
import json, time
import numpy as np
from nvflare.apis.executor import Executor as Base
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg


class Controller(FedAvg):
    def __init__(self):
        model = {"w": np.zeros(%(size)d // 4, np.float32)}
        super().__init__(num_clients=%(count)d, num_rounds=%(rounds)d + 1, persistor_id="", model=model)
        self.times = []

    def sample_clients(self, num_clients=None):
        self.times.append(time.perf_counter())
        return super().sample_clients(num_clients)

    def save_model(self, model):
        pass

    def stop_controller(self, fl_ctx):
        self.times.append(time.perf_counter())
        times = [after - before for before, after in zip(self.times, self.times[1:])]
        json.dump(times[1:], open(%(file)r, "w"))
        super().stop_controller(fl_ctx)


class Executor(Base):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        model = FLModelUtils.from_shareable(shareable)
        return FLModelUtils.to_shareable(FLModel(params_type=ParamsType.FULL, params=model.params))
"""
OURS, SPEC = "a run of ours", ROOT / "simulations" / "specs" / "digits.json"
EPOCHS = "run.training.epochs=2"
JOBS: dict[str, tuple[str, str, float, float]] = {  # code, task, seconds between two looks at the server, at a client
    OURS: (RUN, "rankdad", 0.05, 0.05),
    "echo": (ECHO, "rankdad", 0.05, 0.05),
    "FedAvg, looking as often": (FEDAVG, "train", 0.05, 0.05),
    "FedAvg, as it comes": (FEDAVG, "train", 2.0, 0.5),
}


def bench_engines(size: int, rounds: int, turns: int, console: Console) -> dict[str, list[float]]:
    """Print and return the seconds of every round, by job.

    Args:
        size: bytes that travel each way, for each client, of the echo and FedAvg.
        rounds: of the echo and FedAvg, after a first one that is not counted.
        turns: how often each job runs.
        console: where the table is printed.

    Raises:
        UserError: a job has failed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in JOBS}
    with tempfile.TemporaryDirectory() as name:
        poc = Poc(Path(name))
        spec = _simulated(Path(name), poc)
        with poc.running():
            poc.settle(Path(name), site_documents(Path(name), Path(name) / "simulated"))
            for turn in range(turns):
                for job in JOBS:
                    seconds[job] += _run(poc, Path(name) / f"{turn}-{len(job)}", job, spec, size, rounds)
    print_rounds(seconds, console)
    return seconds


def print_rounds(seconds: Mapping[str, list[float]], console: Console) -> None:
    """Print the seconds of rounds by job, beside those of the engine's FedAvg."""
    table = Table("job", "rounds", "median, s", "fastest, s", "of FedAvg, as it comes")
    whole = median(seconds["FedAvg, as it comes"])
    for job, times in seconds.items():
        middle = median(times)
        table.add_row(job, str(len(times)), f"{middle:.3f}", f"{min(times):.3f}", f"{middle / whole:.2f}")
    console.print(table)


def _simulated(folder: Path, poc: Poc) -> RunSpec:
    """Make the sites' data by a simulation, and return its run."""
    output = folder / "simulated"
    words = [*RANKDAD, "simulate", str(SPEC), "--lockstep", "--quiet", "--output", str(output), "--set", EPOCHS]
    said = call(words, poc.environment, folder)
    if not (output / "run.json").exists():
        raise UserError(f"the simulation has failed: {said}", code="job-failed")
    return RunSpec.model_validate(json.loads((output / "run.json").read_text()))


def _run(poc: Poc, folder: Path, name: str, spec: RunSpec, size: int, rounds: int) -> list[float]:
    code, task, at_server, at_client = JOBS[name]
    file, config, custom = folder / "times.json", folder / "job" / "app" / "config", folder / "job" / "app" / "custom"
    sizes = {"rounds": rounds, "size": size, "file": str(file), "sites": SITES, "count": len(SITES)}
    config.mkdir(parents=True)
    custom.mkdir()
    write: Callable[[Path, Any], object] = lambda path, document: path.write_text(json.dumps(document))  # noqa: E731
    write(folder / "job" / "meta.json", {"name": "rounds", "min_clients": len(SITES), "deploy_map": {"app": ["@ALL"]}})
    server = {"task_request_interval": at_server}
    workflows = [{"id": "rounds", "path": "measured.Controller", "args": {}}]
    write(config / "config_fed_server.json", {"format_version": 2, "server": server, "workflows": workflows})
    executor = {"path": "measured.Executor", "args": {}}
    client = {"default_task_fetch_interval": at_client, "executors": [{"tasks": [task], "executor": executor}]}
    write(config / "config_fed_client.json", {"format_version": 2, **client})
    (custom / "measured.py").write_text(code % sizes)
    if name == OURS:
        write(config / "run.json", {"id": secrets.token_hex(8), "run": spec.document()})
    status, said = poc.submit(folder / "job", 600)
    if status != "COMPLETED" or not file.exists():
        raise UserError(f"{name}: the job has ended with {status} {said}", code="job-failed")
    times: list[float] = json.loads(file.read_text())
    return times
