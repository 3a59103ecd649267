"""Measure the board: a folder of many runs and one that trains, time until the page shows them, memory, requests.

    python benchmarks/board.py                       # 200 runs of 2,000 records
    python benchmarks/board.py --runs 2000 --long 1000000
    python benchmarks/board.py --keep FOLDER         # generate the folder only, to look at it

The runs are generated: real run folders with records as `grid` writes them. `--long` adds one run of so many records. The
time of the page is measured in Chromium, if there is one with its driver.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from millpond.config import load
from millpond.durable import replace_json
from millpond.planner import plan
from millpond.store import Run
from millpond.store.status import STATE_FILE, Process, write_status
from millpond.trainers.common.session import config_text
from tests.support import browser as browsers

METRICS = (
    "reward_per_agent_step", "reward_std", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction",
    "explained_variance", "grad_norm", "agent_steps_per_second", "env/ores", "env/batteries", "env/hearts",
)  # fmt: skip
PHASES = ("collect", "collect/infer", "collect/step", "collect/store", "advantage", "train", "eval", "save")
STATES = ("finished",) * 8 + ("stopped", "failed")


def record_at(number: int, top: float, speed: float, rng: random.Random, of: int) -> dict[str, float]:
    """Return a record of a run whose return rises to `top`, with an evaluation every twentieth time."""
    share = number / of
    steps = 16_384 * (number + 1)
    episode_return = top * (1 - math.exp(-4 * share * speed)) + rng.gauss(0, 0.04 * abs(top))
    record: dict[str, float] = {
        "updates": 16 * (number + 1), "agent_steps": steps, "env_steps": steps // 3, "frames": steps // 3,
        "episodes": steps // 3000, "seconds": 1.3 * (number + 1), "episode_return": episode_return, "episode_length": 1000.0,
    }  # fmt: skip
    record |= {name: (k + 1) * math.exp(-share) * (1 + rng.gauss(0, 0.05)) for k, name in enumerate(METRICS)}
    record |= {f"time/{name}": 0.3 / (k + 1) for k, name in enumerate(PHASES)}
    if number % 20 == 0:
        record |= {
            "eval/episode_return": episode_return, "eval/episode_return_low": episode_return * 0.95,
            "eval/episode_return_high": episode_return * 1.05, "eval/episode_length": 1000.0,
        }  # fmt: skip
    return record


def make_runs(root: Path, count: int, records: int, seed: int = 0) -> None:
    """Write `count` runs: every four of them differ in their seed alone."""
    rng = random.Random(seed)
    planned = plan("grid").to_json()
    recipe = load("grid")
    text = config_text(recipe)
    for number in range(count):
        if number % 4 == 0:
            rate, entropy = 10 ** rng.uniform(-4, -2.5), rng.choice([0.001, 0.003, 0.01, 0.03])
            top, speed = 14 * math.exp(-((math.log10(rate) + 3.2) ** 2)) * rng.uniform(0.8, 1.1), rng.uniform(0.3, 2.5)
        values = text.replace("seed: 1\n", f"seed: {number % 4}\n", 1)
        values = _with(_with(values, "learning_rate", f"{rate:.3g}"), "ent_coef", str(entropy))
        name = f"grid-{number:03d}"
        run = Run.start(root, name, config_yaml=values, plan=planned)
        spread = rng.uniform(0.93, 1.07)
        with run.metrics_path.open("w") as file:
            for index in range(records):
                file.write(json.dumps(record_at(index, top * spread, speed, rng, records)) + "\n")
        write_status(run.folder, rng.choice(STATES))
        _set_age(run.folder, rng.uniform(60, 30 * 86400))
        run.close()


def _with(text: str, key: str, value: str) -> str:
    lines = text.splitlines()
    place = next(k for k, line in enumerate(lines) if line.strip().startswith(f"{key}:"))
    lines[place] = f"{lines[place].split(':')[0]}: {value}"
    return "\n".join(lines) + "\n"


def _set_age(folder: Path, seconds: float) -> None:
    values = json.loads((folder / STATE_FILE).read_text())
    replace_json(folder / STATE_FILE, {**values, "since": time.time() - seconds})


class LiveRun(threading.Thread):
    """A run of this process that writes a record every half second."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.run_folder = Run.start(
            root, "grid-live", config_yaml=config_text(load("grid")), plan=plan("grid").to_json()
        )
        write_status(self.run_folder.folder, "running")
        assert Process.this().is_alive()
        self.ended = threading.Event()

    def run(self) -> None:
        rng, number = random.Random(7), 0
        with self.run_folder.metrics_path.open("a", buffering=1) as file:
            while not self.ended.is_set():
                for _ in range(20 if number < 300 else 1):
                    file.write(json.dumps(record_at(number, 15.5, 0.7, rng, 2000)) + "\n")
                    number += 1
                self.ended.wait(0.5)


