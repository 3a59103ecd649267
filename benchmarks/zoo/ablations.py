"""Short trainings with the packaged recipes and one setting changed: what each setting is worth, on several tasks.

    python -m benchmarks.zoo.ablations                            whatever has no result yet; about an hour on one core
    python -m benchmarks.zoo.ablations --task cartpole --setting recipe scale-1000 --seeds 1 2 3
    python -m benchmarks.zoo.ablations --quick --task cartpole    seconds, into a temporary folder
    python -m benchmarks.zoo.ablations --page                     only write docs/ablations.md and the pictures

A finished training is a file in ablations/ and is not run again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numba
import torch

from benchmarks.zoo.ablations_page import write_page
from benchmarks.zoo.results import path_of, read_results
from benchmarks.zoo.tasks import QUICK_STEPS, Task
from benchmarks.zoo.training import result_of, train_here

RESULTS = Path(__file__).parent / "ablations"
THREADS = 1
SEEDS = (1, 2)
CHOOSING = (11, 12)  # seeds that the zoo does not have, to choose settings on
TASKS = {
    task.name: task
    for task in (
        Task("cartpole", "gymnasium:CartPole-v1", 50_000),
        Task("pendulum", "gymnasium:Pendulum-v1", 100_000),
        Task("acrobot", "gymnasium:Acrobot-v1", 50_000),
        Task("lunarlander", "gymnasium:LunarLander-v3", 250_000),
        Task("hopper", "gymnasium:Hopper-v5", 150_000),
        Task("breakout", "minatar:breakout", 100_000),
        Task("recall", "recall", 100_000),
        # other lengths, and envs that no setting was chosen on, for the schedule of the learning rate
        Task("pendulum-200k", "gymnasium:Pendulum-v1", 200_000, seeds=CHOOSING),
        Task("lunarlander-500k", "gymnasium:LunarLander-v3", 500_000, seeds=CHOOSING),
        Task("halfcheetah-300k", "gymnasium:HalfCheetah-v5", 300_000, seeds=CHOOSING),
        Task("breakout-300k", "minatar:breakout", 300_000, seeds=CHOOSING),
        Task("acrobot-200k", "gymnasium:Acrobot-v1", 200_000, seeds=CHOOSING),
        Task("mountaincar-200k", "gymnasium:MountainCarContinuous-v0", 200_000, seeds=CHOOSING),
        Task("walker2d-300k", "gymnasium:Walker2d-v5", 300_000, seeds=CHOOSING),
        Task("seaquest-300k", "minatar:seaquest", 300_000, seeds=CHOOSING),
    )
}
COMMON = ("cartpole", "pendulum", "acrobot", "lunarlander", "hopper", "breakout")
SCALED = ("cartpole", "pendulum", "breakout")
LONGER = tuple(name for name, task in TASKS.items() if task.seeds == CHOOSING)
SCHEDULED = (*COMMON, *LONGER)


@dataclass(frozen=True)
class Setting:
    """What is changed in a recipe, and the tasks that it is tried on."""

    name: str
    title: str
    overrides: tuple[str, ...]
    tasks: tuple[str, ...] = COMMON

    def overrides_of(self, task: str) -> tuple[str, ...]:
        if self.name == "observations":  # the recipe of MuJoCo normalises them, the others do not
            return (f"policy.normalize_observations={'false' if task == 'hopper' else 'true'}",)
        return self.overrides


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("recipe", "the recipe", (), (*SCHEDULED, "recall")),
        Setting("values", "values not normalised", ("ppo.normalize_values=false",)),
        Setting("advantage-minibatch", "advantages normalised per minibatch", ("ppo.normalize_advantage=minibatch",)),
        Setting("advantage-none", "advantages not normalised", ("ppo.normalize_advantage=none",)),
        Setting("rate-constant", "constant learning rate", ("ppo.lr_schedule=constant",), SCHEDULED),
        Setting("rate-floor", "learning rate ends at a tenth", ("ppo.min_lr_ratio=0.1",), SCHEDULED),
        Setting("critic", "separate critic", ("policy.separate_critic=true",)),
        Setting("observations", "observations normalised (Hopper: not)", (), COMMON[:-1]),  # Breakout shows images
        Setting("lambda", "lambda 0.9", ("ppo.gae_lambda=0.9",)),
        Setting("trace", "traces end with rows of 8 steps", ("ppo.trace_end=row",)),
        Setting("rows", "rows of 64 steps", ("trainer.bptt_horizon=64",)),
        Setting("gamma-lower", "gamma 0.95", ("ppo.gamma=0.95",), ("lunarlander", "pendulum")),
        Setting("gamma-higher", "gamma 0.999", ("ppo.gamma=0.999",), ("lunarlander", "pendulum")),
        Setting("epochs", "one epoch", ("trainer.update_epochs=1",), ("lunarlander", "cartpole")),
        Setting("rate-lower", "learning rate / 10", ("ppo.learning_rate=1e-4",), ("lunarlander", "cartpole")),
        Setting("rate-higher", "learning rate x 10", ("ppo.learning_rate=1e-2",), ("lunarlander", "cartpole")),
        Setting("rate-highest", "learning rate x 100", ("ppo.learning_rate=0.1",), ("lunarlander", "cartpole")),
        Setting("entropy-0", "no entropy bonus", ("ppo.ent_coef=0",), ("lunarlander", "acrobot")),
        Setting("entropy-more", "entropy bonus x 10", ("ppo.ent_coef=0.1",), ("lunarlander", "acrobot")),
        Setting("one-env", "one env", ("trainer.num_envs=1",), ("lunarlander", "cartpole")),
        Setting("memory-none", "no memory", ("policy.core=none",), ("recall",)),
        Setting("scale-0.001", "rewards x 0.001", ("env.reward_scale=0.001",), SCALED),
        Setting("scale-1000", "rewards x 1,000", ("env.reward_scale=1000",), SCALED),
        Setting(
            "scale-1000-values",
            "rewards x 1,000, values not normalised",
            ("env.reward_scale=1000", "ppo.normalize_values=false"),
            ("cartpole",),
        ),
    )
}
Job = tuple[str, str, int]  # task, setting, seed


def planned(tasks: list[str], settings: list[str], seeds: list[int] | None) -> list[Job]:
    """Return all trainings, seed by seed; without seeds, those of each task."""
    return [
        (task, name, seed)
        for seed in seeds or (*SEEDS, *CHOOSING)
        for name in settings
        for task in tasks
        if task in SETTINGS[name].tasks and (seeds or seed in (TASKS[task].seeds or SEEDS))
    ]


def page_tasks() -> tuple[list[Task], list[Task]]:
    """Return the tasks of all settings, and those on which only the schedule of the learning rate is changed."""
    scheduled = [TASKS[name] for name in LONGER]
    return [task for task in TASKS.values() if task not in scheduled], scheduled


def run(job: Job, folder: Path, quick: bool) -> None:
    """Train and write the result."""
    task, name, seed = TASKS[job[0]], SETTINGS[job[1]], job[2]
    steps = min(task.steps, QUICK_STEPS) if quick else task.steps
    trained = train_here(task, seed, steps, name.overrides_of(task.name))
    result = result_of(trained, task.name, name.name, seed, THREADS)
    result.write(folder)
    print(f"{task.name} {name.name} {seed}: {result.final} after {result.steps:,} steps", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--setting", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: two of each task")
    parser.add_argument("--folder", type=Path, help="of the results; default: benchmarks/zoo/ablations")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    folder = options.folder or (Path(tempfile.mkdtemp(prefix="ablations-")) if options.quick else RESULTS)
    if not options.page:
        torch.set_num_threads(THREADS)
        numba.set_num_threads(THREADS)
        jobs = planned(options.task, options.setting, options.seeds)
        for job in jobs:
            if not path_of(folder, *job).exists():
                run(job, folder, options.quick)
        print(f"results: {folder}")
    if folder == RESULTS:
        write_page(read_results(RESULTS), *page_tasks(), {name: one.title for name, one in SETTINGS.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
