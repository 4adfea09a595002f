"""`rankdad init`: a first spec for existing tables, with settings that depend on their size."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankdad.common.documents import validate
from rankdad.common.policy import Policy
from rankdad.common.spec.written import Written
from rankdad.simulations.first_policy import at_hospitals, policy_lines
from rankdad.simulations.first_schema import Guess, Wishes, guess_schema
from rankdad.simulations.hospitals import read_hospitals
from rankdad.simulations.spec import SimulationFile

FOLDS = 5
STEPS = 120  # of training in all
WIDE = 20  # rows for each input below which a model is trained in smaller steps, and its weights are held small
RANK = 2
SPARE = 1.3  # rows of the smallest hospital in a step over what its policy asks for: folds are not exact
MOST_NAMED = 5  # hospitals in a note
MEANINGS = {  # of lines of a policy
    "min_rows": "patients behind each sum",
    "min_level": "patients who share a value",
    "rows_per_rank": "samples behind each row sent",
}
ROWS_PER_SITE = 40  # least rows of a single table for each site
LARGE = 5000  # rows from which a network is worth trying, if there are fifty for each input too


def first_spec(
    data: Path,
    label: str,
    positive: str | None = None,
    *,
    categorical: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    written: Written | None = None,
) -> dict[str, Any]:
    """Return the document of a first run and its simulation, with a note for each guess.

    Args:
        data: a table, or a folder with a folder, or a table, for each hospital.
        label: name of the column to be predicted.
        positive: rule for a label of numbers, such as "> 0".
        categorical: columns whose numbers are codes.
        exclude: columns that are left out.
        written: what is known of how the tables are written.

    Raises:
        UserError: the tables cannot be read, or do not have what a run needs.
    """
    consortium = read_hospitals(data, written or Written())
    guess = guess_schema(consortium, Wishes(label, positive, categorical, exclude))
    rows, people, notes = list(guess.rows), list(guess.people), consortium.notes + guess.notes
    simulation: dict[str, Any] = {"source": {"name": "folders", "path": str(data)}, "partition": {"name": "folder"}}
    sites = [one.site for one in consortium.hospitals]
    if consortium.table is not None:
        count = max(2, min(4, people[0] // ROWS_PER_SITE))
        sites = [f"site-{number + 1}" for number in range(count)]
        rows, people = ([(whole[0] + place) // count for place in range(count)] for whole in (rows, people))
        simulation = {"source": {"name": "table", "path": str(consortium.table)}}
        notes += (f"the rows of the one table are split at random into {count} sites",)
    settings, policy, told = _settings(rows, people, guess)
    simulation |= {"policy": policy} if policy else {}
    name = label if label.isidentifier() and len(label) < 60 else "first"
    run = {"name": name, "task": guess.task, "data": guess.data, **settings}
    document: dict[str, Any] = {
        "run": run | {"federation": {"sites": sites}},
        "simulation": simulation,
        "notes": [*notes, *told],
    }
    made = validate(SimulationFile, document)  # so that a mistake here is an error now
    for_steps, (lines, needing) = policy, policy_lines(made)
    if policy := {**policy, **lines}:  # one note of both: what steps need may be more than sums do
        simulation["policy"] = policy
        own, what = Policy(), "patients" if "group" in guess.data else "rows"
        asked = " and ".join(f"{name} {json.dumps(own.model_dump()[name])}, {MEANINGS[name]}," for name in policy)
        allowed = " and ".join(f"{name} {json.dumps(value)}" for name, value in policy.items())
        smallest = [sites[people.index(min(people))]] * bool(for_steps)
        few = sorted({*smallest, *needing}, key=sites.index)
        counts = ", ".join(f"{site} ({people[sites.index(site)]} {what})" for site in few[:MOST_NAMED])
        counts += f" and {len(few) - MOST_NAMED} more" * (len(few) > MOST_NAMED)
        document["notes"].append(
            f"{counts}: too few for some folds under a hospital's default policy, which limits what may leave it: "
            f"{asked.removesuffix(',')}; the simulated hospitals allow {allowed} (simulation.policy)"
        )
        document["notes"].append(f"real hospitals with the default policy {at_hospitals(made)}")
    return document


def _inputs(guess: Guess) -> int:
    levels = guess.data.get("categorical", {})
    indicators = len(guess.data.get("missing_indicators", ()))
    return indicators + sum(len(levels.get(name, ("",))) for name in guess.data["features"])


def _settings(
    rows: Sequence[int], people: Sequence[int], guess: Guess
) -> tuple[dict[str, Any], dict[str, int | None], tuple[str, ...]]:
    """Return settings that follow from the size of the data, what sites have to allow for them, and notes."""
    own, notes, inputs = Policy(), list[str](), _inputs(guess)
    fewest = min(people)  # behind what differs between folds; a part is as large as the policy asks for
    if own.keyed_folds:
        fewest = math.floor(fewest / FOLDS * (0.6 if "group" in guess.data else 0.9))
    rank = min(RANK, inputs, guess.task.get("classes", 1))  # no gradient of a linear model has a larger one
    least, policy = max(own.min_rows, rank * (own.rows_per_rank or 1)), dict[str, int | None]()
    if fewest < own.min_rows:
        least = max(1, min(fewest, least))
        policy = {"min_rows": least, "rows_per_rank": max(1, least // rank)}
    train = 1 - 1 / FOLDS
    most = min(math.ceil(max(rows) * train / 16), math.floor(min(people) * train / (SPARE * least)))
    if not own.keyed_folds:  # a small hospital draws half of its patients, and the others count, too
        halves = min(people) / 4 >= least  # of one of two parts, as a rare class may leave
        most = max(2, math.ceil(max(rows) * train / 16)) if halves else 1
        if not halves:  # steps of the same patients each time
            policy["rows_per_rank"] = None
    steps = max(1, min(10, most))
    large = sum(rows) >= max(LARGE, 50 * inputs)
    wide = sum(rows) < WIDE * inputs
    optimizer = {
        "name": "adam",
        "lr": 0.003 if large else 0.005 if wide else 0.01,
        "weight_decay": 2.0 if wide else 0.01,
    }
    epochs = max(10, math.ceil((4 * STEPS / 3 if wide else STEPS) / steps))
    model = {"name": "mlp", "hidden": [64, 32], "dropout": 0.2} if large else {"name": "linear"}
    what = "a network" if large else "a linear model"
    taken = f"{steps} steps per epoch, {epochs} epochs"
    exact = "solved exactly, from sums over each hospital's rows, if all hospitals' policies allow these"
    taken = taken if large else f"{exact}; otherwise trained by gradients, {taken}"
    notes.append(f"{what} for {sum(rows)} rows and {inputs} inputs; {taken}")
    settings: dict[str, Any] = {
        "model": model,
        "preparation": {"standardise": "federated"},
        "evaluation": {"name": "k-fold", "folds": FOLDS, "stratified": True, "references": ["local"]},
        "training": {
            "epochs": epochs,
            "batch_size": math.ceil(max(rows) * train / steps) if steps > 1 else max(rows),  # of all, in no fold fewer
            "batches": "even",
            "validation": 0,
            "optimizer": optimizer,
        },
    }
    if not large:
        settings["training"]["solver"] = "auto"  # by steps where a policy lets no sums out
    return settings, policy, tuple(notes)


def written(document: dict[str, Any]) -> str:
    """Format a spec with one line per part."""
    lines = ["{"]
    for part, content in document.items():
        comma = "," if part != list(document)[-1] else ""
        opening, closing = "[]" if isinstance(content, list) else "{}"
        entries = content.items() if isinstance(content, dict) else [(None, one) for one in content]
        texts = [json.dumps(one, ensure_ascii=False) for _, one in entries]
        named = [
            text if key is None else f"{json.dumps(key)}: {text}" for (key, _), text in zip(entries, texts, strict=True)
        ]
        lines += [f"  {json.dumps(part)}: {opening}", ",\n".join(f"    {one}" for one in named), f"  {closing}{comma}"]
    return "\n".join([*lines, "}", ""])
