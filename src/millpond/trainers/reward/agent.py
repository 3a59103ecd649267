"""The agent of full mode: acts in an environment, keeps its transitions in a pond, learns from predicted rewards.

# T env steps   E envs
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.config import RewardRecipe
from millpond.config.mixture import DQNConfig
from millpond.envs.env_batch import Episode
from millpond.errors import MillpondError
from millpond.learners import DQN, SAC, Epsilon, QNetwork, epsilon_greedy
from millpond.learners.sac import Actor
from millpond.replay.pond import Pond
from millpond.replay.schema import Schema
from millpond.replay.steps import Steps
from millpond.rewards.network import RewardNetwork
from millpond.rollout.actions import put_actions
from millpond.trainers.common.envs import build_vector, evaluation_vector
from millpond.trainers.common.evaluate import Evaluation, evaluate
from millpond.trainers.common.vector_state import VectorState
from millpond.trainers.reward.networks import PLAYER_HIDDEN, make_player
from millpond.trainers.reward.pond import inputs_of_env, steps_of


class RewardAgent:
    """Everything of the agent. `act` fills the pond, `update` is one gradient step, `test` plays episodes of their own."""

    def __init__(self, recipe: RewardRecipe, seed: int, updates: int, device: torch.device) -> None:
        agent = recipe.agent
        self.recipe, self.device = recipe, device
        seeds = np.random.SeedSequence(seed).generate_state(4)
        self.vector = build_vector(
            recipe.env, recipe.vector, num_envs=agent.num_envs, groups=1, num_workers=1, stacked=True
        )
        spec = self.vector.spec
        self.spec, self.inputs = spec, inputs_of_env(spec)
        self.vector.reset(int(seeds[0]))
        self.env_batches = VectorState(self.vector, seed)
        rows = -(-agent.replay_transitions // agent.num_envs) * agent.num_envs
        self.lines: list[str] = []
        self.pond = Pond.init(
            Schema.from_spec(spec), rows, lanes=agent.num_envs, device=device, announce=self.lines.append
        )
        self.rng = np.random.default_rng(int(seeds[1]))
        self.generator = torch.Generator(device).manual_seed(int(seeds[2]))
        self.learner: SAC | DQN = self._make_learner(int(seeds[3]))
        self.seen = torch.empty((0, self.inputs.numbers))  # in the last `act`, [T x E, D]
        self.epsilon = Epsilon(1.0, 0.05, over=max(1, updates // 2))

    def _make_learner(self, seed: int) -> SAC | DQN:
        agent, spec = self.recipe.agent, self.spec
        fitting = "dqn" if spec.action.kind == "discrete" else "sac"
        if agent.algorithm not in ("auto", fitting):
            raise MillpondError(
                f"agent.algorithm={agent.algorithm}, but {spec.id} has {spec.action.kind} actions; set "
                f"agent.algorithm={fitting}"
            )
        if fitting == "sac":
            return SAC(
                spec.observation,
                spec.action,
                seed=seed,
                hidden_size=PLAYER_HIDDEN,
                learning_rate=agent.learning_rate,
                target_tau=agent.target_tau,
                device=self.device,
            )
        first = torch.Generator().manual_seed(seed)
        network = make_player(spec, first)
        assert isinstance(network, QNetwork)
        config = DQNConfig(
            batch_size=agent.batch_size,
            gamma=agent.gamma,
            learning_rate=agent.learning_rate,
            target_tau=agent.target_tau,
        )
        return DQN(network, config, device=self.device)

    # -- playing

    def act(self, env_steps: int, *, at_random: bool) -> list[Episode]:
        """Take so many steps in every env, and put them into the pond; the episodes that ended on the way."""
        fields: dict[str, list[Any]] = {
            name: [] for name in ("observation", "action", "reward", "terminated", "truncated")
        }
        finals, ended_episodes = [], []
        batch = self.vector.recv()
        for _ in range(env_steps):
            seen = batch.observation[:, 0].copy()
            action = self._random_actions(len(seen)) if at_random else self._actions(seen)
            put_actions(self.spec.action, action[:, None], batch.action)
            self.vector.send()
            batch = self.vector.recv()
            terminated, truncated = batch.terminated[:, 0], batch.truncated[:, 0] & ~batch.terminated[:, 0]
            ended = terminated | truncated
            for name, value in zip(fields, (seen, action, batch.reward[:, 0], terminated, truncated), strict=True):
                fields[name].append(value.copy())
            finals.append(batch.final_observation[:, 0][ended].copy())
            ended_episodes += batch.episodes
        self.vector.rest()
        stacked: dict[str, Any] = {name: np.stack(values) for name, values in fields.items()}
        has_final = stacked["terminated"] | stacked["truncated"]
        self.seen = torch.from_numpy(stacked["observation"]).to(self.device).flatten(0, 1).flatten(1).float()
        self.pond.add(Steps(**stacked, final_observation=np.concatenate(finals), has_final=has_final))
        return ended_episodes

    def _random_actions(self, envs: int) -> np.ndarray[Any, Any]:
        action = self.spec.action
        if action.kind == "discrete":
            return self.rng.integers(0, action.sizes[0], envs).astype(action.dtype)
        return self.rng.uniform(action.low, action.high, (envs, *action.shape)).astype(action.dtype)

    def _actions(self, observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        shown = torch.from_numpy(observation).to(self.device)
        if isinstance(self.learner, SAC):
            drawn = self.learner.act(shown)
        else:
            with torch.no_grad():
                drawn = epsilon_greedy(self.learner.network(shown), self.epsilon.value, self.generator)
        return drawn.cpu().numpy().astype(self.spec.action.dtype)

    # -- learning

    def update(self, judge: RewardNetwork) -> dict[str, Tensor]:
        """One gradient step, on rewards as `judge` sees them, or as the environment gave them."""
        agent = self.recipe.agent
        batch = self.pond.sample(agent.batch_size, self.rng, gamma=agent.gamma)
        reward = None
        if agent.learn_from == "predicted":
            with torch.no_grad():
                steps = steps_of(batch.observation, batch.action, batch.next_observation, self.inputs)
                reward = judge.reward(steps)
        self.epsilon.advance(1)
        return self.learner.update(batch, reward)

    @property
    def player(self) -> Actor | QNetwork:
        """The network that chooses actions."""
        return self.learner.actor if isinstance(self.learner, SAC) else self.learner.network

    def test(self) -> Evaluation:
        """Test rollouts, always the same episodes."""
        policy: Any = self.player
        episodes = self.recipe.agent.test_episodes
        with evaluation_vector(self.recipe.env, self.recipe.vector, episodes) as vector:
            return evaluate(
                policy, vector, episodes=episodes, seed=self.recipe.eval.seed, device=self.device, deterministic=True
            )

    # -- state

    def state_dict(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "pond": self.pond.state_dict(),
            "epsilon": self.epsilon.state_dict(),
            "worlds": self.env_batches.state_dict(),
            "rng": self.rng.bit_generator.state,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.pond.load_state_dict(state["pond"])
        self.epsilon.load_state_dict(state["epsilon"])
        self.env_batches.load_state_dict(state["worlds"])
        self.rng.bit_generator.state = state["rng"]
        self.generator.set_state(state["generator"])

    def close(self) -> None:
        self.vector.close()
