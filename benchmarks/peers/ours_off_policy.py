"""Millpond's SAC and DQN with the true reward, in the loop of settings.py: act, store, learn. Prints JSON.

    ours_off_policy.py sac-pendulum|dqn-minatar ITERATIONS SEED

sac-pendulum  the agent of the recipe reward-online, without a reward network: its envs, pond and SAC
dqn-minatar   the BigAgent's DQN, a pond, and the collector with which it acts
"""

from __future__ import annotations

import millpond  # noqa: F401  # before torch, as in a run: it sets how the threads of torch wait

# isort: split
import argparse
import copy
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from statistics import mean
from typing import Any

import numpy as np
import torch
from settings import DQN as DQN_TASK
from settings import SAC as SAC_TASK

from millpond import fast
from millpond.config import RewardRecipe, load
from millpond.config.mixture import DQNConfig, PQNConfig
from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.learners import DQN, AgentGroup, Epsilon, build_q_network
from millpond.replay import Schema
from millpond.replay.pond import Pond
from millpond.trainers.common.envs import build_vector
from millpond.trainers.reward.agent import RewardAgent


class Watch:
    """Seconds of collecting and of training, and the mean return of the episodes that ended, of each iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"collect": [], "train": []}
        self.level: list[float | None] = []
        self.returns: list[float] = []

    @contextmanager
    def iteration(self) -> Iterator[None]:
        for seconds in self.seconds.values():
            seconds.append(0.0)
        self.returns = []
        yield
        self.level.append(mean(self.returns) if self.returns else None)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name][-1] += time.perf_counter() - began


def sac_pendulum(iterations: int, seed: int, watch: Watch) -> int:
    task = SAC_TASK
    recipe = load(
        "reward-online",
        {
            "env.id": f"gymnasium:{task.env}",
            "env.episodic": False,
            "agent.learn_from": "world",
            "agent.batch_size": task.batch,
            "agent.replay_transitions": task.replay,
            "agent.learning_rate": task.learning_rate,
            "agent.target_tau": task.tau,
            "agent.gamma": task.gamma,
            "vector.backend": "inline",
        },
    ).recipe
    assert isinstance(recipe, RewardRecipe)
    agent = RewardAgent(recipe, seed, updates=iterations * task.iteration, device=torch.device("cpu"))
    assert agent.learner.critics.shapes["2.weight"] == (task.hidden, task.hidden)  # type: ignore[union-attr]
    unused: Any = None  # the reward network, which rewards of the env replace
    steps = 0
    for _ in range(iterations):
        with watch.iteration():
            for _ in range(task.iteration // task.collect):
                with watch.phase("collect"):
                    ended = agent.act(task.collect, at_random=steps < task.warm_up)
                    steps += task.collect
                watch.returns += [float(episode.returns[0]) for episode in ended]
                if steps > task.warm_up:
                    with watch.phase("train"):
                        for _ in range(task.collect):
                            agent.update(unused)
    agent.close()
    return task.iteration


def dqn_minatar(iterations: int, seed: int, watch: Watch) -> int:
    task = DQN_TASK
    vector = build_vector(
        EnvConfig(id=f"minatar:{task.game}"),
        VectorConfig(backend="inline"),
        num_envs=task.envs,
        groups=1,
        num_workers=1,
        stacked=True,
    )
    vector.reset(seed)
    spec, schema = vector.spec, Schema.from_spec(vector.spec)
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    network = build_q_network(spec.observation, spec.action, hidden_size=task.hidden, generator=generator)
    config = DQNConfig(
        batch_size=task.batch,
        gamma=task.gamma,
        double=False,  # as SB3's
        loss="huber",
        learning_rate=task.learning_rate,
        max_grad_norm=task.max_norm,
        target_tau=0.0,
        target_interval=task.target_updates,
    )
    dqn = DQN(network, config, compiled=fast.dqn_updates)
    # It acts as the BigAgent does: a copy of its network in a group of one agent that never learns.
    acting = PQNConfig(num_envs=task.envs, num_steps=task.collect, num_minibatches=1)
    actor = AgentGroup(
        [copy.deepcopy(network)], [vector], acting, seeds=[seed], total_collections=1, compiled=fast.pqn_updates
    )
    epsilon = Epsilon(1.0, task.epsilon_end, over=task.epsilon_over)
    actor.epsilons = [epsilon]
    pond = Pond.init(schema, task.replay, lanes=task.envs)
    steps = 0
    for _ in range(iterations):
        with watch.iteration():
            for _ in range(task.iteration // task.phase):
                with watch.phase("collect"):
                    actor.networks[0].load_state_dict(dqn.network.state_dict())
                    (collection,) = actor.collect()
                    pond.add(collection.as_steps(schema))
                    steps += task.phase
                watch.returns += [float(episode.returns[0]) for episode in collection.episodes]
                if steps > task.warm_up:
                    with watch.phase("train"):
                        batches = pond.sample_many(task.updates, task.batch, rng, gamma=task.gamma, columns=())
                        dqn.update_all(batches)
    vector.close()
    return task.iteration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = {"sac-pendulum": sac_pendulum, "dqn-minatar": dqn_minatar}
    parser.add_argument("task", choices=list(tasks))
    parser.add_argument("iterations", type=int)
    parser.add_argument("seed", type=int)
    options = parser.parse_args()
    watch = Watch()
    steps = tasks[options.task](options.iterations, options.seed, watch)
    result = {
        "party": "millpond",
        "versions": {name: version(name) for name in ("torch", "numpy", "gymnasium")},
        "settings": {"precision": "float32", "vector": "inline", "seed": options.seed},
        "steps": steps,
        **watch.seconds,
        "level": watch.level,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
