"""Every fault, every exit and every power cut of the scripted sessions with lakes and checkpoints.

python -m tests.support.faults                        all of them, and prints how many there were
python -m tests.support.faults --sample 50 --seed 3   50 of each kind and session
python -m tests.support.faults plain                  one session: plain, mixed, numbers, limited or checkpoints
python -m tests.support.faults plain --only "EIO at 17"     repeats one, as a failure names it
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import checkpoint_faults as checkpoints
from tests.support import lake_faults as lakes
from tests.support.disk_calls import without_syncs
from tests.support.faulty_disk import every_fault
from tests.support.lake_session import SCRIPTS
from tests.support.power_loss import shares

CHECKPOINTS = "checkpoints"
SESSIONS = (*SCRIPTS, CHECKPOINTS)
CUTS_PER_POINT = 6
FAULTS_BEFORE_POWER_CUT = ("EIO", "ENOSPC", "torn", "short, then ENOSPC")
Case = tuple[str, Callable[[Path], object]]  # what happens, and a function that tries it in a folder


@dataclass
class Cases:
    """All cases of one session, by kind.

    faults   a call fails once or for good, a write is short, or the simulated process dies
    exits    a real process ends at a call
    cuts     the power fails after a change of the disk, and leaves one of the states that it may leave
    both     a call fails, the session goes on, and at its end the power fails
    """

    session: str
    folder: Path
    seed: int = 0
    kinds: dict[str, list[Case]] = field(default_factory=dict)
    calls: int = 0
    changes: int = 0

    def __post_init__(self) -> None:
        clean = self.folder / f"clean-{self.session}"
        if self.session == CHECKPOINTS:
            self._checkpoints(checkpoints.clean_saves(clean))
        else:
            self._lake(lakes.clean_session(self.session, clean))

    def _lake(self, clean: lakes.CleanSession) -> None:
        faults = every_fault(clean.faults)
        self.calls, self.changes = len(clean.faults.calls), len(clean.trace.events)
        self.kinds = {
            "faults": [
                _case(f"{k} at {n}", lambda f, k=k, n=n: lakes.lake_with_fault(clean, f, k, n)) for k, n in faults
            ],
            "exits": [
                _case(f"exit at {n}", lambda f, n=n: lakes.lake_after_exit(clean, f, n))
                for n in range(1, self.calls + 1)
            ],
            "cuts": [
                _case(
                    f"power cut after {p}, state {k}",
                    lambda f, p=p, k=k, s=s: lakes.lake_after_power_cut(
                        clean, clean.trace.disk(p), p, f, self._rng(p, k), *s
                    ),
                )
                for p, k, s in self._cuts()
            ],
            "both": [
                _case(
                    f"{k} at {n}, then power cut",
                    lambda f, k=k, n=n: lakes.lake_with_fault(clean, f, k, n, power_cut=self._rng(n, 0)),
                )
                for k, n in faults
                if k in FAULTS_BEFORE_POWER_CUT
            ],
        }

    def _checkpoints(self, clean: checkpoints.CleanSaves) -> None:
        faults = every_fault(clean.faults)
        self.calls, self.changes = len(clean.faults.calls), len(clean.trace.events)
        self.kinds = {
            "faults": [
                _case(f"{k} at {n}", lambda f, k=k, n=n: checkpoints.saves_with_fault(f, k, n)) for k, n in faults
            ],
            "exits": [
                _case(f"exit at {n}", lambda f, n=n: checkpoints.saves_after_exit(clean, f, n))
                for n in range(1, self.calls + 1)
            ],
            "cuts": [
                _case(
                    f"power cut after {p}, state {k}",
                    lambda f, p=p, k=k, s=s: checkpoints.saves_after_power_cut(
                        clean, clean.trace.disk(p), p, f, self._rng(p, k), *s
                    ),
                )
                for p, k, s in self._cuts()
            ],
        }

    def _rng(self, *numbers: int) -> random.Random:
        return random.Random(f"{self.seed} {numbers}")

    def _cuts(self) -> Iterator[tuple[int, int, tuple[float, float]]]:
        """Iterate over points, numbers of states, and shares of what is not durable."""
        for point in range(self.changes + 1):
            for number, share in enumerate(shares(CUTS_PER_POINT, self._rng(point))):
                yield point, number, share

    def sample(self, kind: str, count: int | None) -> list[Case]:
        """Return `count` cases of a kind, spread at random over the session; all of them without a count."""
        cases = self.kinds[kind]
        if count is None or count >= len(cases):
            return cases
        return random.Random(f"{self.seed} {kind} {self.session}").sample(cases, count)

    def run(self, cases: list[Case]) -> list[str]:
        """Try the cases, and return what failed."""
        failures = []
        for name, work in cases:
            try:
                with without_syncs():
                    work(self.folder / "case")
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                said = f"{type(error).__name__}: {error}".replace(str(self.folder), "")[:400]
                failures.append(f"{self.session}, {name}: {said} ({Path(where.filename).name}:{where.lineno})")
            finally:
                shutil.rmtree(self.folder / "case", ignore_errors=True)
        return failures


def _case(name: str, work: Callable[[Path], object]) -> Case:
    return name, work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="*", default=SESSIONS)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of bytes that were cut off
    tried, failed = 0, 0
    for session in options.sessions:
        with tempfile.TemporaryDirectory() as folder:
            cases = Cases(session, Path(folder), options.seed)
            if options.only:
                for name, work in (case for kind in cases.kinds.values() for case in kind if case[0] == options.only):
                    work(Path(folder) / "case")
                    print(f"{session}, {name}: as it must be")
                continue
            for kind in cases.kinds:
                chosen = cases.sample(kind, options.sample)
                failures = cases.run(chosen)
                tried, failed = tried + len(chosen), failed + len(failures)
                print(
                    f"{session}: {len(chosen):,} of {len(cases.kinds[kind]):,} {kind}, {len(failures):,} failed "
                    f"({cases.calls:,} calls, {cases.changes:,} changes)",
                    flush=True,
                )
                for failure in failures[:20]:
                    print(f"    {failure}")
    print(f"{tried:,} tried, {failed:,} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
