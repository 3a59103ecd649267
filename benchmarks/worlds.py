"""How fast the worlds step, beside what they stand on: agent steps a second on one core, as ratios.

    python benchmarks/worlds.py             everything, about a minute
    python benchmarks/worlds.py --json      the same as one JSON object

Each figure is the best of several short rounds, and what is compared is measured in turn in the same process, so that
a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from millpond.envs.registry import make_world
from millpond.envs.seeds import spawn_seeds
from millpond.envs.world import World

ENVS, ROUNDS, SECONDS = 1_360, 9, 0.15
SCALING = (8, 64, 256, 1_360, 4_096, 8_192)


def hardware() -> str:
    """Model and cores of the machine."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {platform.system()}"


def stepper(world: World, seed: int = 0) -> Callable[[], int]:
    """A function that takes one step of all envs with random actions; it returns the agent steps taken. Episodes of the
    grid world are spread over their length by its own stagger, those of MettaGrid here."""
    world.reset(spawn_seeds(seed, world.num_envs))
    if world.spec.id == "mettagrid":
        spread(world)
    random = np.random.default_rng(seed)
    actions = random.integers(0, world.spec.action.sizes[0], (32, *world.buffers.action.shape)).astype(np.int32)
    turn = [0]

    def step() -> int:
        world.buffers.action[...] = actions[turn[0] % 32]
        turn[0] += 1
        world.step(0, world.num_envs)
        return world.num_envs * world.spec.num_agents

    return step


def rates(steps: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Agent steps a second of each, best of several rounds taken in turn."""
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


def bare_core(num_envs: int) -> Callable[[], int]:
    """MettaGrid's core as bare as it can be driven from Python: its simulations, stepped in a loop."""
    from mettagrid.simulator import Simulator

    from millpond.envs.mettagrid.scenario import Forage, forage_config

    config = forage_config(Forage(max_steps=10**9))  # no episode ends: the core alone
    config.game.map_builder.seed = 1
    simulator = Simulator()
    cores = [simulator.new_simulation(config, seed)._c_sim for seed in range(num_envs)]
    written = [core.actions() for core in cores]
    actions = np.random.default_rng(0).integers(0, 5, (32, 3)).astype(np.int32)
    turn = [0]

    def step() -> int:
        for core, action in zip(cores, written, strict=True):
            action[:] = actions[turn[0] % 32]
            core.step()
        turn[0] += 1
        return num_envs * 3

    return step


def spread(world: World) -> None:
    """Bring envs to different points of their episodes, so that each round has its share of new ones."""
    apart = (world.spec.max_steps or 1_000) // world.num_envs
    for last in range(1, world.num_envs):
        for _ in range(apart):
            world.step(0, last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()

    worlds = {
        "grid": make_world("grid", ENVS, {}),
        "mettagrid": make_world("mettagrid", 64, {}),
        "minatar:breakout": make_world("minatar:breakout", 64, {}),
        "atari:gravitar": make_world("atari:gravitar", 8, {"num_threads": 1}),
    }
    steps = {name: stepper(world) for name, world in worlds.items()}
    measured = rates({**steps, "mettagrid, bare core": bare_core(64)})
    scaling = rates({str(n): stepper(make_world("grid", n, {})) for n in SCALING})
    if asked.json:
        print(json.dumps({"hardware": hardware(), "agent_steps_per_second": measured, "grid_scaling": scaling}))
        return

    bare = measured["mettagrid, bare core"]
    print(f"hardware: {hardware()}; one core, random actions, observations and autoreset included\n")
    print(f"{'world':<22}{'agent steps/s':>15}{'of the bare MettaGrid core':>29}")
    for name, rate in measured.items():
        print(f"{name:<22}{rate:>15,.0f}{rate / bare:>28.2f}x")
    print(f"\n{'grid envs':<22}{'agent steps/s':>15}{'ns an agent step':>19}{'cost of that at 64':>21}")
    for name, rate in scaling.items():
        print(f"{int(name):<22,}{rate:>15,.0f}{1e9 / rate:>19.0f}{scaling['64'] / rate:>20.2f}x")
    for world in worlds.values():
        world.close()


if __name__ == "__main__":
    main()
