"""Compare Millpond with its peers, on the same work in the same minutes: ours, theirs, ours, theirs.

    python benchmarks/peers/run.py --setup puffer sb3 torchrl      create their virtual environments, once (several GB)
    python benchmarks/peers/run.py                                 everything (or `all`), 3 rounds, one table
    python benchmarks/peers/run.py forage --rounds 3 --iterations 244 --json forage.json
    python benchmarks/peers/run.py cartpole lake --quick           a few seconds of each, to see that it works

forage        MettaGrid, 64 envs of 3 agents, LSTM 128, batches of 12,288 agent steps, against PufferLib's own trainer
cartpole      32 envs x 128 steps, 4 update epochs of 4 minibatches, LSTM 64, against SB3's RecurrentPPO and a single-file PPO
cartpole-mlp  8 envs x 128 steps, 4 update epochs of 4 minibatches, two layers of 64, against SB3's PPO
halfcheetah   8 envs x 256 steps, 4 update epochs of 4 minibatches, two layers of 64, against SB3's PPO (extra mujoco)
pong          8 envs x 128 steps, 4 update epochs of 4 minibatches, convolutions and 512, against SB3's PPO (extra atari)
sac-pendulum  batches of 256, layers of 256, one update per env step, against SB3's SAC and a single-file SAC
dqn-minatar   8 envs, batches of 128, one update per 4 env steps, against SB3's DQN and a single-file DQN (extra minatar)
lake          batches of 256 stacks of Atari frames, from memory and from disk, against torchrl's LazyMemmapStorage;
              appending them, against the emulator that they come from
reward        batches of reward learning, against a bare PyTorch loop of the same network (no separate environment)

Every training runs in a separate process with all cores and its own defaults, round r with seed r. Steps per second are
over all iterations but the first two, without evaluation. Settings of cartpole-mlp and the four after it: settings.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from environments import (  # noqa: E402
    REQUIREMENTS,
    OtherWork,
    interpreter,
    last_line,
    run_peer,
    set_up,
    write_scenario,
)
from ours import train_ours  # noqa: E402
from table import table  # noqa: E402
from trained import Trained, against  # noqa: E402
from trainings import TRAININGS  # noqa: E402

from hardware import processor  # noqa: E402

TASKS = (*TRAININGS, "lake", "reward")
LAKE_FRAMES = 200_000


def say(text: str) -> None:
    print(text, flush=True)


def measured(train: Callable[[], Trained], round_number: int) -> Trained:
    """Run a training, print its speed, and store how many cores other processes kept busy meanwhile."""
    others = OtherWork()
    trained = train()
    cores = others.cores()
    beside = "" if cores is None or cores < 0.1 else f", while other processes kept {cores:.1f} cores busy"
    say(f"  round {round_number}: {trained.party} {trained.steps_per_second:,.0f} steps/s{beside}")
    return replace(trained, settings={**trained.settings, "busy_cores_of_others": cores})


def trainings(task: str, options: argparse.Namespace, pythons: dict[str, str]) -> dict[str, Any]:
    """Run rounds of ours and of every peer alternately."""
    training = TRAININGS[task]
    iterations = options.iterations or (3 if options.quick else training.iterations)
    python = interpreter(training.peer, pythons)
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "forage.json"
        if task == "forage":
            write_scenario(scenario)

        def peer(script: tuple[str, ...], seed: int) -> Trained:
            inputs = (scenario, iterations, seed, options.puffer_workers) if task == "forage" else (iterations, seed)
            run = (python, HERE / script[0], *script[1:], *inputs)
            return Trained(**json.loads(run_peer(*run, threads=options.peer_threads)))

        ours: list[Trained] = []
        theirs: dict[tuple[str, ...], list[Trained]] = {script: [] for script in training.scripts}
        for seed in range(1, options.rounds + 1):
            ours.append(measured(lambda: train_ours(task, iterations, seed, options.ours), seed))  # noqa: B023
            for script, runs in theirs.items():
                runs.append(measured(lambda: peer(script, seed), seed))  # noqa: B023
    return {
        "iterations": iterations,
        "peers": {runs[0].party: against(ours, runs) for runs in theirs.values()},
        "trained": [one.to_json() for one in [*ours, *(one for runs in theirs.values() for one in runs)]],
    }


def show_trainings(task: str, result: dict[str, Any]) -> None:
    """Print where our time goes, and what was learned."""
    shares = [one["settings"]["shares"] for one in result["trained"] if one["party"] == "millpond"]
    medians = {name: median(one.get(name, 0.0) for one in shares) for name in shares[0]}
    say("  our time: " + ", ".join(f"{name} {share:.0%}" for name, share in medians.items()))
    for party, comparison in result["peers"].items():
        say(f"  compared with {party}")
        for name, at in (("steps", "{:,.0f} steps"), ("seconds", "{:.1f} seconds")):
            pairs = [
                (level[f"ours_after_{name}"], level[f"theirs_after_{name}"], at.format(level[name]))
                for level in comparison["levels"]
            ]
            for seed, (own, other, where) in enumerate(pairs, start=1):
                shown = " against ".join("none yet" if value is None else f"{value:.5g}" for value in (own, other))
                say(f"    {TRAININGS[task].level} after {where}, seed {seed}: {shown}")


def lakes(options: argparse.Namespace, pythons: dict[str, str]) -> dict[str, Any]:
    """Measure our lake and torchrl's storage alternately, on the same frames, recorded and appended again each round."""
    python = interpreter("torchrl", pythons)
    lake = [sys.executable, str(HERE / "ours_lake.py")]
    frames = 8_192 if options.quick else options.lake_frames
    speeds: dict[str, Any] = {
        name: {"beside": peer, "ours": [], "theirs": []}
        for name, peer in (("warm", "torchrl"), ("cold", "torchrl"), ("append", "the emulator"))
    }
    for number in range(1, options.rounds + 1):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            appended = json.loads(last_line([*lake, "make", folder, str(frames)]))
            ours = json.loads(last_line([*lake, "measure", folder]))
            script = HERE.parent / "lake_torchrl.py"
            theirs = json.loads(run_peer(python, script, f"{folder}/frames.npy", int(appended["frames"])))
        for name in ("warm", "cold"):
            speeds[name]["ours"].append(ours[name])
            speeds[name]["theirs"].append(theirs[f"{name}, stacks as stored"])
        speeds["append"]["ours"].append(appended["append"])
        speeds["append"]["theirs"].append(appended["emulator"])
        shown = ", ".join(
            f"{name} {both['ours'][-1]:,.0f} against {both['theirs'][-1]:,.0f}" for name, both in speeds.items()
        )
        say(f"  round {number}: {shown}")
    return speeds


