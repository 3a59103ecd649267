"""DQN as one plain script in the style of CleanRL, with torch, gymnasium and MinAtar only.

    single_file_dqn.py ITERATIONS SEED

A vector of envs that is stepped in one process, arrays as replay, one Adam. The network is Millpond's, with its LayerNorms.
Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from minatar_env import MinAtar
from settings import DQN as TASK
from torch import nn
from torch.nn import functional


class QNetwork(nn.Module):
    def __init__(self, shape, actions):
        super().__init__()
        planes, height, width = shape
        self.convolution = nn.Conv2d(planes, TASK.filters, 3)
        self.channels = nn.LayerNorm(TASK.filters)
        self.hidden = nn.Linear(TASK.filters * (height - 2) * (width - 2), TASK.hidden)
        self.norm = nn.LayerNorm(TASK.hidden)
        self.output = nn.Linear(TASK.hidden, actions)

    def forward(self, observation):
        image = self.convolution(observation.float())
        image = self.channels(image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        hidden = self.norm(self.hidden(image.relu().flatten(1)))
        return self.output(hidden.relu())


class Replay:
    def __init__(self, shape):
        self.observation = np.zeros((TASK.replay, *shape), np.uint8)
        self.following = np.zeros((TASK.replay, *shape), np.uint8)
        self.action = np.zeros(TASK.replay, np.int64)
        self.reward, self.terminated = np.zeros(TASK.replay, np.float32), np.zeros(TASK.replay, np.float32)
        self.size = 0

    def add(self, observation, following, action, reward, terminated):
        rows = (self.size + np.arange(len(action))) % TASK.replay
        self.observation[rows], self.following[rows] = observation, following
        self.action[rows], self.reward[rows], self.terminated[rows] = action, reward, terminated
        self.size += len(action)

    def sample(self):
        rows = np.random.randint(0, min(self.size, TASK.replay), TASK.batch)  # noqa: NPY002
        arrays = (self.observation, self.following, self.action, self.reward, self.terminated)
        return [torch.from_numpy(array[rows]) for array in arrays]


def main():
    iterations, seed = map(int, sys.argv[1:3])
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    makers = [lambda: MinAtar(TASK.game)] * TASK.envs
    envs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    shape, actions = envs.single_observation_space.shape, envs.single_action_space.n
    network, target = QNetwork(shape, actions), QNetwork(shape, actions)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=TASK.learning_rate)
    replay, steps, updates = Replay(shape), 0, 0
    observation, _ = envs.reset(seed=seed)
    running, collect, train, level = np.zeros(TASK.envs), [], [], []

    for _ in range(iterations):
        collecting, training, returns = 0.0, 0.0, []
        for _ in range(TASK.iteration // TASK.phase):
            start = time.perf_counter()
            for _ in range(TASK.collect):
                with torch.no_grad():
                    action = network(torch.from_numpy(observation)).argmax(-1).numpy()
                explore = np.random.rand(TASK.envs) < TASK.epsilon(steps)  # noqa: NPY002
                action = np.where(explore, np.random.randint(0, actions, TASK.envs), action)  # noqa: NPY002
                following, reward, terminated, truncated, info = envs.step(action)
                ended = terminated | truncated
                real = following.copy()
                for env in np.flatnonzero(ended):
                    real[env] = info["final_obs"][env]
                replay.add(observation, real, action, reward, terminated)
                running += reward
                returns += running[ended].tolist()
                running[ended] = 0.0
                observation = following
                steps += TASK.envs
            collected = time.perf_counter()
            if steps > TASK.warm_up:
                for _ in range(TASK.updates):
                    now, following, action, reward, terminated = replay.sample()
                    with torch.no_grad():
                        goal = reward + TASK.gamma * (1 - terminated) * target(following).amax(1)
                    q = network(now).gather(1, action[:, None]).squeeze(1)
                    loss = functional.smooth_l1_loss(q, goal)
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(network.parameters(), TASK.max_norm)
                    optimizer.step()
                    updates += 1
                    if updates % TASK.target_updates == 0:
                        target.load_state_dict(network.state_dict())
            collecting += collected - start
            training += time.perf_counter() - collected
        collect.append(collecting)
        train.append(training)
        level.append(float(np.mean(returns)) if returns else None)

    result = {
        "party": "single-file DQN",
        "versions": {name: version(name) for name in ("torch", "gymnasium", "numpy")},
        "settings": {"precision": "float32", "vector": "SyncVectorEnv", "seed": seed},
        "steps": TASK.iteration,
        "collect": collect,
        "train": train,
        "level": level,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
