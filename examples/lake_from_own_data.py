"""Store your own transitions in a lake, and train any network from it with PyTorch's DataLoader.

Here a clumsy controller plays, and a network learns to do what it does (behaviour cloning).
"""

from __future__ import annotations

import shutil

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from ball import Ball
from millpond import Lake, ReplayStream
from millpond.replay import Schema, Steps

STEPS = 32  # of an episode


def record(lake: Lake, episodes: int, rng: np.random.Generator) -> None:
    """Play, and append one episode at a time: when `append` returns, it is on disk."""
    env = Ball()
    with lake.writer("controller", lanes=1) as writer:  # lanes: envs that step together
        for number in range(episodes):
            observation, _ = env.reset(seed=number)
            seen, acted, rewards = [], [], []
            for _ in range(STEPS):
                action = np.int64(observation[0] < 0 if rng.random() > 0.1 else rng.integers(2))
                seen.append(observation)
                acted.append(action)
                observation, reward, _, _, _ = env.step(action)
                rewards.append(reward)
            truncated = np.arange(STEPS) == STEPS - 1  # cut off, not failed: the value of what follows is not zero
            writer.append(
                Steps(
                    observation=np.array(seen)[:, None],  # [T, lanes, ...]
                    action=np.array(acted)[:, None],
                    reward=np.array(rewards)[:, None],
                    terminated=np.zeros((STEPS, 1), bool),
                    truncated=truncated[:, None],
                    final_observation=observation[None],
                )
            )


def main(episodes: int = 50, batches: int = 300, folder: str = "own-lake") -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with Lake.create(folder, Schema.from_spaces(Ball.observation_space, Ball.action_space)) as lake:
        record(lake, episodes, np.random.default_rng(0))
        lake.refresh()
        print(
            f"{lake.transitions():,} transitions, mean return {np.mean([e.episode_return for e in lake.episodes()]):.1f}"
        )

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    stream = ReplayStream(folder, batch_size=64, limit=batches, seed=0)
    for batch in DataLoader(stream, batch_size=None):  # num_workers=4, if reading is what takes the time
        loss = nn.functional.cross_entropy(network(batch["observation"]), batch["action"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    places = torch.tensor([[-1.0], [1.0]])
    print(f"loss {loss.item():.2f}; at -1 and +1 it pushes {network(places).argmax(1).tolist()}")  # 1: to the right


if __name__ == "__main__":
    main()
