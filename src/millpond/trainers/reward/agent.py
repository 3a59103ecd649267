"""Whole episodes in a pond, for return decomposition while an agent plays.

# B episodes in a batch   K steps drawn of each
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.config import RewardRecipe
from millpond.config.mixture import DQNConfig
from millpond.envs.env_batch import EpisodeStats
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.learners import DQN, SAC, Epsilon, QNetwork, epsilon_greedy
from millpond.learners.sac import SACActor
from millpond.replay.pond import Pond
from millpond.replay.schema import FINAL, Schema
from millpond.replay.steps import Steps
from millpond.replay.walk import whole_episodes
from millpond.rewards import objectives
from millpond.rewards.network import RewardInputs, RewardNetwork, StepBatch
from millpond.rewards.sampling import StepSampler
from millpond.rollout.actions import put_actions
from millpond.trainers.common.envs import VectorState, build_vector, evaluation_vector
from millpond.trainers.common.evaluate import Evaluation, evaluate
from millpond.trainers.reward.setup import PLAYER_HIDDEN, make_player


def inputs_of_env(spec: EnvSpec) -> RewardInputs:
    """What a reward network is given of an environment: its observation as plain numbers."""
    action = spec.action
    if action.kind == "multidiscrete":
        raise MillpondError(f"{spec.id} has several discrete actions a step; full mode takes one, or continuous ones")
    if spec.action_masks:
        raise MillpondError(f"{spec.id} allows other actions at each step; full mode takes environments that allow all")
    numbers = int(np.prod(spec.observation.shape, dtype=np.int64))
    width = action.sizes[0] if action.kind == "discrete" else int(np.prod(action.shape, dtype=np.int64))
    return RewardInputs(numbers, width)


def steps_of(observation: Tensor, action: Tensor, next_observation: Tensor, inputs: RewardInputs) -> StepBatch:
    """Transitions of a pond [N, ...] as a reward network takes them."""
    if not action.is_floating_point():
        action = torch.nn.functional.one_hot(action.long().flatten(), inputs.action)
    return StepBatch(
        observation.flatten(1).float(), action.flatten(1).float(), next_observation.flatten(1).float(), {}, {}
    )


class PondBatches:
    """Losses over the whole episodes that a pond holds now. Only their returns are looked at, never single rewards."""

    unit = 1.0  # losses are in units of rewards

    def __init__(self, pond: Pond, network: RewardNetwork, *, per_batch: int, steps: int) -> None:
        self.pond, self.network = pond, network
        self._sizes = (per_batch, steps)
        self.episodes = 0

    def refresh(self) -> None:
        """Look for whole episodes again, after steps were added."""
        view = self.pond.view()
        start, rows = whole_episodes(view)
        if not len(start):
            self.episodes = 0
            return
        lengths = rows - ((view.flags[start + rows - 1] & FINAL) > 0)
        summed = np.concatenate(
            [[0.0], np.cumsum(self.pond.fields["reward"].cpu().numpy()[view.slot], dtype=np.float64)]
        )
        self._slot, self._start, self.lengths = view.slot, start, lengths
        self.mean_return = (summed[start + lengths] - summed[start]) / lengths
        self.draw = StepSampler(lengths, *self._sizes)
        self.episodes = len(start)

    def loss(self, rng: np.random.Generator) -> Tensor:
        """Draw a batch and judge it."""
        device = self.pond.device
        episodes, steps = self.draw(rng)
        reward = self.network.outputs(self._batch(episodes, steps)).view(steps.shape)
        target = torch.from_numpy(self.mean_return[episodes].astype(np.float32)).to(device)
        mask = None
        if not self.draw.always_filled:
            mask = torch.from_numpy(self.draw.drawn(episodes)).to(device)
        if self.network.objective == "rrd":
            return objectives.rrd_loss(reward, target, mask)
        length = torch.from_numpy(self.lengths[episodes].astype(np.float32)).to(device)
        return objectives.lrd_loss(reward, target, length, mask)

    def _batch(self, episodes: Any, steps: Any) -> StepBatch:
        rows = (self._start[episodes][:, None] + steps).reshape(-1)
        now, then = (torch.from_numpy(self._slot[at]).to(self.pond.device) for at in (rows, rows + 1))
        frames = self.pond.fields["observation/observation"]
        return steps_of(frames[now], self.pond.fields["action"][now], frames[then], self.network.shape)

    def skip(self, rng: np.random.Generator) -> None:
        """Take as many numbers from the generator as one batch does."""
        self.draw(rng)

    def drawn_batch(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """The next batch as tensors, for a dump."""
        batch = self._batch(*self.draw(rng))
        return {"observation": batch.observation, "action": batch.action, "next_observation": batch.next_observation}


# -- The agent of full mode: acts in an environment, keeps its transitions in a pond, learns from predicted rewards.
#
# # T env steps   E envs


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

    def act(self, env_steps: int, *, at_random: bool) -> list[EpisodeStats]:
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
    def player(self) -> SACActor | QNetwork:
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
