"""Train, kill, resume and verify for as long as you like: `make soak`, or `python benchmarks/soak.py --minutes 60`.

Each cycle trains a small mixture (with its lake) and a small PPO run with the command `millpond train`, in real processes that
are killed with SIGKILL at random moments and resumed until they are done. Then the weights must equal those of a run that was
never killed, bit for bit, the metrics must have the same records, and every checksum of the lake must match. Counts are printed
after every cycle; the first difference ends the soak with exit code 1, and its folder is kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hardware import processor
from millpond.replay import Lake
from millpond.replay.tools import compact, verify

MIXTURE = [
    "mixture", "mixture.agents=2", "mixture.total_frames=8192", "mixture.collections_per_round=4", "mixture.big_updates=20",
    "mixture.pond_transitions=256", "mixture.big_pond_transitions=400", "pqn.num_envs=4", "pqn.num_steps=16",
    "pqn.num_minibatches=2", "pqn.update_epochs=2", "lake.acknowledge_every=32", "dqn.batch_size=16",
    "policy.hidden_size=16", "env.max_steps=60", "eval.episodes=2", "checkpoint.interval=1", "log.tensorboard=false",
]  # fmt: skip
PPO = [
    "grid", "trainer.num_envs=16", "trainer.num_workers=2", "trainer.batch_size=2048", "trainer.minibatch_size=512",
    "trainer.bptt_horizon=16", "trainer.total_iterations=100", "policy.hidden_size=16", "eval.interval=4", "eval.episodes=2",
    "checkpoint.interval=1", "log.tensorboard=false",
]  # fmt: skip
KILLS_PER_RUN = 5
SECONDS_TO_START = 6.0  # a process that dies before it has saved anything tests little


class Soak:
    """Runs and what became of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.counts: Counter[str] = Counter()

    def train(self, *words: str, kill_after: float | None = None) -> bool:
        """Run `millpond train`; return True if it ended, False if it was killed."""
        command = [sys.executable, "-m", "millpond", "train", *words]
        log = open(self.folder / "log.txt", "ab")  # noqa: SIM115
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.counts["kills"] += 1
            return False
        finally:
            log.close()
        if code:
            printed = (self.folder / "log.txt").read_text(errors="replace").splitlines()[-5:]
            raise SystemExit("\n".join([f"{' '.join(command)} ended with exit code {code}:", *printed]))
        return True

    def cycle(self, kind: str, recipe: list[str], seed: int) -> None:
        """Train once without and once with kills, and compare."""
        whole, cut = f"{kind}-{seed}-whole", f"{kind}-{seed}-cut"
        settings = [*recipe, f"seed={seed}", f"run_dir={self.folder}"]
        self.train(*settings, "--run", whole)
        began = time.perf_counter()
        done = self.train(*settings, "--run", cut, kill_after=self.moment())
        kills = 0
        while not done:
            kills += 1
            limit = self.moment() if kills < KILLS_PER_RUN else None
            if (self.folder / cut).exists():
                self.counts["resumes"] += 1
                done = self.train("--resume", str(self.folder / cut), kill_after=limit)
            else:  # killed before it had a folder
                done = self.train(*settings, "--run", cut, kill_after=limit)
            if kind == "mixture":
                self.verify(self.folder / cut / "lake")
        self.counts[f"{kind} runs"] += 1
        self.compare(self.folder / whole, self.folder / cut)
        if kind == "mixture":
            compact(self.folder / cut / "lake")
            self.verify(self.folder / cut / "lake")
        self.counts["seconds"] += int(time.perf_counter() - began)

    def moment(self) -> float:
        """Return after how many seconds to kill a process."""
        return SECONDS_TO_START + self.chance.expovariate(0.3)

    def verify(self, lake: Path) -> None:
        if not (lake / "lake.json").exists():
            return
        report = verify(lake)
        if not report.good:
            raise SystemExit("\n".join(report.lines()))
        self.counts["lakes verified"] += 1
        with Lake(lake) as opened:
            self.counts["transitions verified"] += opened.transitions()

    def compare(self, whole: Path, cut: Path) -> None:
        """Compare the last checkpoints and the number of records."""
        last = [sorted((run / "checkpoints").glob("[0-9]*"))[-1] for run in (whole, cut)]
        weights = [(checkpoint / "weights.safetensors").read_bytes() for checkpoint in last]
        records = [
            [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (whole, cut)
        ]
        steps = [[record.get("updates") for record in of_run] for of_run in records]
        if last[0].name != last[1].name or weights[0] != weights[1] or steps[0] != steps[1]:
            raise SystemExit(f"{cut} differs from {whole}, which was never killed")
        self.counts["runs equal to an uncut one, bit for bit"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(processor(), flush=True)
    began = time.perf_counter()
    scratch = Path(tempfile.mkdtemp(prefix="soak-"))
    soak, seed = Soak(scratch, arguments.seed), arguments.seed
    try:
        while time.perf_counter() - began < 60 * arguments.minutes:
            for kind, recipe in (("mixture", MIXTURE), ("ppo", PPO)):
                soak.cycle(kind, recipe, seed)
            seed += 1
            minutes = (time.perf_counter() - began) / 60
            counts = ", ".join(f"{count:,} {name}" for name, count in soak.counts.items() if name != "seconds")
            print(f"{minutes:.1f} minutes: {counts}; nothing lost", flush=True)
    except BaseException:
        print(f"its runs are kept in {scratch}", file=sys.stderr)
        raise
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
