"""Millpond beside its peers, on the same work in the same minutes: ours, theirs, ours, theirs.

    python benchmarks/peers/run.py --setup puffer sb3 torchrl      environments of their own, once (several GB)
    python benchmarks/peers/run.py                                 everything, 3 rounds
    python benchmarks/peers/run.py forage --rounds 3 --iterations 244 --json forage.json
    python benchmarks/peers/run.py cartpole lake --quick           a few seconds of each, to see that it works

forage    MettaGrid, 64 envs of 3 agents, LSTM 128, batches of 12,288 agent steps, against PufferLib's own trainer
cartpole  32 envs x 128 steps, 4 epochs of 4 minibatches, LSTM 64, against SB3's RecurrentPPO and a single-file PPO
lake      batches of 256 stacks of Atari frames, from memory and from disk, against torchrl's LazyMemmapStorage

Every training runs in a process of its own with all cores and its own defaults, round r with seed r. Steps a second are
over all iterations but the first two; evaluation is not in them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from environments import REQUIREMENTS, interpreter, last_line, run_peer, set_up  # noqa: E402
from ours import train_ours, write_scenario  # noqa: E402
from trained import Ratio, Trained, against  # noqa: E402

from hardware import processor  # noqa: E402

TASKS = ("forage", "cartpole", "lake")
ITERATIONS = {"forage": 244, "cartpole": 30}  # 3 million agent steps of forage, 123 thousand of CartPole
WORDS = {"forage": "reward per agent step", "cartpole": "episode return"}
LAKE_FRAMES = 200_000


def say(text: str) -> None:
    print(text, flush=True)


def trainings(task: str, options: argparse.Namespace, pythons: dict[str, str]) -> dict[str, Any]:
    """Rounds of ours and of every peer, in turn."""
    iterations = options.iterations or (3 if options.quick else ITERATIONS[task])
    python = interpreter("puffer" if task == "forage" else "sb3", pythons)
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "forage.json"
        if task == "forage":
            write_scenario(scenario)

        def peer(script: str, seed: int) -> Trained:
            own = (scenario, iterations, seed, options.puffer_workers) if task == "forage" else (iterations, seed)
            return Trained(**json.loads(run_peer(python, HERE / script, *own, threads=options.peer_threads)))

        scripts = ["puffer_forage.py"] if task == "forage" else ["recurrent_ppo_cartpole.py", "single_file_cartpole.py"]
        ours: list[Trained] = []
        theirs: dict[str, list[Trained]] = {script: [] for script in scripts}
        for seed in range(1, options.rounds + 1):
            ours.append(train_ours(task, iterations, seed, options.ours))
            say(f"  round {seed}: millpond {ours[-1].steps_per_second:,.0f} steps/s")
            for script, found in theirs.items():
                found.append(peer(script, seed))
                say(f"  round {seed}: {found[-1].party} {found[-1].steps_per_second:,.0f} steps/s")
    return {
        "iterations": iterations,
        "peers": {found[0].party: against(ours, found) for found in theirs.values()},
        "trained": [one.to_json() for one in [*ours, *(one for found in theirs.values() for one in found)]],
    }


def show_trainings(task: str, result: dict[str, Any]) -> None:
    for party, found in result["peers"].items():
        ratio = Ratio(**found["ratio"])
        say(f"  millpond {found['ours']:,.0f} steps/s, {party} {found['theirs']:,.0f}: {ratio} times")
        for name, at in (("steps", "{:,.0f} steps"), ("seconds", "{:.1f} seconds")):
            pairs = [
                (level[f"ours_after_{name}"], level[f"theirs_after_{name}"], at.format(level[name]))
                for level in found["levels"]
            ]
            for seed, (mine, other, where) in enumerate(pairs, start=1):
                shown = " against ".join("none yet" if value is None else f"{value:.5g}" for value in (mine, other))
                say(f"    {WORDS[task]} after {where}, seed {seed}: {shown}")


def lakes(options: argparse.Namespace, pythons: dict[str, str]) -> dict[str, Any]:
    """Our lake and torchrl's storage, in turn, on the same frames."""
    python = interpreter("torchrl", pythons)
    lake = [sys.executable, str(HERE / "ours_lake.py")]
    frames = 8_192 if options.quick else options.lake_frames
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        made = json.loads(last_line([*lake, "make", folder, str(frames)]))
        for _ in range(options.rounds):
            ours.append(json.loads(last_line([*lake, "measure", folder])))
            script = HERE.parent / "lake_torchrl.py"
            theirs.append(json.loads(run_peer(python, script, f"{folder}/frames.npy", int(made["frames"]))))
    ratios = {
        name: asdict(Ratio.of([one[name] for one in ours], [one[f"{name}, stacks as stored"] for one in theirs]))
        for name in ("warm", "cold")
    }
    return {"made": made, "ours": ours, "theirs": theirs, "ratios": ratios}


def show_lakes(result: dict[str, Any]) -> None:
    for name, ratio in result["ratios"].items():
        mine = median(one[name] for one in result["ours"])
        other = median(one[f"{name}, stacks as stored"] for one in result["theirs"])
        say(f"  {name}: lake {mine:,.0f} transitions/s, torchrl {other:,.0f}: {Ratio(**ratio)} times")
    made = result["made"]
    say(f"  append {made['append']:,.0f} env steps/s, the emulator gives {made['emulator']:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; without any, all")
    parser.add_argument("--setup", nargs="+", metavar="PEER", help=f"make environments, of {', '.join(REQUIREMENTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help=f"of a training; without it, {ITERATIONS}")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that everything runs")
    parser.add_argument("--ours", action="append", default=[], metavar="KEY=VALUE", help="an override for millpond")
    parser.add_argument("--puffer-workers", type=int, default=0, help="0 is PufferLib's fastest on two cores")
    parser.add_argument("--peer-threads", type=int, help="threads of torch's for peers; without it, their default")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="an interpreter to use")
    parser.add_argument("--lake-frames", type=int, default=LAKE_FRAMES)
    parser.add_argument("--folder", type=Path, help="where the lake is made; a temporary folder by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args()
    for name in options.setup or []:
        if name not in REQUIREMENTS:
            parser.error(f"there is no peer {name}; they are {', '.join(REQUIREMENTS)}")
        say(f"{name}: {set_up(name)}")
    if options.setup and not options.tasks:
        return
    unknown = set(options.tasks) - set(TASKS)
    if unknown:
        parser.error(f"there is no task {', '.join(sorted(unknown))}; they are {', '.join(TASKS)}")
    pythons = dict(text.split("=", 1) for text in options.python)
    results: dict[str, Any] = {
        "hardware": processor(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load_at_start": os.getloadavg(),
        "peer_threads": options.peer_threads,
    }
    say(f"{processor()}, load {os.getloadavg()[0]:.1f}; ratios are ours to theirs, median (lowest to highest)")
    for task in options.tasks or TASKS:
        say(f"{task}, {options.rounds} rounds")
        results[task] = lakes(options, pythons) if task == "lake" else trainings(task, options, pythons)
        if task == "lake":
            show_lakes(results[task])
        else:
            show_trainings(task, results[task])
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
