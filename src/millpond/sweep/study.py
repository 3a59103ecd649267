"""Optuna's study of a sweep, in a journal in its folder that all processes share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.durable import FileLock
from millpond.envs.families import install_command
from millpond.errors import MillpondError
from millpond.sweep.folder import Rung, SweepFolder, SweepSettings, TrialRecord
from millpond.sweep.space import Space

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

JOURNAL = "journal.log"
SAMPLERS = ("tpe", "cmaes", "random")
FEWEST_FOR_IMPORTANCE = 4


def require_optuna() -> None:
    """Raise an error with the install command if Optuna is missing."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise MillpondError(f"a sweep needs Optuna, which is not installed: {install_command('sweep')}") from None


class _JournalLock:
    """A lock of the journal that ends with its process, so that a killed process holds up nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: FileLock | None = None

    def acquire(self) -> bool:
        self._lock = FileLock(self._path, wait=True)
        return True

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class SweepStudy:
    """Ask for points, and tell what became of them."""

    def __init__(self, folder: SweepFolder, settings: SweepSettings, space: Space) -> None:
        self._folder, self._settings, self._space = folder, settings, space
        with _quiet():
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            path = folder.path / JOURNAL
            lock = _JournalLock(folder.path / "locks" / "journal")
            _drop_unfinished_line(path, lock)
            self._storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))  # type: ignore[arg-type]
            first = "minimize" if settings.minimize else "maximize"
            directions: list[Any] = [first, *("minimize" for _ in settings.objectives[1:])]
            self._optuna = optuna
            self._study: Study = optuna.create_study(
                storage=self._storage, study_name="sweep", directions=directions, load_if_exists=True
            )

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Return the number and the overrides of a new point."""
        with _quiet():
            self._study.sampler = self._sampler()
            trial: Trial = self._study.ask()
            return trial.number, self._space.suggest(trial)

    def report(self, record: TrialRecord) -> None:
        """Report the rungs of a trial, from which Optuna learns even if it is stopped."""
        if len(self._settings.objectives) > 1:
            return
        with _quiet():
            for step, fraction in enumerate(self._settings.rungs):
                for rung in record.rungs:
                    if rung.fraction == fraction and rung.mean is not None:
                        self._storage.set_trial_intermediate_value(self._id(record.number), step, rung.mean)

    def finished(self, record: TrialRecord) -> None:
        """Tell the scores of a trial that was trained to its end."""
        assert record.score is not None
        values = [record.score]
        if len(self._settings.objectives) > 1:
            values.append(record.hours_per_run(self._settings.seeds))
        self._tell(record.number, "COMPLETE", values)

    def stopped(self, record: TrialRecord) -> None:
        """Tell that a trial was stopped at a rung."""
        self.report(record)
        self._tell(record.number, "PRUNED", None, record.reason)

    def refused(self, number: int, reason: str) -> None:
        """Tell that a point cannot run: for the search it is a poor one."""
        self._tell(number, "FAIL" if len(self._settings.objectives) > 1 else "PRUNED", None, reason)

    def failed(self, number: int, reason: str) -> None:
        self._tell(number, "FAIL", None, reason)

    def same_as(self, number: int, other: TrialRecord) -> None:
        """Tell that a point has been tried: its scores would be the same."""
        if other.state == "finished":
            self.finished(_renumbered(other, number))
        elif other.state == "stopped":
            self.stopped(_renumbered(other, number))
        else:
            self.failed(number, f"the same point as trial {other.number}")

    def open_numbers(self) -> list[int]:
        """Return the numbers of trials that have not been told."""
        with _quiet():
            return [trial.number for trial in self._study.get_trials(deepcopy=False) if not trial.state.is_finished()]

    def reasons(self) -> dict[int, str]:
        """Return why points were refused or stopped, or failed, by number."""
        with _quiet():
            trials = self._study.get_trials(deepcopy=False)
        return {trial.number: trial.user_attrs["reason"] for trial in trials if "reason" in trial.user_attrs}

    def importance(self) -> dict[str, float]:
        """Return the importance of each parameter for the first objective, in [0, 1]; empty with few finished trials."""
        with _quiet():
            from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

            complete = [t for t in self._study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
            if len({tuple(sorted(t.params.items(), key=str)) for t in complete}) < FEWEST_FOR_IMPORTANCE:
                return {}
            sign = -1.0 if self._settings.minimize else 1.0
            try:
                found = get_param_importances(
                    self._study,
                    evaluator=PedAnovaImportanceEvaluator(evaluate_on_local=False),
                    target=lambda trial: -sign * trial.values[0],  # the evaluator looks at the lowest
                )
            except (ValueError, RuntimeError):  # all trials have the same score, or no parameter in common
                return {}
        return {key: float(value) for key, value in found.items()}

    def pareto(self) -> list[int]:
        """Return the numbers of the trials that no other beats in both objectives."""
        if len(self._settings.objectives) == 1:
            return []
        with _quiet():
            return sorted(trial.number for trial in self._study.best_trials)

    def _sampler(self) -> Any:
        """Return the sampler for the next point. Its seed is the point's number, so that a killed sweep asks for the same."""
        from optuna import samplers

        asked = len(self._study.get_trials(deepcopy=False))
        seed = self._settings.random_seed * 100_003 + asked
        startup = max(4, min(10, self._settings.trials // 3))
        if self._settings.sampler == "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)
        if self._settings.sampler == "cmaes":
            return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        return samplers.RandomSampler(seed=seed)

    def _id(self, number: int) -> int:
        return int(self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number))

    def _tell(self, number: int, state: str, values: Sequence[float] | None, reason: str = "") -> None:
        with _quiet():
            if reason:
                self._storage.set_trial_user_attr(self._id(number), "reason", reason)
            self._study.tell(number, values, state=self._optuna.trial.TrialState[state], skip_if_finished=True)


def _renumbered(record: TrialRecord, number: int) -> TrialRecord:
    from dataclasses import replace

    return replace(record, number=number, reason=f"the same point as trial {record.number}")


def _drop_unfinished_line(path: Path, lock: _JournalLock) -> None:
    """Remove a line that was not written to its end, as after a power cut; Optuna would refuse the whole journal."""
    if not path.exists():
        return
    lock.acquire()
    try:
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(path, content.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's log lines and its warnings about experimental features to itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        yield


def check_sampler(settings: SweepSettings, space: Space) -> None:
    """Refuse what a sampler cannot search."""
    if settings.sampler not in SAMPLERS:
        raise MillpondError(f"--sampler {settings.sampler} is unknown; there are {', '.join(SAMPLERS)}")
    if settings.sampler != "cmaes":
        return
    if len(settings.objectives) > 1:
        raise MillpondError("--sampler cmaes searches for one objective; with return,hours use --sampler tpe")
    wrong = [p.key for p in space.parameters if p.form == "choices" or p.condition]
    if wrong:
        raise MillpondError(
            f"--sampler cmaes searches ranges; choices and conditions ({', '.join(wrong)}) need --sampler tpe"
        )
    try:
        import cmaes  # noqa: F401
    except ImportError:
        raise MillpondError(f"--sampler cmaes needs the package cmaes: {install_command('sweep')}") from None


def best_of(trials: Sequence[TrialRecord], settings: SweepSettings) -> TrialRecord | None:
    """Return the finished trial with the best score; the earlier one of two alike."""
    finished = [trial for trial in trials if trial.score is not None]
    if not finished:
        return None
    sign = 1.0 if settings.minimize else -1.0
    return min(finished, key=lambda trial: (sign * (trial.score or 0.0), trial.number))


def final_rung(record: TrialRecord) -> Rung | None:
    """Return the newest rung that all seeds have reached."""
    return next((rung for rung in reversed(record.rungs) if rung.mean is not None), None)


def same_point(params: Mapping[str, Any], trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return a trial of the same point, if there is one."""
    return next((trial for trial in trials if trial.params == dict(params)), None)
