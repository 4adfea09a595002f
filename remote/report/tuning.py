"""How a run's settings were chosen, and the cost."""

from __future__ import annotations

from rankdad.remote.report.metric_tables import NumberTable
from rankdad.remote.report.words import count, number, percent
from rankdad.remote.results.run_results import RunResults, without_candidates
from rankdad.remote.results.run_summary import TriedCandidate, TunedModel

MAX_MODELS = 12  # with a column each; beyond it, counts of choices


def tuning_table(run: RunResults) -> NumberTable | None:
    """Build a row for every trained candidate; None without any."""
    models = [model for model in run.summary.tuning if model.candidates]
    if not models:
        return None
    wide = len(models) > MAX_MODELS
    head = ["weight decay", "rank", "epochs", *(["mean", "chosen"] if wide else [model.model for model in models])]
    rows = []
    for place, one in enumerate(models[0].candidates):
        settings = [f"{one.weight_decay:g}", "–" if one.rank is None else str(one.rank), str(one.epochs)]
        if not wide:
            rows.append([*settings, *(_cell(model, place) for model in models)])
            continue
        tried = [model.candidates[place].validation for model in models if place < len(model.candidates)]
        values = [value for value in tried if value is not None]
        chosen = sum(model.chosen == place + 1 for model in models)
        mean = number(sum(values) / len(values) if values else None)
        rows.append([*settings, mean, f"{chosen} of {len(models)} times"])
    return NumberTable(head, rows)


def _cell(model: TunedModel, place: int) -> str:
    if place >= len(model.candidates):
        return "–"
    one: TriedCandidate = model.candidates[place]
    return f"{number(one.validation)} ({one.best_epoch})" + " ✓" * (model.chosen == place + 1)


def price(run: RunResults) -> str:
    """Describe the share of rows that chose the settings, and the extra training and traffic; "" without tuning."""
    models, steps = run.summary.tuning, run.steps
    rows = sum(model.samples for model in models)
    if not rows:
        return ""
    held_out = percent(sum(model.held_out for model in models) / rows)
    text = (
        f"Each of {count(len(run.spec.candidates), 'candidate')} was trained without {held_out} of a model's training "
        "rows and validated on them; the best was trained again on all of them."
    )
    own = without_candidates(steps)
    sent, own_sent = (float((table["bytes_up"] + table["bytes_down"]).sum()) for table in (steps, own))
    if own_sent and run.summary.status == "completed":
        text += (
            f" So the run took {number(len(steps) / len(own), 1)} times as many steps, and "
            f"{number(sent / own_sent, 1)} times as many bytes, as the final trainings alone."
        )
    return text
