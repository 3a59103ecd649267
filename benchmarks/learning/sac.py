"""Train SAC on Pendulum-v1, one env, one gradient step per env step.

python benchmarks/learning/sac.py [--env-steps 10000] [--seeds 3] [--hidden-size 256] [--learning-rate 3e-4]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from curves import Curves

from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.learners import SAC
from millpond.replay import Schema, Steps
from millpond.replay.pond import Pond
from millpond.rollout.collector import put_actions
from millpond.trainers.common.envs import build_vector, evaluation_vector
from millpond.trainers.common.play import evaluate

INLINE = VectorConfig(backend="inline")


def train(env: EnvConfig, seed: int, arguments: argparse.Namespace, curves: Curves) -> None:
    """Train one seed: act, store, learn."""
    rng = np.random.default_rng(seed)
    with (
        build_vector(env, INLINE, num_envs=1, groups=1, num_workers=1, stacked=True) as vector,
        evaluation_vector(env, INLINE, arguments.episodes) as testing,
    ):
        spec = vector.spec
        vector.reset(seed)
        agent = SAC(
            spec.observation,
            spec.action,
            seed=seed,
            hidden_size=arguments.hidden_size,
            learning_rate=arguments.learning_rate,
        )
        pond = Pond.init(Schema.from_spec(spec), 2 * arguments.env_steps)
        batch = vector.recv()
        for step in range(1, arguments.env_steps + 1):
            observation = batch.observation[:, 0].copy()
            if step <= arguments.warmup:
                action = rng.uniform(spec.action.low, spec.action.high, (1, *spec.action.shape)).astype(np.float32)
            else:
                action = agent.act(torch.from_numpy(observation)).numpy()
            put_actions(spec.action, action[:, None], batch.action)
            vector.send()
            batch = vector.recv()
            ended = batch.truncated & ~batch.terminated
            pond.add(
                Steps(
                    observation=observation[None],
                    action=action[None],
                    reward=batch.reward.T,
                    terminated=batch.terminated.T,
                    truncated=ended.T,
                    final_observation=batch.final_observation[ended],
                )
            )
            if step > arguments.warmup:
                agent.update(pond.sample(256, rng, gamma=0.99))
            if step % arguments.every == 0:
                evaluation = evaluate(
                    agent.actor,
                    testing,
                    episodes=arguments.episodes,
                    seed=12_345,
                    device=torch.device("cpu"),
                    deterministic=True,
                )
                curves.add(seed, step, evaluation.mean)
                print(f"seed {seed}, {step:,} env steps: {evaluation.mean:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=10_000)
    parser.add_argument("--warmup", type=int, default=1_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    curves = Curves("SAC on gymnasium:Pendulum-v1", "env steps", vars(arguments) | {"out": str(arguments.out)})
    start = time.perf_counter()
    for seed in range(1, arguments.seeds + 1):
        train(EnvConfig(id="gymnasium:Pendulum-v1"), seed, arguments, curves)
    print(f"{time.perf_counter() - start:.0f} s")
    curves.write(arguments.out / "sac-pendulum")
    print(curves.summary())


if __name__ == "__main__":
    main()
