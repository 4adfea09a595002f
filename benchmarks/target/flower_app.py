"""A server and its clients as a user of Flower writes them: `python -m benchmarks.target.flower_app FOLDER`.

The folder holds the run's spec, a file of training samples for each site, and the test's inputs; outputs for these
after every round, and a line of figures, are written beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from rankdad.common.models import build_model
from rankdad.common.run.optimizer import make_optimizer
from rankdad.common.spec import RunSpec
from rankdad.local.evaluation import outputs_of
from rankdad.local.losses import mean_loss


def client_app(folder: Path, spec: RunSpec) -> ClientApp:
    """Return an app that trains for an epoch with a new optimizer."""

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(spec.training.threads)
        model = build_model(spec)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.train()
        optimizer = make_optimizer(spec.training, list(model.parameters()))
        arrays = np.load(folder / f"site-{context.node_config['partition-id']}.npz")
        samples = TensorDataset(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]))
        for inputs, labels in DataLoader(samples, spec.training.batch_size, shuffle=True):
            optimizer.zero_grad()
            mean_loss(spec.task, model(inputs), labels).backward()
            optimizer.step()
        trained = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(samples)})}
        return Message(RecordDict(trained), reply_to=message)

    app = ClientApp()
    app.train()(train)
    return app


def server_app(folder: Path, spec: RunSpec) -> ServerApp:
    """Return an app that averages, and tests after every round outside the clock."""
    sites = len(spec.federation.sites)

    def serve(grid: Grid, _: Context) -> None:
        torch.set_num_threads(spec.training.threads)
        model, inputs = build_model(spec), torch.from_numpy(np.load(folder / "test.npz")["x"])
        clock = {"seconds": 0.0, "resumed": perf_counter()}

        def test(number: int, arrays: ArrayRecord) -> None:
            if number:  # not the start
                clock["seconds"] += perf_counter() - clock["resumed"]
                model.load_state_dict(arrays.to_torch_state_dict())
                np.save(folder / f"outputs-{number}.npy", outputs_of(model, inputs, spec.task.outputs).numpy())
                size = sum(len(array.data) for array in arrays.values())
                with (folder / "rounds.jsonl").open("a", encoding="utf-8") as lines:
                    print(json.dumps({"round": number, "bytes": size, "seconds": clock["seconds"]}), file=lines)
            clock["resumed"] = perf_counter()

        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
        start = ArrayRecord(model.state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=spec.training.epochs, evaluate_fn=test)

    app = ServerApp()
    app.main()(serve)
    return app


def main(folder: Path) -> None:
    """Run both in Flower's simulation, a processor for each client."""
    spec = RunSpec.read(folder / "run.json")
    backend: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(
        server_app(folder, spec), client_app(folder, spec), len(spec.federation.sites), backend_config=backend
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
