"""A run for two sites, one of which may be several ranks, as torchrun starts them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from rankdad.common.tensors import weights_sha256
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.running import run_site
from rankdad.remote.persistence import LedgerOptions
from tests.conftest import write_policy, write_site
from tests.ports import free_port
from tests.remote.serving import Served, serving
from tests.texts import notes, write_notes
from tests.warm import Warm

LONGEST = 120.0  # seconds


@dataclass
class House:
    """Two sites and their aggregator: alpha, in a folder of its own, may have several ranks."""

    folder: Path
    served: Served
    beta: threading.Thread | None = None
    ranks: list[Warm] = field(default_factory=list)
    store: TCPStore | None = None
    parallel: str | dict[str, int] = "data"

    def start(self, size: int, files: dict[int, Path] | None = None) -> list[Warm]:
        """Start alpha's ranks as torchrun does: with its variables, and a store that outlives them."""
        port = free_port()
        self.store = TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False)
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        variables |= {"LOCAL_WORLD_SIZE": str(size), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        variables |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "OMP_NUM_THREADS": "1"}
        self.ranks = [
            Warm(
                *("site", (files or {}).get(rank, self.folder / "alpha.json"), "--patience", 20),
                environment=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(size)
        ]
        return self.ranks

    def ended(self, seconds: float = LONGEST) -> list[str]:
        """Wait until all ranks have ended; return what each has said on standard error."""
        return [rank.communicate(seconds)[1] for rank in self.ranks]

    def done(self, size: int) -> dict[str, Tensor]:
        """Let so many ranks train to the end, and return the weights."""
        self.start(size)
        said = self.ended()
        assert [rank.returncode for rank in self.ranks] == [0] * size, said
        return self.weights()

    def weights(self) -> dict[str, Tensor]:
        if self.beta is not None:
            self.beta.join(30)
        weights, theirs = load_file(self.folder / "out" / "model" / "final.safetensors"), self.served.aggregator.state
        if self.parallel == "data":
            assert weights_sha256(weights) == theirs.replica.digest(), "the aggregator follows alike"
        assert furthest(weights, theirs.replica.weights()) < 1e-5  # products of some rows round on their own
        return weights

    def share(self, parallel: str | dict[str, int]) -> None:
        """Let alpha's ranks, from their next start on, share it so."""
        self.parallel, path = parallel, self.folder / "alpha.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"parallel": parallel}))

    def until(self, steps: int, seconds: float = LONGEST) -> None:
        deadline = time.monotonic() + seconds
        while self.served.aggregator.state.steps < steps:
            assert time.monotonic() < deadline, [rank.returncode for rank in self.ranks]
            time.sleep(0.005)


@contextlib.contextmanager
def house(
    folder: Path,
    *,
    both: bool = False,
    samples: int = 50,
    sharing: int = 1,
    write: Callable[[Path, int, int], Path] | None = None,
    **changes: Any,
) -> Iterator[House]:
    """Serve a run for alpha, and let beta take part in it as one process; `write` makes a site's data, by a seed."""
    sites = ["alpha", "beta"] if both else ["alpha"]
    folder.mkdir(exist_ok=True)
    write = write or (_write_texts if changes.get("data", {}).get("reader") == "text" else write_site)
    with serving(folder / "run", ledger=LedgerOptions(), federation={"sites": sites}, **changes) as served:
        policy = write_policy(folder, min_rows=sharing, min_level=sharing)
        configs = {
            name: SiteConfig(
                name=name,
                aggregator=f"http://127.0.0.1:{served.port}",
                data=str(write(folder / name, samples, seed)),
                output=str(folder / out),
                policy=policy,
            )
            for seed, (name, out) in enumerate({"alpha": "out", "beta": "beta-out"}.items())
        }
        (folder / "alpha.json").write_text(configs["alpha"].model_dump_json(exclude_defaults=True))
        beta = threading.Thread(target=run_site, args=(configs["beta"],)) if both else None
        found = House(folder, served, beta)
        if beta is not None:
            beta.start()
        try:
            yield found
        finally:
            for rank in found.ranks:
                rank.kill()
            if beta is not None:
                beta.join(30)


def _write_texts(folder: Path, count: int, seed: int) -> Path:
    return write_notes(folder, notes(count, seed))


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
