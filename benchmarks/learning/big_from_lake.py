"""Train BigAgents that never act from the finished lake of one PQN agent: which share of its score do they reach?

    python benchmarks/learning/big_from_lake.py breakout [--env-steps 131072] [--seeds 1] [--replay-ratio 4]
    python benchmarks/learning/big_from_lake.py asterix --learners mixture,mixture-best

The agent plays with the published settings and pours all its transitions. Each learner begins with its own initial weights and
has the `dqn` section of a recipe. Results are stored in --out as they finish; what is there is not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pqn import VECTOR, setting

from millpond import fast
from millpond.config import MixtureRecipe, load
from millpond.config.mixture import DQNConfig, longest_n_step
from millpond.learners import DQN, AgentGroup, QNetwork, build_q_network
from millpond.learners.returns import block_returns, goal_batches
from millpond.replay import Lake, Schema
from millpond.replay.blocks import list_blocks, read_blocks
from millpond.replay.pond import Pond
from millpond.replay.transfer import fill, fill_blocks, pour
from millpond.trainers.common.envs import build_vector, evaluation_vector
from millpond.trainers.common.play import evaluate

EVALUATION_SEED = 12_345


def play(name: str, folder: Path, env_steps: int, seed: int) -> tuple[QNetwork, Any]:
    """Train one PQN agent and pour everything into a lake; return its network and the spec."""
    env, config, hidden = setting(name)
    vector = build_vector(env, VECTOR, num_envs=config.num_envs, groups=1, num_workers=1, stacked=True)
    vector.reset(seed)
    spec, generator = vector.spec, torch.Generator().manual_seed(seed)
    network = build_q_network(spec.observation, spec.action, hidden_size=hidden, generator=generator)
    collections = env_steps // (config.num_envs * config.num_steps)
    group = AgentGroup(
        [network], [vector], config, seeds=[seed], total_collections=collections, compiled=fast.pqn_updates
    )
    schema = Schema.from_spec(spec)
    pond = Pond.init(schema, 4 * config.num_envs * config.num_steps, lanes=config.num_envs, guarded=True)
    with Lake.create(folder, schema) as lake, lake.writer("agent0", lanes=config.num_envs) as writer:
        for done in range(collections):
            pond.add(group.collect()[0].as_steps(schema, policy_version=done))
            pour(pond, writer)
            group.learn()
    vector.close()
    return network, spec


def learn(lake: Lake, spec: Any, hidden: int, config: DQNConfig, updates: int, seed: int) -> QNetwork:
    """Train a BigAgent on the whole lake; return the network that would be evaluated."""
    generator, rng = torch.Generator().manual_seed(1_000 + seed), np.random.default_rng(seed)

    def initial(reset: int) -> QNetwork:
        return build_q_network(
            spec.observation, spec.action, hidden_size=hidden, quantiles=config.quantiles or 1, generator=generator
        )

    dqn = DQN(initial(0), config, total_updates=updates, compiled=fast.dqn_updates, initial=initial)
    pond = Pond.init(lake.schema, sum(lake.view(name).num_records for name in lake.streams))
    per_call = config.updates_per_target
    if config.target == "n_step":
        longest = longest_n_step(config.target, config.n_step, config.n_step_from)
        fill(pond, lake, lake.transitions(n_step=longest), rng, n_step=longest)
        while dqn.updates < updates:
            count = dqn.updates_with_same_targets(updates - dqn.updates)
            dqn.update_all(
                pond.sample_many(count, config.batch_size, rng, n_step=dqn.n_step, gamma=dqn.gamma, columns=("agent",))
            )
        return dqn.mean
    fill_blocks(pond, lake, lake.transitions(), rng, length=config.block_steps)
    blocks = list_blocks(pond.view(), config.block_steps)
    order = np.empty(0, np.int64)
    for done in range(0, updates, per_call):
        needed = min(per_call, updates - done) * config.batch_size
        if len(order) == 0 or int(blocks.steps[order].sum()) < needed:
            order = np.concatenate([order, rng.permutation(len(blocks))])
        ends = np.cumsum(blocks.steps[order])
        count = int(np.searchsorted(ends, needed)) + 1
        which, order = order[:count], order[count:]
        batch = read_blocks(pond, blocks, which, config.block_steps)
        places = torch.from_numpy(rng.permutation(len(batch.place))[:needed].reshape(-1, config.batch_size))
        dqn.update_all(goal_batches(batch, block_returns(dqn, batch), places))
    return dqn.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a game of MinAtar: breakout, asterix, ...")
    parser.add_argument("--env-steps", type=int, default=131_072)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--replay-ratio", type=float, default=4.0)
    parser.add_argument(
        "--learners", default="mixture,mixture-best", help="recipes, with overrides: NAME:key=value:..."
    )
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results/big-from-lake.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    env, _, hidden = setting(arguments.name)
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with evaluation_vector(env, VECTOR, arguments.episodes) as vector:

        def score(network: QNetwork) -> float:
            return evaluate(
                copy.deepcopy(network), vector, episodes=arguments.episodes, seed=EVALUATION_SEED,
                device=torch.device("cpu"), deterministic=True,
            ).mean  # fmt: skip

        for seed in range(1, arguments.seeds + 1):
            key = f"{arguments.name}, {arguments.env_steps} env steps, seed {seed}"
            found = results.setdefault(key, {"machine": platform.processor() or platform.machine(), "big": {}})
            names = [f"{learner} x{arguments.replay_ratio:g}" for learner in arguments.learners.split(",")]
            if all(name in found["big"] for name in names):
                continue
            with tempfile.TemporaryDirectory() as folder:
                agent, spec = play(arguments.name, Path(folder) / "lake", arguments.env_steps, seed)
                found["agent"] = score(agent)
                for learner, name in zip(arguments.learners.split(","), names, strict=True):
                    recipe_name, *overrides = learner.split(":")
                    recipe = load(recipe_name, tuple(overrides)).recipe
                    assert isinstance(recipe, MixtureRecipe)
                    updates = round(arguments.replay_ratio * arguments.env_steps / recipe.dqn.batch_size)
                    with Lake(Path(folder) / "lake") as lake:
                        found["big"][name] = score(learn(lake, spec, hidden, recipe.dqn, updates, seed))
                    share = found["big"][name] / found["agent"]
                    print(
                        f"{key}: agent {found['agent']:.2f}, {name} {found['big'][name]:.2f} ({share:.0%})", flush=True
                    )
                    arguments.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
