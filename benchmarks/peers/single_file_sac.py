"""SAC as one plain script in the style of CleanRL, with torch and gymnasium only.

    single_file_sac.py ITERATIONS SEED

One env, arrays as replay, twin critics as two modules, one Adam each for actor, critics and temperature, one update per env
step. Prints JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
from importlib.metadata import version

import gymnasium
import numpy as np
import torch
from settings import SAC as TASK
from torch import nn
from torch.nn import functional


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, TASK.hidden), nn.ReLU(), nn.Linear(TASK.hidden, TASK.hidden), nn.ReLU(),
        nn.Linear(TASK.hidden, outputs),
    )  # fmt: skip


class Actor(nn.Module):
    def __init__(self, inputs, low, high):
        super().__init__()
        self.layers = mlp(inputs, 2 * len(low))
        self.register_buffer("centre", torch.tensor((low + high) / 2))
        self.register_buffer("reach", torch.tensor((high - low) / 2))

    def forward(self, observation):
        """Draw actions; return them with their log-probabilities."""
        mean, log_deviation = self.layers(observation).chunk(2, -1)
        log_deviation = log_deviation.clamp(-20, 2)
        noise = torch.randn_like(mean)
        raw = mean + log_deviation.exp() * noise
        squash = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        log_prob = -0.5 * noise.square() - log_deviation - 0.5 * math.log(2 * math.pi) - squash - self.reach.log()
        return self.centre + self.reach * raw.tanh(), log_prob.sum(-1)


class Replay:
    def __init__(self, inputs, actions):
        shapes = {"observation": (inputs,), "following": (inputs,), "action": (actions,), "reward": (), "ended": ()}
        self.arrays = {name: np.zeros((TASK.replay, *shape), np.float32) for name, shape in shapes.items()}
        self.size = 0

    def add(self, **values):
        for name, value in values.items():
            self.arrays[name][self.size % TASK.replay] = value
        self.size += 1

    def sample(self):
        rows = np.random.randint(0, min(self.size, TASK.replay), TASK.batch)  # noqa: NPY002
        return {name: torch.from_numpy(array[rows]) for name, array in self.arrays.items()}


def main():
    iterations, seed = map(int, sys.argv[1:3])
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    env = gymnasium.make(TASK.env)
    env.action_space.seed(seed)
    inputs, actions = env.observation_space.shape[0], env.action_space.shape[0]
    actor = Actor(inputs, env.action_space.low, env.action_space.high)
    critics = nn.ModuleList([mlp(inputs + actions, 1) for _ in range(2)])
    targets = nn.ModuleList([mlp(inputs + actions, 1) for _ in range(2)])
    targets.load_state_dict(critics.state_dict())
    log_alpha = torch.zeros(1, requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=TASK.learning_rate)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=TASK.learning_rate)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=TASK.learning_rate)
    replay, steps, total = Replay(inputs, actions), 0, 0.0
    observation, _ = env.reset(seed=seed)

    def update():
        batch = replay.sample()
        now, alpha = batch["observation"], log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = actor(batch["following"])
            pairs = torch.cat([batch["following"], action], 1)
            future = torch.min(*(target(pairs).flatten() for target in targets)) - alpha * log_prob
            goal = batch["reward"] + TASK.gamma * (1 - batch["ended"]) * future
        pairs = torch.cat([now, batch["action"]], 1)
        critic_loss = sum(functional.mse_loss(critic(pairs).flatten(), goal) for critic in critics)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        action, log_prob = actor(now)
        pairs = torch.cat([now, action], 1)
        actor_loss = (alpha * log_prob - torch.min(*(critic(pairs).flatten() for critic in critics))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        alpha_loss = (-log_alpha * (log_prob.detach() - actions)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()
        with torch.no_grad():
            for target, critic in zip(targets.parameters(), critics.parameters(), strict=True):
                target.lerp_(critic, TASK.tau)

    collect, train, level = [], [], []
    for _ in range(iterations):
        collecting, training, returns = 0.0, 0.0, []
        for _ in range(TASK.iteration):
            start = time.perf_counter()
            if steps < TASK.warm_up:
                action = env.action_space.sample()
            else:
                with torch.no_grad():
                    action = actor(torch.from_numpy(observation)[None])[0][0].numpy()
            following, reward, terminated, truncated, _ = env.step(action)
            replay.add(observation=observation, following=following, action=action, reward=reward, ended=terminated)
            observation, total = following, total + reward
            if terminated or truncated:
                returns.append(float(total))
                total = 0.0
                observation, _ = env.reset()
            steps += 1
            collected = time.perf_counter()
            if steps > TASK.warm_up:
                update()
            collecting += collected - start
            training += time.perf_counter() - collected
        collect.append(collecting)
        train.append(training)
        level.append(sum(returns) / len(returns) if returns else None)

    result = {
        "party": "single-file SAC",
        "versions": {name: version(name) for name in ("torch", "gymnasium", "numpy")},
        "settings": {"precision": "float32", "seed": seed},
        "steps": TASK.iteration,
        "collect": collect,
        "train": train,
        "level": level,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
