"""PPO with an LSTM as one plain script in the style of CleanRL, with torch and gymnasium only.

    single_file_cartpole.py ITERATIONS SEED

A vector of envs that is stepped in one process, tensors for a rollout, the LSTM unrolled step by step with the state zeroed
where an episode started, minibatches of whole envs. The value loss does not train the LSTM, as in RecurrentPPO. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from importlib.metadata import version

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

ENVS, STEPS, HIDDEN = 32, 128, 64
EPOCHS, MINIBATCHES = 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM, RATE = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 1e-3


def orthogonal(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, inputs, actions):
        super().__init__()
        self.encoder = nn.Sequential(orthogonal(nn.Linear(inputs, HIDDEN)), nn.Tanh())
        self.lstm = nn.LSTM(HIDDEN, HIDDEN)
        self.actor = orthogonal(nn.Linear(HIDDEN, actions), 0.01)
        self.critic = orthogonal(nn.Linear(HIDDEN, 1), 1.0)

    def unroll(self, observation, state, reset):
        """observation [T * B, inputs], reset [T * B] -> hidden [T * B, H]; one step at a time, for the resets."""
        batch = state[0].shape[1]
        features = self.encoder(observation).view(-1, batch, HIDDEN)
        outputs = []
        for feature, new in zip(features, reset.view(-1, batch), strict=True):
            keep = (1.0 - new).view(1, -1, 1)
            output, state = self.lstm(feature[None], (keep * state[0], keep * state[1]))
            outputs.append(output)
        return torch.cat(outputs).flatten(0, 1), state

    def value(self, observation, state, reset):
        return self.critic(self.unroll(observation, state, reset)[0])

    def act(self, observation, state, reset, action=None):
        hidden, state = self.unroll(observation, state, reset)
        choice = Categorical(logits=self.actor(hidden))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy(), self.critic(hidden.detach()), state


def make_cartpole():
    return gymnasium.make("CartPole-v1")


def train(make_env, iterations, seed):
    """Train in envs with vectors and discrete actions.

    Return of each iteration: seconds of collecting and of training, the mean return of the last 100 episodes (`level`), and
    the number and the mean return of the episodes that ended in it.
    """
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    envs = gymnasium.vector.SyncVectorEnv([make_env] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)

    observations = torch.zeros(STEPS, ENVS, *envs.single_observation_space.shape)
    actions, log_probs, rewards, resets, values = (torch.zeros(STEPS, ENVS) for _ in range(5))
    observation = torch.as_tensor(envs.reset(seed=seed)[0]).float()
    reset = torch.zeros(ENVS)
    state = (torch.zeros(1, ENVS, HIDDEN), torch.zeros(1, ENVS, HIDDEN))
    recent = deque(maxlen=100)
    result = {name: [] for name in ("collect", "train", "level", "episodes", "returns")}

    for _ in range(iterations):
        start = time.perf_counter()
        first_state = (state[0].clone(), state[1].clone())
        ended = []
        for t in range(STEPS):
            observations[t], resets[t] = observation, reset
            with torch.no_grad():
                action, log_prob, _, value, state = agent.act(observation, state, reset)
            actions[t], log_probs[t], values[t] = action, log_prob, value.flatten()
            following, reward, terminated, truncated, info = envs.step(action.numpy())
            rewards[t] = torch.as_tensor(reward)
            observation = torch.as_tensor(following).float()
            reset = torch.as_tensor(np.logical_or(terminated, truncated)).float()
            if "final_info" in info and "episode" in info["final_info"]:
                episode = info["final_info"]["episode"]
                ended += episode["r"][info["final_info"]["_episode"]].tolist()
            elif "episode" in info:
                ended += info["episode"]["r"][info["_episode"]].tolist()
        recent.extend(ended)
        with torch.no_grad():
            next_value = agent.value(observation, state, reset).flatten()
            advantages, trace = torch.zeros_like(rewards), 0.0
            for t in reversed(range(STEPS)):
                continues = 1.0 - (reset if t == STEPS - 1 else resets[t + 1])
                after = next_value if t == STEPS - 1 else values[t + 1]
                delta = rewards[t] + GAMMA * after * continues - values[t]
                advantages[t] = trace = delta + GAMMA * LAMBDA * continues * trace
            returns = advantages + values
        collected = time.perf_counter()

        each = ENVS // MINIBATCHES
        for _ in range(EPOCHS):
            order = np.random.permutation(ENVS)  # noqa: NPY002
            for first in range(0, ENVS, each):
                envs_of_batch = order[first : first + each]
                _, log_prob, entropy, value, _ = agent.act(
                    observations[:, envs_of_batch].flatten(0, 1),
                    (first_state[0][:, envs_of_batch], first_state[1][:, envs_of_batch]),
                    resets[:, envs_of_batch].flatten(),
                    actions[:, envs_of_batch].flatten(),
                )
                advantage = advantages[:, envs_of_batch].flatten()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (log_prob - log_probs[:, envs_of_batch].flatten()).exp()
                policy = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                error = 0.5 * (value.flatten() - returns[:, envs_of_batch].flatten()).square().mean()
                loss = policy + VALUE * error - ENTROPY * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), NORM)
                optimizer.step()
        result["train"].append(time.perf_counter() - collected)
        result["collect"].append(collected - start)
        result["level"].append(float(np.mean(recent)) if recent else None)
        result["episodes"].append(len(ended))
        result["returns"].append(float(np.mean(ended)) if ended else None)
    return result


def main():
    iterations, seed = map(int, sys.argv[1:3])
    trained = train(make_cartpole, iterations, seed)
    result = {
        "party": "single-file PPO",
        "versions": {name: version(name) for name in ("torch", "gymnasium", "numpy")},
        "settings": {"precision": "float32", "vector": "SyncVectorEnv", "seed": seed},
        "steps": ENVS * STEPS,
        "collect": trained["collect"],
        "train": trained["train"],
        "level": trained["level"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