def rewards(options: argparse.Namespace) -> dict[str, Any]:
    """Measure our batches and a bare loop's alternately within each round; a round gives the median of its turns."""
    command = [sys.executable, str(HERE.parent / "reward_speed.py"), "--json"]
    command += ["--batches", "10"] if options.quick else []
    speeds: dict[str, Any] = {"ours": [], "bare": [], "ratios": []}
    for number in range(1, options.rounds + 1):
        one = json.loads(last_line(command))
        for name, value in (("ours", one["ours"]), ("bare", one["bare"]), ("ratios", median(one["ratios"]))):
            speeds[name].append(value)
        say(f"  round {number}: millpond {one['ours']:,.0f} batches/s, bare PyTorch {one['bare']:,.0f}")
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}, or all; without any, all")
    parser.add_argument(
        "--setup", nargs="+", metavar="PEER", help=f"create virtual environments, of {', '.join(REQUIREMENTS)}"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="of a training; default: depends on the task")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--ours", action="append", default=[], metavar="KEY=VALUE", help="an override for millpond")
    parser.add_argument("--puffer-workers", type=int, default=0, help="0 is PufferLib's fastest on two cores")
    parser.add_argument("--peer-threads", type=int, help="threads of torch for peers; default: their own")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="an interpreter to use")
    parser.add_argument("--lake-frames", type=int, default=LAKE_FRAMES)
    parser.add_argument("--folder", type=Path, help="where to create the lake; a temporary folder by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args()
    for name in options.setup or []:
        if name not in REQUIREMENTS:
            parser.error(f"there is no peer {name}; they are {', '.join(REQUIREMENTS)}")
        say(f"{name}: {set_up(name)}")
    if options.setup and not options.tasks:
        return
    tasks = TASKS if "all" in options.tasks else options.tasks or TASKS
    unknown = set(tasks) - set(TASKS)
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
    for number, task in enumerate(tasks, start=1):
        say(f"{task} ({number} of {len(tasks)}), {options.rounds} rounds")
        if task in TRAININGS:
            results[task] = trainings(task, options, pythons)
            show_trainings(task, results[task])
        else:
            results[task] = lakes(options, pythons) if task == "lake" else rewards(options)
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")
    say("\n" + "\n".join(table(results)))


if __name__ == "__main__":
    main()
