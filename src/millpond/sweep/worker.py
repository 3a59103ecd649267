"""One process of a sweep: it runs trials until there are enough, then the winner on fresh seeds.

    python -m millpond.sweep.worker FOLDER [--at-once N]

Processes share nothing but the folder, so any number of them, on machines that see it, work on one sweep. A trial belongs to
the process that holds its lock; if that dies, another one continues the trial from its checkpoints.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from millpond.config.draft import load_draft
from millpond.durable import FileLock, replace_json
from millpond.errors import MillpondError
from millpond.planner.estimate import duration
from millpond.safe_read import read_json_object
from millpond.sweep.folder import FIRST_FRESH_SEED, Session, SweepFolder, SweepSettings, TrialRecord
from millpond.sweep.points import Cost, PointRefused, SweepPoint, check_point
from millpond.sweep.results import write_results
from millpond.sweep.space import make_space
from millpond.sweep.study import SweepStudy, best_of, same_point
from millpond.sweep.trial import Interrupted, TrialFailed, run_trial, run_winner_seed

MAX_DEATHS = 3  # of processes in a trial that got no further
MAX_REFUSED = 200  # points in a row that cannot run
POLL_SECONDS = 1.0
INTERRUPTED = 3  # exit code
WINNERS = "winner.json"


@dataclass
class Claim:
    """A trial that this process works on; nobody else does while the lock is held."""

    record: TrialRecord
    point: SweepPoint
    lock: FileLock


class NoMore(Exception):
    """No further trial is started; the message is the reason."""


class SweepWorker:
    """Runs trials of a sweep."""

    def __init__(self, folder: SweepFolder, *, at_once: int = 1) -> None:
        self.folder, self.at_once = folder, at_once
        self.settings: SweepSettings = folder.settings()
        loaded = load_draft(self.settings.recipe, self.settings.overrides)
        self.study = SweepStudy(folder, self.settings, make_space(self.settings.space, loaded, "the space"))

    def work(self) -> None:
        """Run trials until there are enough, then the winner on fresh seeds. Raises `Interrupted` if told to stop."""
        try:
            while True:
                claim = self._claim()
                if claim is None:  # others still run theirs, and may leave them behind
                    time.sleep(POLL_SECONDS)
                    continue
                self._run(claim)
        except NoMore as reason:
            print(f"no further trial: {reason}", flush=True)
        self._run_winner()

    def seconds_left(self) -> float | None:
        """Return the seconds until the hours of the sweep are over; None without a limit."""
        hours = self.settings.hours
        return None if hours is None else hours * 3600 - self.folder.seconds_spent()

    # -- trials

    def _claim(self) -> Claim | None:
        """Return a trial to run: one whose process died, or a new one. None: there may be one later."""
        with self.folder.claiming():
            waiting = False
            for number in self.study.open_numbers():
                lock = self.folder.try_lock(f"trial{number:04d}")
                if lock is None:
                    waiting = True
                    continue
                claim = self._take_over(number, lock)
                if claim is not None:
                    return claim
                lock.release()
            trials = self.folder.trials()
            reason = self._enough(trials)
            if reason and waiting:
                return None
            if reason:
                raise NoMore(reason)
            return self._new_claim(trials, waiting)

    def _enough(self, trials: list[TrialRecord]) -> str:
        left = self.seconds_left()
        if len(trials) >= self.settings.trials:
            return f"{len(trials)} of {self.settings.trials} trials are there"
        return "the hours are over" if left is not None and left <= self._reserve(trials) else ""

    def _take_over(self, number: int, lock: FileLock) -> Claim | None:
        """Continue a trial whose process has ended; None if there is nothing to continue."""
        record = self.folder.trial(number)
        if record is None:
            self.study.failed(number, "its process died before it began")
        elif record.state != "running":  # its process died before it could tell
            self._tell(record)
        elif record.deaths >= MAX_DEATHS:
            reason = f"its process died {record.deaths} times at the same place; see logs"
            self._tell(self.folder.save(replace(record, state="failed", reason=reason, ended=time.time())))
        else:
            record = self.folder.save(replace(record, deaths=record.deaths + 1))
            try:
                point = check_point(
                    self.settings, record.params, self.folder.trials(), at_once=self.at_once, trust=True
                )
            except PointRefused as error:
                self._tell(self.folder.save(replace(record, state="failed", reason=str(error), ended=time.time())))
                return None
            return Claim(record, point, lock)
        return None

    def _new_claim(self, trials: list[TrialRecord], waiting: bool) -> Claim | None:
        left = self.seconds_left()
        rules: Counter[str] = Counter()
        for _ in range(MAX_REFUSED):
            number, params = self.study.ask()
            same = same_point(params, trials)
            if same is not None:
                self.study.same_as(number, same)
                rules[""] += 1
                continue
            try:
                point = check_point(self.settings, params, trials, at_once=self.at_once, trust=True)
            except PointRefused as error:
                self.study.refused(number, str(error))
                rules[str(error)] += 1
                continue
            expected = None if point.cost.seconds is None else point.cost.seconds * self.settings.seeds
            reserve = self._reserve(trials, point.cost)
            if left is not None and expected is not None and expected > left - reserve:
                rule = f"{duration(expected)} expected; of the {duration(max(0.0, left))} that were left, "
                rule += f"{duration(reserve)} were kept for the winner on fresh seeds"
                self.study.failed(number, rule)
                rules["too long"] += 1
                if rules["too long"] >= MAX_REFUSED // 10:
                    break
                continue
            lock = self.folder.try_lock(f"trial{number:04d}")
            assert lock is not None  # the number is new, and only this process claims
            record = TrialRecord(
                number,
                params,
                "running",
                steps_per_run=point.steps,
                speed_settings=point.speed_settings,
                expected_seconds=expected,
                expected_from=point.cost.source,
                memory_bytes=point.cost.memory,
                deaths=1,
                began=time.time(),
            )
            return Claim(self.folder.save(record), point, lock)
        if waiting:
            return None
        if rules["too long"]:
            raise NoMore("no point fits into the hours that are left")
        if not trials:
            rule, count = rules.most_common(1)[0]
            raise MillpondError(f"{MAX_REFUSED} points in a row cannot run, {count} of them by this rule: {rule}")
        raise NoMore("all points that can run have been tried")

    def _reserve(self, trials: list[TrialRecord], cost: Cost | None = None) -> float:
        """Return the seconds to keep for the winner's runs on fresh seeds."""
        per_run = [trial.seconds / self.settings.seeds for trial in trials if trial.state == "finished"]
        seconds = max(per_run) if per_run else (cost.seconds if cost is not None else None) or 0.0
        return seconds * -(-self.settings.final_seeds // self.at_once)

    def _run(self, claim: Claim) -> None:
        record = claim.record
        left = self.seconds_left()
        deadline = None if left is None else time.monotonic() + left - self._reserve(self.folder.trials())
        try:
            record = run_trial(self.folder, self.settings, record, claim.point, deadline=deadline, trust=True)
        except Interrupted:
            now = self.folder.trial(record.number) or record
            self.folder.save(replace(now, deaths=max(0, now.deaths - 1)))
            claim.lock.release()
            raise
        except TrialFailed as error:
            now = self.folder.trial(record.number) or record
            record = self.folder.save(replace(now, state="failed", reason=str(error), ended=time.time()))
        self._tell(record)
        claim.lock.release()
        with self.folder.claiming():
            write_results(self.folder, self.study)

    def _tell(self, record: TrialRecord) -> None:
        if record.state == "finished":
            self.study.report(record)
            self.study.finished(record)
        elif record.state == "stopped":
            self.study.stopped(record)
        else:
            self.study.failed(record.number, record.reason)

    # -- the winner

    def _run_winner(self) -> None:
        """Train the best trial on fresh seeds; several processes share them."""
        best = best_of(self.folder.trials(), self.settings)
        if best is None:
            return
        point = check_point(self.settings, best.params, at_once=self.at_once, trust=True)
        for seed in range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + self.settings.final_seeds):
            if str(seed) in fresh_scores(self.folder, best.number):
                continue
            lock = self.folder.try_lock(self.folder.winner_run_name(best.number, seed))
            if lock is None:
                continue
            left = self.seconds_left()
            deadline = None if left is None else time.monotonic() + left
            try:
                score = run_winner_seed(self.folder, self.settings, best, point, seed, deadline=deadline, trust=True)
            finally:
                lock.release()
            with self.folder.claiming():
                save_fresh_score(self.folder, best.number, seed, score)
                write_results(self.folder, self.study)


def fresh_scores(folder: SweepFolder, number: int) -> dict[str, float]:
    """Return the scores of a trial on fresh seeds, by seed."""
    path = folder.path / WINNERS
    scores: dict[str, float] = read_json_object(path).get(str(number), {}) if path.exists() else {}
    return scores


def save_fresh_score(folder: SweepFolder, number: int, seed: int, score: float) -> None:
    """Add the score of a trial on a fresh seed; scores of earlier winners stay."""
    path = folder.path / WINNERS
    winners = read_json_object(path) if path.exists() else {}
    winners.setdefault(str(number), {})[str(seed)] = score
    replace_json(path, json.loads(json.dumps(winners)))


def main() -> int:
    """Work on a sweep until it is done; the exit code is 3 if the process was told to stop."""
    parser = argparse.ArgumentParser(prog="millpond.sweep.worker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at-once", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)  # between trainings; these save first
    folder = SweepFolder(arguments.folder)
    try:
        with Session(folder):
            SweepWorker(folder, at_once=arguments.at_once).work()
    except (Interrupted, KeyboardInterrupt) as error:
        print(f"stopped: {error}", flush=True)
        return INTERRUPTED
    except MillpondError as error:
        print(f"millpond: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
