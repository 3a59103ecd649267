"""Measure how fast the environments step: agent steps per second on one core, as ratios to the bare MettaGrid core.

    python benchmarks/envs.py             everything, about a minute
    python benchmarks/envs.py --json      the same as one JSON object

Each figure is the best of several short rounds. Both sides of a comparison alternate in one process, so that other load on the
machine slows both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from hardware import processor
from millpond.envs.env_batch import EnvBatch, spawn_seeds
from millpond.envs.mettagrid import MettaGridEnvs
from millpond.envs.registry import make_env_batch

ENVS, ROUNDS, SECONDS = 1_360, 9, 0.15
SCALING = (8, 64, 256, 1_360, 4_096, 8_192)


def stepper(env_batch: EnvBatch, seed: int = 0) -> Callable[[], int]:
    """Return a function that steps all envs once with random actions and returns the number of agent steps."""
    env_batch.reset(spawn_seeds(seed, env_batch.num_envs))
    random = np.random.default_rng(seed)
    actions = random.integers(0, env_batch.spec.action.sizes[0], (32, *env_batch.buffers.action.shape)).astype(np.int32)
    turn = [0]

    def step() -> int:
        env_batch.buffers.action[...] = actions[turn[0] % 32]
        turn[0] += 1
        env_batch.step(0, env_batch.num_envs)
        return env_batch.num_envs * env_batch.spec.num_agents

    return step


def rates(steps: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Return agent steps per second of each, the best of several alternating rounds."""
    best = dict.fromkeys(steps, 0.0)
    for step in steps.values():
        step()
    for _ in range(ROUNDS):
        for name, step in steps.items():
            taken, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < SECONDS:
                taken += step()
            best[name] = max(best[name], taken / (time.perf_counter() - begin))
    return best


def mettagrid_rates(num_envs: int = 16, rounds: int = 5) -> tuple[float, float]:
    """Return agent steps per second of our env batch and of the bare core, on the same episodes, maps and actions.

    Ours includes new simulations at the end of episodes; those of the bare core are created outside of the measured time.
    """
    ours, bare = (MettaGridEnvs(num_envs, {}) for _ in range(2))
    assert ours.spec.max_steps is not None
    shape = (ours.spec.max_steps, *ours.buffers.action.shape)
    actions = np.random.default_rng(0).integers(0, ours.spec.action.sizes[0], shape).astype(np.int32)
    spent_ours = spent_bare = 0.0
    for turn in range(rounds):
        for env_batch in (ours, bare):
            env_batch.reset(spawn_seeds(turn, num_envs))
        for part in np.split(actions, 20):  # alternating every few milliseconds, so that other load slows both alike
            begin = time.perf_counter()
            for action in part:
                ours.buffers.action[...] = action
                ours.step(0, num_envs)
            middle = time.perf_counter()
            for action in part:
                bare.buffers.action[...] = action
                for core in bare.cores:
                    core.step()
            spent_ours += middle - begin
            spent_bare += time.perf_counter() - middle
        np.testing.assert_array_equal(ours.buffers.final_observation, bare.buffers.observation)  # the same work
    taken = rounds * float(np.prod(shape))
    return taken / spent_ours, taken / spent_bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    env_batches = {
        "grid": make_env_batch("grid", ENVS, {}),
        "minatar:breakout": make_env_batch("minatar:breakout", 64, {}),
        "atari:gravitar": make_env_batch("atari:gravitar", 8, {"num_threads": 1}),
    }
    steps = {name: stepper(env_batch) for name, env_batch in env_batches.items()}
    measured = rates(steps)
    measured["mettagrid"], measured["mettagrid, bare core"] = mettagrid_rates()
    scaling = rates({str(n): stepper(make_env_batch("grid", n, {})) for n in SCALING})
    if arguments.json:
        print(json.dumps({"hardware": processor(), "agent_steps_per_second": measured, "grid_scaling": scaling}))
        return

    bare = measured["mettagrid, bare core"]
    print(f"hardware: {processor()}; one core, random actions, observations and autoreset included\n")
    print(f"{'environment':<22}{'agent steps/s':>15}{'of the bare MettaGrid core':>29}")
    for name, rate in measured.items():
        print(f"{name:<22}{rate:>15,.0f}{rate / bare:>28.2f}x")
    print(f"\n{'grid envs':<22}{'agent steps/s':>15}{'ns per agent step':>19}{'cost / cost at 64':>21}")
    for name, rate in scaling.items():
        print(f"{int(name):<22,}{rate:>15,.0f}{1e9 / rate:>19.0f}{scaling['64'] / rate:>20.2f}x")
    for env_batch in env_batches.values():
        env_batch.close()


if __name__ == "__main__":
    main()
