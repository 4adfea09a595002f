"""Writes a run's directory: specification, plan, rows of steps and metrics, and the summary."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from rankdad.common.errors import UserError
from rankdad.common.files import write_json
from rankdad.common.metrics.monitoring import measured_on
from rankdad.common.metrics.summary import Metrics
from rankdad.common.metrics.sums import Tally
from rankdad.common.preparation import Preparing
from rankdad.common.preparation.coefficients import OWN
from rankdad.common.protocol.messages import Body, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.base import Cost, Ready
from rankdad.common.rounds.evaluation import Evaluation, PooledMetrics
from rankdad.common.rounds.hello import RegionHello, Roster, merge_hellos
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.rounds.step import Step
from rankdad.common.rounds.sums import Sums
from rankdad.common.run.batches import schedule, steps_of_all
from rankdad.common.run.repeats import equal_repeats
from rankdad.common.run.study import Study
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import measured
from rankdad.common.spec.tree import TOP
from rankdad.common.user_code import by_site
from rankdad.page.history import History, rebuild_history
from rankdad.remote.results.coefficients import as_json, as_table
from rankdad.remote.results.progress import Progress
from rankdad.remote.results.run_summary import RunSummary
from rankdad.remote.results.solving import missing_sums_warning, solver_summary, undertrained, with_unsolved
from rankdad.remote.results.table_one import table_one
from rankdad.remote.results.tuning import began, note
from rankdad.remote.run_directory import PLAN
from rankdad.remote.run_file import RunFile
from rankdad.remote.step_record import CANDIDATE, StepRecord, layers_of, place_of, sent
from rankdad.remote.tables import rows_of, write_rows, write_tables
from rankdad.remote.tracking import Tracker

WHERE = ("fold", "epoch", "split", "site", "train_loss", "samples")  # first columns of the metrics
MAX_RESETS = 1000  # in a summary; the last ones
_log = logging.getLogger(__name__)


class Recorder:
    """Records rounds in a run's directory and file, and updates its `Progress`.

    Args:
        directory: the run's.
        file: the run's, for rows of tables.
        spec: the run's.
        plan: the run's.
        sites: members of this aggregator, in order; a region counts as one.
        name: its region's name; the top aggregator's by default.
        round_: round to resume from; later rows are written again.
        state: result of `state` at a checkpoint; None starts from the beginning.
        run: the run's identity.
        trackers: experiment trackers by name.
    """

    def __init__(
        self,
        directory: Path,
        file: RunFile,
        spec: RunSpec,
        plan: Plan,
        sites: tuple[str, ...],
        *,
        name: str = TOP,
        round_: int = 0,
        state: dict[str, Any] | None = None,
        run: str = "",
        trackers: Mapping[str, Tracker] | None = None,
    ) -> None:
        self.directory, self._file, self._sites = directory, file, sites
        self.progress = Progress.of(spec, plan, sites)
        self._spec, self._plan, self._preparing = spec, plan, Preparing(spec)
        self._sums: dict[str, Tensor] = {}  # [trainings, ...] by stage, over all sites
        self._scores: Tensor | None = None  # pooled scores of the last test
        state = state or {}
        write_json(directory / "run.json", spec.model_dump(mode="json"))
        write_json(directory / PLAN, {**plan.document(), "aggregator": name})
        layers, names = layers_of(plan), tuple(dict.fromkeys(("loss", spec.training.monitor)))
        self.history = History(sites, layers, names)
        self._steps = StepRecord(file, spec, plan, sites, self.progress, self.history)
        file.begin_table("metrics", [*WHERE, *measured(spec.task), "auc_error", *CANDIDATE * bool(spec.candidates)])
        if state:
            self.progress.restore(state["progress"])
            self._steps.losses = {site: (total, weight) for site, (total, weight) in state["losses"].items()}
            rebuild_history(self.history, partial(rows_of, file, before=round_), layers)
        self._trackers = dict(trackers or {})
        for tracked, tracker in self._trackers.items():
            tracker.begin(run, self._params(run), state.get("trackers", {}).get(tracked))
        self.summarise()

    def state(self) -> dict[str, Any]:
        """Return the recorder's state between two steps as JSON."""
        tracked = {name: tracker.state() for name, tracker in self._trackers.items()}
        return {"progress": self.progress.state(), "losses": self._steps.losses, "trackers": tracked}

    def _params(self, run: str) -> dict[str, str]:
        """Return the run's parameters for trackers."""
        spec = self._spec
        return {
            "name": spec.name,
            "run": run,
            "spec_sha256": spec.sha256(),
            "rankdad": self._plan.version,
            "task": spec.task.name,
            "model": spec.model.name,
            "method": spec.trained_by,
            "sites": str(len(spec.federation.sites)),
            "epochs": str(spec.training.epochs),
            "seed": str(spec.seed),
        }

    def _track(self, pooled: PooledMetrics, figures: Mapping[str, Mapping[str, float]]) -> None:
        """Send an epoch's or test's metrics to the trackers."""
        if not self._trackers:
            return
        test, p = pooled.split == "test", self.progress
        values = {
            f"{'test/' * test}{name}/{site}": value for site, own in figures.items() for name, value in own.items()
        }
        if not test:
            values |= {"traffic/bytes_up": p.up, "traffic/bytes_down": p.down}
            values["seconds/step"] = p.step_seconds / max(1, p.step)
        training = self._spec.training_name(pooled.fold).replace(", ", "-").replace(" ", "-")
        for tracker in self._trackers.values():
            tracker.note(training, pooled.epoch + 1, values)

    def reset(self, site: str, round_: int) -> None:
        """Record that a site lost its state and continues without residuals."""
        resets, reset = self.progress.resets, {"site": site, "round": round_}
        if reset not in resets[-len(self._sites) :]:
            resets.append(reset)
        del resets[:-MAX_RESETS]

    def heard(self, site: str, computed: float | None) -> None:
        """Record the seconds that a site reports to have computed for this step so far."""
        self._steps.heard(site, computed)

    def record(self, ready: Ready, update: Body, size: int, aggregation_seconds: float) -> None:
        """Record a completed round.

        Args:
            ready: contributions of the round.
            update: body of its update.
            size: of the packed update, in bytes.
            aggregation_seconds: from the last contribution to the update.
        """
        cost = Cost(size, ready.seconds + aggregation_seconds, aggregation_seconds)
        if ready.kind is not Kind.STEP:
            self._steps.computed = {}
        if ready.kind is not Kind.HELLO:  # hello includes the staff's time
            self.progress.note_round(f"{ready.kind.name}/{ready.exchange}", cost.seconds)
        ROUNDS[ready.kind].record(self, ready, update, cost)

    def note_hello(self, ready: Ready, update: Roster) -> None:
        """Record the sites and the number of steps."""
        progress = self.progress
        progress.steps_per_epoch = [schedule(self._spec, fold, 0).steps for fold in update.train]
        progress.steps, progress.batches = steps_of_all(self._spec, update.train, update.equal)
        if update.exact:
            progress.steps = progress.batches = progress.epochs = 0
        hellos = {child: merge_hellos([child], [message]) for child, message in self.sent(ready)}
        progress.rows = {child: sum(sum(own[0]) for own in hello.samples.values()) for child, hello in hellos.items()}
        progress.site_versions = {child: hello.version for child, hello in hellos.items()}
        self._note_sites(merge_hellos(self._sites, ready.messages), update.equal)
        progress.solver = solver_summary(self._spec, update.exact, progress.warnings)
        progress.method = "exact" if update.exact else self._spec.method.name
        self.summarise()

    def _note_sites(self, hello: RegionHello, equal: Sequence[int]) -> None:
        folds = self._spec.folds_per_repeat
        repeats = self._spec.tested_folds // folds
        self.progress.equal = list(equal)
        if hello.alike:
            different = {site: repeats - len(equal_repeats([own], folds)) for site, own in hello.alike.items()}
            self.progress.partitions = {"repeats": repeats, "run": repeats - len(equal), "sites": different}
        self.progress.tuning = began(self._spec, list(hello.samples.values()))
        self.progress.dropped |= hello.dropped
        self.progress.functions = by_site(hello.functions)
        if others := [site for site, own in hello.functions.items() if own != next(iter(hello.functions.values()))]:
            self.progress.warn("reader-differs", others)  # readers are not loaded here
        for warning, sites in hello.warnings.items():
            self.progress.warn(warning, sites)

    def note_sums(self, ready: Ready, update: Sums) -> None:
        """Record Table 1, coefficients, and the centre for test tallies."""
        self._sums[update.stage] = update.values
        self._record_solutions(update.stage)
        last = {site: message.body.values[-1] for site, message in self.sent(ready) if isinstance(message.body, Sums)}
        if described := self._preparing.described(update.stage, last):
            self.progress.table1 = table_one(self._spec, described)
            for kind, sites in self.progress.table1["worries"].items():
                self.progress.warn(kind, sites)
            self.summarise()
        if names := self._preparing.empty_inputs(update.stage, update.values):
            self.progress.table1.setdefault("warnings", []).append(missing_sums_warning(self._spec, names))
            self.summarise()
        if self._spec.kept_fold is not None and update.stage == OWN:
            self._record_coefficients(last, self._totals(self._spec.kept_fold))
        if self._sums.keys() >= set(self._preparing.stages) - self._preparing.solving.stages.keys():
            with contextlib.suppress(ValueError):  # totals that lead to no finite numbers end the run
                self.progress.study.around(self._preparing.fit(self._totals(0)))

    def _record_solutions(self, stage: str) -> None:
        """Record trainings whose exact solution did not converge."""
        solving = self._preparing.solving
        if not solving.exact or stage not in [*solving.folds][-1:]:
            return
        left = [fold for fold in range(self._spec.folds) if not solving.is_solved(self._totals(fold))]
        unsolved = [self._spec.training_name(fold) for fold in left]
        if unsolved and self.progress.solver.get("name") == "exact":
            self.progress.solver = with_unsolved(self._spec, self.progress.solver, unsolved)
            self.summarise()

    def _totals(self, fold: int) -> dict[str, Tensor]:
        """Return the sums of a training so far, by stage."""
        return {stage: values[fold] for stage, values in self._sums.items()}

    def _record_coefficients(self, sent: Mapping[str, Tensor], totals: Mapping[str, Tensor]) -> None:
        found = self._preparing.coefficients(totals)
        if found is not None and not self._preparing.solving.is_solved(totals):
            found = replace(found, problem="unsolved")
        if found is not None:
            own = self._preparing.solving.of_sites(sent)
            sites = {site: as_json(self._spec, one, own=True) for site, one in own.items()}
            self.progress.coefficients = {"pooled": as_json(self._spec, found), "sites": sites}
            write_rows(self.directory, "coefficients", as_table(self.progress.coefficients))
            self.summarise()

    def note_step(self, ready: Ready, update: Step, cost: Cost) -> None:
        """Record an exchange of a step and, after the last exchange, the step."""
        self._steps.note(ready, update, cost)

    def sent(self, ready: Ready) -> Iterator[tuple[str, Message]]:
        """Yield site and message of each contribution."""
        return sent(self._sites, ready)

    def note_evaluation(self, ready: Ready, pooled: PooledMetrics) -> None:
        """Record an epoch's or a test's metrics."""
        task, progress = self._spec.task, self.progress
        fold, candidate = place_of(self._spec, pooled.fold)
        if pooled.split == "test":
            self._record_end()
        if pooled.split == "test" and self._spec.place(pooled.fold)[1] is not None:
            note(self._spec, progress.tuning, pooled.fold, progress.best_value, progress.best_epoch)
            self._next_fold(pooled.fold)
            return
        models: dict[str, Tally] = {}
        baselines: dict[str, Tally] = {}
        references: dict[str, dict[str, Tally]] = {name: {} for name in self._plan.references}
        for site, message in self.sent(ready):
            assert isinstance(message.body, Evaluation)
            models[site] = message.body.tally
            if message.body.baseline is not None:
                baselines[site] = message.body.baseline
            for name, tally in zip(self._plan.references, message.body.references, strict=False):
                references[name][site] = tally
        epoch: dict[str, dict[str, float]] = {}
        rows: dict[str, PooledMetrics | Metrics] = {"pooled": pooled}
        monitor = self._spec.training.monitor
        rows |= {site: measured_on(pooled.split, task, monitor, tally) for site, tally in models.items()}
        for site, metrics in rows.items():
            loss = self._steps.train_loss(site) if pooled.split == "validation" else ""
            known = {str(name): value for name, value in metrics.values.items() if value is not None}
            figures: list[object] = [known.get(name, "") for name in measured(task)]
            figures += ["" if metrics.auc_error is None else metrics.auc_error]
            epoch[site] = known | ({"train_loss": float(loss)} if loss != "" else {})
            row = [fold, pooled.epoch + 1, pooled.split, site, loss, metrics.samples]
            self._file.row("metrics", [*row, *figures, *candidate])
        self._track(pooled, epoch)
        if pooled.split == "test":
            progress.study.add(models, baselines, references)
            self._judge_end()
            progress.warn("left-out-of-a-test", [self._sites[place] for place in sorted(ready.missing)])
            self._scores = pooled.scores
            self._next_fold(pooled.fold)
            write_rows(self.directory, "sites", progress.study.by_site())
            write_rows(self.directory, "calibration", progress.study.calibration_rows())
            write_rows(self.directory, *progress.study.predictions())
        else:
            self.history.add_epoch(epoch)
            progress.validation = pooled
            progress.train_loss = float(self._steps.train_loss("pooled") or 0.0)
            self._steps.losses = dict.fromkeys(self._sites, (0.0, 0.0))

    def _record_end(self) -> None:
        """Record whether the last epoch of a training was its best."""
        progress = self.progress
        if not progress.epoch or not self._spec.validation:
            return
        found = progress.validation and progress.validation.values.get(self._spec.training.monitor)
        if found is None:
            progress.unmeasured += 1
        else:
            progress.measured += 1
            progress.best_is_last += progress.best_epoch + 1 == progress.epoch > 1
        self._judge_end()

    def _judge_end(self) -> None:
        """Record whether trainings ended too early; the tests say whether the model is better than a guess."""
        progress, found = self.progress, self.progress.study.pooled
        guess = None if found is None else progress.study.guess()
        reached, least = (None if one is None else one.values.get("loss") for one in (found, guess))
        counts = progress.best_is_last, progress.measured, progress.unmeasured
        guesses = reached is not None and least is not None and reached >= least
        progress.undertrained = undertrained(self._spec, *counts, guesses=guesses)

    def note_comparison(self, sent: Mapping[str, Tensor]) -> None:
        """Record the paired comparison of a test's models."""
        study = self.progress.study
        self.progress.warn("left-out-of-a-comparison", study.compare(sent, self._scores))
        write_rows(self.directory, "sites", study.by_site())
        self.summarise()

    def _next_fold(self, fold: int) -> None:
        study = Study(fold=fold, equal=tuple(self.progress.equal)).following(self._spec, (None, 0), 0, 0)
        if study.fold < self._spec.folds:
            self.progress.fold, self.progress.epoch, self.progress.best_epoch = study.fold, 0, 0
            self.progress.validation = self.progress.best_value = None
            self.history.begin_fold()

    def finish(self, status: str, reason: str = "", code: str = "", field: str = "") -> None:
        """Write the final summary and the tables."""
        self.progress.status, self.progress.reason = status, reason
        self.progress.code, self.progress.about = code, field
        for tracker in self._trackers.values():
            tracker.close(status)
        self.close()
        self.summarise()

    def close(self) -> None:
        """Write the tables so far."""
        for tracker in self._trackers.values():
            tracker.close()
        if not self._file.is_open:  # it was closed before
            return
        try:
            write_tables(self._file, self.directory)
        except UserError as error:  # the rows remain in the run's file
            _log.error("%s", error)

    def summarise(self) -> None:
        """Write `summary.json`."""
        document = RunSummary.of(self.progress).model_dump(exclude_unset=True)
        write_json(self.directory / "summary.json", document)
