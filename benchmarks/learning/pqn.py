"""Train PQN with the published settings on CartPole-v1 or a MinAtar game, compared with a random player.

    python benchmarks/learning/pqn.py cartpole [--env-steps 500000] [--seeds 3] [--out benchmarks/learning/results]
    python benchmarks/learning/pqn.py breakout --env-steps 2000000

The seeds are agents of one group, side by side. `--schedule-steps` is the budget that the schedules span,
if it is not the budget that is run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from curves import Curves

from millpond.config.mixture import PQNConfig
from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.learners import AgentGroup, build_q_network
from millpond.trainers.common.envs import build_vector, evaluation_vector
from millpond.trainers.common.play import evaluate

VECTOR = VectorConfig(backend="inline")
CARTPOLE = PQNConfig(
    num_envs=32,
    num_steps=64,
    num_minibatches=16,
    update_epochs=4,
    q_lambda=0.95,
    learning_rate=1e-4,
    lr_schedule="linear",
    epsilon_end=0.2,
    epsilon_share=0.2,
)
MINATAR = PQNConfig(learning_rate=5e-4, lr_schedule="linear", epsilon_end=0.05)


def setting(name: str) -> tuple[EnvConfig, PQNConfig, int]:
    """Return the environment, the settings and the width of the network as published; CartPole's rewards are scaled by 0.1."""
    if name == "cartpole":
        return EnvConfig(id="gymnasium:CartPole-v1", reward_scale=0.1), CARTPOLE, 256
    return EnvConfig(id=f"minatar:{name}"), MINATAR, 128


def make_group(
    env: EnvConfig,
    config: PQNConfig,
    hidden_size: int,
    seeds: list[int],
    total_collections: int,
    batched: bool | None = None,
) -> AgentGroup:
    vectors, networks = [], []
    for seed in seeds:
        vector = build_vector(env, VECTOR, num_envs=config.num_envs, groups=1, num_workers=1, stacked=True)
        vector.reset(seed)
        generator = torch.Generator().manual_seed(seed)
        vectors.append(vector)
        spec = vector.spec
        networks.append(build_q_network(spec.observation, spec.action, hidden_size=hidden_size, generator=generator))
    return AgentGroup(networks, vectors, config, seeds=seeds, total_collections=total_collections, batched=batched)


def random_return(env: EnvConfig, config: PQNConfig) -> float:
    """Return the result of a random player: an agent that always explores."""
    always = config.model_copy(update={"epsilon_end": 1.0, "num_steps": 1_000, "num_envs": 8})
    group = make_group(env, always, 1, [99], total_collections=1)
    returns = [episode.returns[0] for episode in group.collect()[0].episodes]
    return sum(returns) / len(returns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="cartpole, breakout, asterix, freeway, seaquest, space_invaders")
    parser.add_argument("--env-steps", type=int, default=500_000)
    parser.add_argument("--schedule-steps", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    env, config, hidden_size = setting(arguments.name)
    seeds = list(range(1, arguments.seeds + 1))
    per_collection = config.num_envs * config.num_steps
    collections = arguments.env_steps // per_collection
    scheduled = (arguments.schedule_steps or arguments.env_steps) // per_collection
    group = make_group(env, config, hidden_size, seeds, scheduled)
    settings = {
        "env": env.id,
        "env_steps": collections * per_collection,
        "hidden_size": hidden_size,
        **config.model_dump(),
    }
    curves = Curves(f"PQN on {env.id}", "env steps of each agent", settings)
    curves.baselines["random"] = random_return(env, config)
    measured = {round(collections * k / arguments.evaluations) for k in range(1, arguments.evaluations + 1)}
    start = time.perf_counter()
    with evaluation_vector(env, VECTOR, arguments.episodes) as vector:
        for done in range(1, collections + 1):
            group.collect()
            group.learn()
            if done in measured:
                for seed, network in zip(seeds, group.networks, strict=True):
                    evaluation = evaluate(
                        network,
                        vector,
                        episodes=arguments.episodes,
                        seed=12_345,
                        device=torch.device("cpu"),
                        deterministic=True,
                    )
                    curves.add(seed, done * per_collection, evaluation.mean)
                seconds = time.perf_counter() - start
                print(f"{done * per_collection:>10,} env steps each, {seconds:6.0f} s: {curves.last}", flush=True)
                curves.write(arguments.out / f"pqn-{arguments.name}")
    print(curves.summary())


if __name__ == "__main__":
    main()
