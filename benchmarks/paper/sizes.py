"""Figure 6: bytes per layer and step against the layer's size, by formula and as sent.

The formulas are those of the paper's table, written down a second time: they use nothing of what lays out a message or
encodes its numbers. What is sent is read from a run of one step, and may exceed them by the messages' headers alone.

Source: arXiv 2102.09631, Section 3 and Figure 6.
"""

from __future__ import annotations

import contextlib
import csv
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankdad.common.data import Samples, SiteData
from rankdad.common.data.folds import Split
from rankdad.common.documents import validate
from rankdad.common.methods.dad import Dad
from rankdad.common.methods.dsgd import Dsgd
from rankdad.common.methods.edad import Edad
from rankdad.common.methods.powersgd import PowerSgd
from rankdad.common.methods.rank_dad import RankDad
from rankdad.common.methods.top_k import TopK
from rankdad.common.spec import MethodSpec, RunSpec
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations.lockstep import run

SITES = 4
SAMPLES = 64  # of a site in the step
CLASSES = 2
NUMBER_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
BLOCK, SCALE_BYTES = 64, 4  # of int8: every so many numbers of a row share a scale
CHUNK = 4096  # entries of a sparse matrix, with equal numbers sent of each chunk

# A step's message is a msgpack map of six entries: 1 byte, and 2 for each key. Kind and phase take 1 byte each, the
# round 2 + 8, weight, loss and norm 2 + 24. Before the rows stand 2 bytes, before the numbers 2, 3 or 5. Every entry
# with a variable number of rows says it in 4 bytes: none if all travels dense, three with edad's two layers. Nothing
# of it grows with a layer.
MIN_HEADER = 1 + 6 * 2 + 2 + 10 + 26 + 2 + 2
MAX_HEADER = MIN_HEADER + 3 + 3 * 4


@dataclass(frozen=True)
class Size:
    """Bytes of a layer [size, size] with its bias, per site and step.

    Args:
        method: as the caller calls it.
        size: inputs and outputs of the layer.
        direction: "up", from a site, or "down", to it.
        formula: what numbers take.
        sent: what the step's bodies took, without the numbers of the network's other layer.
        header: what was sent beyond the formula.
        fits: whether the step's messages can have a header of that size.
    """

    method: str
    size: int
    direction: str
    formula: int
    sent: int
    header: int
    fits: bool


def sizes_of(name: str, method: Mapping[str, Any], size: int) -> tuple[Size, Size]:
    """Return the bytes of a layer, up and down.

    Args:
        name: of the method in the result.
        method: as in a run's specification. Formulas know its rank and wire, and whether its feedback carries the bias;
            what sends fewer rows than that (tolerance) does not fit them.
        size: inputs and outputs of the layer.
    """
    spec = validate(RunSpec, _document(method, size))
    exchanges = 2 if isinstance(spec.method, PowerSgd) else 1
    layer, head = formula(spec.method, size, size), formula(spec.method, CLASSES, size, last=True)
    bodies, rows = _sent(spec), list[Size]()
    for at, direction in enumerate(("up", "down")):
        sent = bodies[at] - head[at]
        header = sent - layer[at]
        fits = exchanges * MIN_HEADER <= header <= exchanges * MAX_HEADER
        rows.append(Size(name, size, direction, layer[at], sent, header, fits))
    return rows[0], rows[1]


def formula(method: MethodSpec, out: int, inputs: int, *, last: bool = False) -> tuple[int, int]:
    """Return the bytes of a linear layer with bias per site and step, up and down.

    Where a factor's rows are larger than the matrix, that travels instead: min(rows · (in + out), in · out), in each
    direction; edad alone cannot do without its rows. The bias is a column of ones behind the activations of dad and
    rank-dad, follows from edad's deltas, and else travels by itself.

    Args:
        method: of the run.
        out: the layer's outputs.
        inputs: the layer's inputs.
        last: whether the layer is the network's last, whose deltas edad sends.
    """
    from benchmarks.paper.top_rows import TopRows  # which the methods that are installed import

    def array(rows: int, width: int) -> int:
        scales = math.ceil(width / BLOCK) * SCALE_BYTES if method.wire == "int8" else 0
        return rows * (width * NUMBER_BYTES[method.wire] + scales)

    bias = array(1, out)
    dense = array(out, inputs) + bias

    def factor(rows: int, *, ones: bool) -> int:
        return min(dense, array(rows, out) + (array(rows, inputs + 1) if ones else array(rows, inputs) + bias))

    match method:
        case Dsgd():
            return dense, dense
        case Dad():
            return factor(SAMPLES, ones=True), factor(SITES * SAMPLES, ones=True)
        case Edad():
            up = array(SAMPLES, inputs) + (array(SAMPLES, out) if last else 0)
            return up, SITES * up
        case TopRows():
            return factor(method.rows, ones=False), factor(SITES * method.rows, ones=False)
        case RankDad():
            both = factor(method.most_rows, ones=method.feedback == "both")
            return both, both
        case PowerSgd():  # rows of `out` in the first exchange, of `inputs` in the second
            both = factor(method.rank, ones=False)
            return both, both
        case TopK():  # as many values of each chunk, and their places in low bits and a bitmap
            chunks = math.ceil(out * inputs / CHUNK)
            chunk, kept = math.ceil(out * inputs / chunks), max(1, round(method.density * out * inputs / chunks))
            low = math.floor(math.log2(chunk / kept))
            places = math.ceil(chunks * (kept * (low + 1) + (chunk - 1) // 2**low) / 8)
            both = min(dense, array(1, chunks * kept) + places + bias)
            return both, both
    raise AssertionError(f"no formula for {method.name}")


def _document(method: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return a run of one step: the layer, and behind it one for the classes."""
    return {
        "name": "sizes",
        "task": {"name": "classification", "classes": CLASSES},
        "model": {"name": "mlp", "hidden": [size]},
        "data": {"shape": [size]},
        "training": {
            "epochs": 1,
            "batch_size": SAMPLES,
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "validation": 0.0,
            "test": 0.0,
        },
        "method": dict(method),
        "federation": {"sites": [f"site-{i + 1}" for i in range(SITES)]},
    }


class _SteppedError(Exception):
    """The step is over: skip evaluation and goodbye, which take twice as long."""


def _stop_after_step(aggregator: Aggregator) -> None:
    if aggregator.recorder.progress.step:
        raise _SteppedError


def _sent(spec: RunSpec) -> tuple[int, int]:
    """Train one step, and return the bytes of its bodies per site, up and down, over all exchanges."""
    data = {site: _samples(spec, seed) for seed, site in enumerate(spec.federation.sites)}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        with contextlib.suppress(_SteppedError):
            run(spec, data, directory, on_round=_stop_after_step)
        with (directory / "steps.csv").open(newline="", encoding="utf-8") as file:
            (step,) = csv.DictReader(file)
    return int(step["bytes_up"]) // SITES, int(step["bytes_down"]) // SITES


def _samples(spec: RunSpec, seed: int) -> SiteData:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, *spec.data.shape, generator=generator)
    nothing = torch.arange(0)
    return SiteData(Samples(inputs, torch.arange(SAMPLES) % CLASSES), (Split(torch.arange(SAMPLES), nothing, nothing),))