def write_long(root: Path, records: int) -> None:
    """Write one run of very many records."""
    run = Run.start(root, "long", config_yaml=config_text(load("grid")), plan=plan("grid").to_json())
    rng = random.Random(3)
    with run.metrics_path.open("w") as file:
        for index in range(records):
            file.write(json.dumps(record_at(index, 12.0, 1.0, rng, records)) + "\n")
    write_status(run.folder, "finished")
    run.close()


def fetch(address: str, path: str, tag: str | None = None) -> tuple[float, int, bytes, str | None]:
    """Return seconds, status, body and ETag of a request."""
    request = urllib.request.Request(address + path, headers={"If-None-Match": tag} if tag else {})
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request) as response:
            return time.perf_counter() - began, response.status, response.read(), response.headers["ETag"]
    except urllib.error.HTTPError as error:
        return time.perf_counter() - began, error.code, b"", None


def resident(pid: int) -> float:
    """Return the memory of a process in MiB (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def measure(root: Path, runs: int, long: int) -> None:
    """Print the figures of a board of this folder."""
    command = [sys.executable, "-m", "millpond", "board", str(root), "--port", "0", "--no-open"]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip().rstrip("/")
        print(f"server ready                {time.perf_counter() - began:8.2f} s")
        print(f"memory, nothing read        {resident(server.pid):8.0f} MiB")
        began, version, listed = time.perf_counter(), 0, set()
        while True:
            answer = json.loads(fetch(address, f"/api/runs?since={version}")[2])
            version = answer["version"]
            listed |= {run["id"] for run in answer["runs"]}
            if not answer["waiting"]:
                break
        print(f"list of {len(listed):,} runs, cold   {time.perf_counter() - began:8.2f} s")
        times = [fetch(address, f"/api/runs?since={version}")[0] for _ in range(5)]
        print(f"list, when little changed   {1000 * statistics.median(times):8.0f} ms")
        names = "&".join(f"run=grid-{k:03d}" for k in range(5)) + "&run=grid-live"
        path = f"/api/curves?{names}&axis=agent_steps"
        print(f"curves of 6 runs, cold      {1000 * fetch(address, path)[0]:8.0f} ms")
        print(f"curves of 6 runs, again     {1000 * fetch(address, path)[0]:8.0f} ms")
        if long:
            path = "/api/curves?run=long&metric=eval/episode_return"
            print(f"curve of {long:,} records, cold {1000 * fetch(address, path)[0]:8.0f} ms")
            print(f"curve of {long:,} records, again {1000 * fetch(address, path)[0]:7.0f} ms")
        began = time.perf_counter()
        statuses: dict[int, int] = {}
        for number in range(2000):
            status = fetch(
                address, ("/api/runs?since=999999999", "/../../etc/passwd", "/api/run?run=../../etc")[number % 3]
            )[1]
            statuses[status] = statuses.get(status, 0) + 1
        print(f"2,000 requests              {time.perf_counter() - began:8.1f} s, by status {statuses}")
        reason = browsers.missing()
        if reason is None:
            with browsers.browser(1280, 900) as page:
                page.get(address)
                browsers.wait(
                    page,
                    "document.querySelectorAll('[data-run]').length > 10 && document.querySelector('.js-plotly-plot')",
                )
                paints = page.execute_script(
                    "const entries = ['paint', 'mark'].flatMap((kind) => performance.getEntriesByType(kind));"
                    "return Object.fromEntries(entries.map((each) => [each.name, each.startTime]))"
                )
                drawn = page.execute_script("return performance.now()")
            print(f"first contentful paint      {paints['first-contentful-paint']:8.0f} ms")
            print(f"list shown                  {paints['listed']:8.0f} ms")
            print(f"curves drawn, at most       {drawn:8.0f} ms")
        else:
            print(f"no times of the page: {reason}")
        print(f"memory, everything read     {resident(server.pid):8.0f} MiB")
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    if given.keep is not None:
        make_runs(given.keep, given.runs, given.records)
        return
    with tempfile.TemporaryDirectory(prefix="millpond-board-") as folder:
        root = Path(folder)
        make_runs(root, given.runs, given.records)
        if given.long:
            write_long(root, given.long)
        live = LiveRun(root)
        live.start()
        time.sleep(1.0)
        try:
            measure(root, given.runs, given.long)
        finally:
            live.ended.set()
            live.join()


if __name__ == "__main__":
    main()
