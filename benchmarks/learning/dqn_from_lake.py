"""Train a DQN that never acts: it learns CartPole-v1 from a lake that one PQN run filled.

    python benchmarks/learning/dqn_from_lake.py [--env-steps 300000] [--updates 20000] [--seeds 3] [--out ...]

PQN plays with the published settings and pours all its transitions; then a pond is filled uniformly from the lake, and
DQN trains on it alone, from its own initial weights.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from curves import Curves
from pqn import VECTOR, make_group, random_return, setting

from millpond.config.mixture import DQNConfig
from millpond.learners import DQN, build_q_network
from millpond.replay import Lake, Schema
from millpond.replay.pond import Pond
from millpond.replay.transfer import fill, pour
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.play import evaluate


def fill_a_lake(folder: Path, env_steps: int, seed: int) -> tuple[Schema, int]:
    """Run PQN through a pond into a lake; return its number of transitions."""
    env, config, hidden_size = setting("cartpole")
    per_collection = config.num_envs * config.num_steps
    collections = env_steps // per_collection
    group = make_group(env, config, hidden_size, [seed], collections)
    schema = Schema.from_spec(group.spec)
    pond = Pond.init(schema, 8 * per_collection, lanes=config.num_envs, guarded=True)
    with Lake.create(folder, schema) as lake, lake.writer("agent0", lanes=config.num_envs) as writer:
        for done in range(collections):
            collection = group.collect()[0]
            pond.add(collection.as_steps(schema, policy_version=done))
            pour(pond, writer)
            group.learn()
        lake.refresh()
        return schema, lake.transitions()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-step", type=int, default=3)
    parser.add_argument("--target-tau", type=float, default=0.02)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    env, pqn, _ = setting("cartpole")
    config = DQNConfig(
        batch_size=128, learning_rate=arguments.learning_rate, n_step=arguments.n_step, target_tau=arguments.target_tau
    )
    curves = Curves(
        "DQN from a lake that PQN filled, CartPole-v1",
        "updates",
        {"pqn_env_steps": arguments.env_steps, **config.model_dump()},
        baselines={"random": random_return(env, pqn)},
    )
    for seed in range(1, arguments.seeds + 1):
        with tempfile.TemporaryDirectory() as folder, evaluation_vector(env, VECTOR, arguments.episodes) as vector:
            schema, count = fill_a_lake(Path(folder) / "lake", arguments.env_steps, seed)
            rng = np.random.default_rng(seed)
            pond = Pond.init(schema, 2 * count)
            with Lake(Path(folder) / "lake") as lake:
                fill(pond, lake, lake.transitions(n_step=config.n_step), rng, n_step=config.n_step)
            generator = torch.Generator().manual_seed(1_000 + seed)
            spec = vector.spec
            dqn = DQN(build_q_network(spec.observation, spec.action, generator=generator), config)
            for update in range(1, arguments.updates + 1):
                dqn.update(pond.sample(config.batch_size, rng, n_step=config.n_step, gamma=config.gamma))
                if update % (arguments.updates // arguments.evaluations) == 0:
                    evaluation = evaluate(
                        dqn.network,
                        vector,
                        episodes=arguments.episodes,
                        seed=12_345,
                        device=torch.device("cpu"),
                        deterministic=True,
                    )
                    curves.add(seed, update, evaluation.mean)
                    print(f"seed {seed}, {count:,} transitions, {update:,} updates: {evaluation.mean:.1f}", flush=True)
    curves.write(arguments.out / "dqn-from-lake")
    print(curves.summary())


if __name__ == "__main__":
    main()
