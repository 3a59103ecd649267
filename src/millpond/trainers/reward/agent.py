"""Full mode: an agent that learns from predicted rewards, and batches of the whole episodes in its pond.

# B episodes per batch   K sampled steps per episode   T env steps   E envs
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond import fast
from millpond.config import RewardRecipe
from millpond.config.mixture import DQNConfig
from millpond.devices import make_generator
from millpond.distributed import ALONE
from millpond.envs.env_batch import EpisodeStats
from millpond.errors import MillpondError
from millpond.learners import DQN, SAC, Epsilon, QNetwork, epsilon_greedy
from millpond.learners.sac import SACActor
from millpond.replay.pond import Pond
from millpond.replay.ring_episodes import RingEpisodes
from millpond.replay.schema import Schema
from millpond.replay.steps import PROVENANCE, Steps
from millpond.rewards import objectives
from millpond.rewards.batches import StepSampler
from millpond.rewards.network import RewardNetwork, StepBatch
from millpond.rewards.own_episodes import env_inputs, env_step_batch
from millpond.rollout.collector import put_actions
from millpond.store import Run
from millpond.trainers.common.backend import VectorSizes, choose_vector, keeping_random_state, time_network
from millpond.trainers.common.envs import VectorState, build_vector, evaluation_vector, make_spec
from millpond.trainers.common.failures import Learning, as_numbers
from millpond.trainers.common.play import Evaluation, evaluate
from millpond.trainers.reward.setup import AGENT_HIDDEN_SIZE, make_player
from millpond.vector import BackendChoice, FiniteCheck
from millpond.vector.finite import is_finite


class PondBatches:
    """Losses over the whole episodes in a pond. Only their returns are used, never the rewards of single steps."""

    unit = 1.0  # losses are in squared units of the rewards

    def __init__(self, pond: Pond, network: RewardNetwork, *, per_batch: int, steps: int) -> None:
        self.pond, self.network = pond, network
        self._sizes = (per_batch, steps)
        self._found = RingEpisodes(pond)
        self.episodes = 0

    def refresh(self) -> None:
        """Find the whole episodes again, after steps were added."""
        self._start, self.lengths, self.mean_return = self._found.find()
        self.episodes = len(self._start)
        if self.episodes:
            self._view = self.pond.view()
            self.sampler = StepSampler(self.lengths, *self._sizes)

    def loss(self, rng: np.random.Generator) -> Tensor:
        """Sample a batch and compute its loss."""
        episodes, steps = self.sampler(rng)
        sent = self._send(episodes, steps)
        reward = self.network.outputs(self._batch(sent)).view(steps.shape)
        if self.network.objective == "rrd":
            return objectives.rrd_loss(reward, sent["target"], sent.get("valid"))
        return objectives.lrd_loss(reward, sent["target"], sent["length"], sent.get("valid"))

    def _send(self, episodes: Any, steps: Any) -> dict[str, Tensor]:
        """Send the records of sampled steps [B, K] and what the losses need to the pond's device, in one copy."""
        first = self._start[episodes][:, None]
        arrays = {name: self._view.later(first, steps + k).reshape(-1) for k, name in enumerate(("now", "after"))}
        arrays["target"] = self.mean_return[episodes].astype(np.float32)
        arrays["length"] = self.lengths[episodes].astype(np.float32)
        if not self.sampler.always_filled:
            arrays["valid"] = self.sampler.valid_steps(episodes)
        return self.pond.send(arrays)

    def _batch(self, sent: dict[str, Tensor]) -> StepBatch:
        frames, now, after = self.pond.fields["observation/observation"], sent["now"], sent["after"]
        action = self.pond.fields["action"].index_select(0, now)
        return env_step_batch(frames.index_select(0, now), action, frames.index_select(0, after), self.network.inputs)

    def skip(self, rng: np.random.Generator) -> None:
        """Take as many numbers from the generator as one batch does."""
        self.sampler(rng)

    def sample(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """The next batch as tensors, for a dump."""
        batch = self._batch(self._send(*self.sampler(rng)))
        return {"observation": batch.observation, "action": batch.action, "next_observation": batch.next_observation}


def choose_agent_vector(recipe: RewardRecipe, run: Run, device: torch.device) -> BackendChoice | None:
    """Return how the agent's envs are stepped with `vector.backend=auto`; None if the config sets it."""
    if recipe.vector.backend != "auto":
        return None
    spec, num_envs = make_spec(recipe.env, stacked=True), recipe.agent.num_envs
    env_inputs(spec)  # refuses environments that full mode does not support
    with keeping_random_state():
        network = make_player(spec, torch.Generator().manual_seed(0)).to(device)
    time_acting = time_network(network, spec, num_envs, device)
    return choose_vector(recipe, spec, VectorSizes(num_envs), run, ALONE, time_acting)


class RewardAgent:
    """The agent with its envs, pond and learner: `act` fills the pond, `update` is one gradient step, `test` evaluates."""

    def __init__(
        self,
        recipe: RewardRecipe,
        seed: int,
        updates: int,
        device: torch.device,
        choice: BackendChoice | None = None,
    ) -> None:
        agent = recipe.agent
        self.recipe, self.device = recipe, device
        seeds = np.random.SeedSequence(seed).generate_state(4)
        self.vector = build_vector(
            recipe.env, recipe.vector, num_envs=agent.num_envs, groups=1, num_workers=1, stacked=True, choice=choice
        )
        spec = self.vector.spec
        self.spec, self.inputs = spec, env_inputs(spec)
        self.vector.reset(int(seeds[0]))
        self.env_batches = VectorState(self.vector, seed)
        capacity = -(-agent.replay_transitions // agent.num_envs) * agent.num_envs
        self.lines: list[str] = []
        self.pond = Pond.init(
            Schema.from_spec(spec), capacity, lanes=agent.num_envs, device=device, announce=self.lines.append
        )
        self.rng = np.random.default_rng(int(seeds[1]))
        self.generator = make_generator(device, int(seeds[2]))
        self.learner: SAC | DQN = self._make_learner(int(seeds[3]))
        self._acted: dict[str, Any] = {}  # observation, reward, ... [T, E, ...] of the last `act`
        self.epsilon = Epsilon(1.0, 0.05, over=max(1, updates // 2))
        self._finite = FiniteCheck(self.vector)
        self._newest: list[tuple[Any, dict[str, Any]]] = []  # batches and metrics of the last two updates

    def _make_learner(self, seed: int) -> SAC | DQN:
        agent, spec = self.recipe.agent, self.spec
        algorithm = "dqn" if spec.action.kind == "discrete" else "sac"
        if agent.algorithm not in ("auto", algorithm):
            raise MillpondError(
                f"agent.algorithm={agent.algorithm}, but {spec.id} has {spec.action.kind} actions; set "
                f"agent.algorithm={algorithm}"
            )
        if algorithm == "sac":
            return SAC(
                spec.observation,
                spec.action,
                seed=seed,
                hidden_size=AGENT_HIDDEN_SIZE,
                learning_rate=agent.learning_rate,
                target_tau=agent.target_tau,
                device=self.device,
                compiled=fast.sac_updates if self.recipe.trainer.fast else None,
            )
        network = make_player(spec, torch.Generator().manual_seed(seed))
        assert isinstance(network, QNetwork)
        config = DQNConfig(
            batch_size=agent.batch_size,
            gamma=agent.gamma,
            learning_rate=agent.learning_rate,
            target_tau=agent.target_tau,
        )
        compiled = fast.dqn_updates if self.recipe.trainer.fast else None
        return DQN(network, config, device=self.device, compiled=compiled)

    # Acting

    def act(self, env_steps: int, *, at_random: bool) -> list[EpisodeStats]:
        """Take `env_steps` steps in every env and add them to the pond; return the episodes that ended.

        Raises `NonFiniteEnvError`, and adds nothing, if an env returned a number that is NaN or infinite.
        """
        fields: dict[str, list[Any]] = {
            name: [] for name in ("observation", "action", "reward", "terminated", "truncated")
        }
        finals: list[np.ndarray[Any, Any]] = []
        episodes: list[EpisodeStats] = []
        self._finite.begin()
        try:
            self._take_steps(env_steps, at_random, fields, finals, episodes)
        except Exception:
            taken = min(map(len, fields.values()))
            if taken:  # an error that follows from a NaN hides it
                self._check_numbers({name: np.stack(values[:taken]) for name, values in fields.items()}, episodes)
            raise
        self._acted = acted = {name: np.stack(values) for name, values in fields.items()}
        self._check_numbers(acted, episodes)
        self.pond.add(self._as_steps(acted, np.concatenate(finals)))
        return episodes

    def _as_steps(self, acted: dict[str, Any], finals: np.ndarray[Any, Any]) -> Steps:
        """Return what was collected as steps that fit the pond's schema, which is that of the same environment."""
        shape, record = acted["reward"].shape, self.pond.schema.record
        provenance: dict[str, Any] = {name: np.zeros(shape, record[name]) for name in PROVENANCE}
        return Steps(
            {"observation": acted["observation"]},
            acted["action"],
            acted["reward"],
            acted["terminated"],
            acted["truncated"],
            {"observation": finals},
            acted["terminated"] | acted["truncated"],
            **provenance,
            valid_for=self.pond.schema,
        )

    def observations(self) -> Tensor:
        """Return the observations of the last `act`, [T x E, D]."""
        sent = self.pond.send({"observation": self._acted["observation"]})
        return sent["observation"].flatten(0, 1).flatten(1).float()

    def reward_stats(self) -> dict[str, float]:
        """Return metrics of the last `act`, for the record."""
        return {
            "reward_per_agent_step": float(self._acted["reward"].mean()),
            "reward_std": float(self._acted["reward"].std()),
            "termination_rate": float(self._acted["terminated"].mean()),
        }

    def _take_steps(
        self,
        env_steps: int,
        at_random: bool,
        fields: dict[str, list[Any]],
        finals: list[np.ndarray[Any, Any]],
        episodes: list[EpisodeStats],
    ) -> None:
        batch = self.vector.recv()
        for _ in range(env_steps):
            observation = batch.observation[:, 0].copy()
            action = self._random_actions(len(observation)) if at_random else self._actions(observation)
            put_actions(self.spec.action, action[:, None], batch.action)
            self.vector.send()
            batch = self.vector.recv()
            terminated, truncated = batch.terminated[:, 0], batch.truncated[:, 0] & ~batch.terminated[:, 0]
            ended = terminated | truncated
            step = (observation, action, batch.reward[:, 0], terminated, truncated)
            for name, value in zip(fields, step, strict=True):
                fields[name].append(value.copy())
            finals.append(batch.final_observation[:, 0][ended].copy())
            if ended.any():
                envs = np.flatnonzero(ended)
                self._finite.final(finals[-1], envs, np.zeros(len(envs), np.int64))
            episodes += batch.episodes
        self._finite.current(batch)
        self.vector.end_round()

    def _check_numbers(self, acted: dict[str, Any], episodes: list[EpisodeStats]) -> None:
        """Raise if an observation or a reward of steps [T, E] is not finite."""
        check, envs = self._finite, np.arange(self.vector.num_envs)
        finite = not check.sees_observations or check.finite_observations(acted["observation"])
        if finite and is_finite(acted["reward"]) and not check.found:
            return
        taken = {name: values.swapaxes(0, 1)[:, :, None] for name, values in acted.items()}
        check.steps("reward", taken.pop("reward"), envs)
        check.steps("observation", taken.pop("observation"), envs)
        for name, values in taken.items():
            check.keep(name, values, envs)
        check.raise_found(episodes)

    def _random_actions(self, envs: int) -> np.ndarray[Any, Any]:
        action = self.spec.action
        if action.kind == "discrete":
            return self.rng.integers(0, action.sizes[0], envs).astype(action.dtype)
        return self.rng.uniform(action.low, action.high, (envs, *action.shape)).astype(action.dtype)

    def _actions(self, observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        tensor = self.pond.send({"observation": observation})["observation"]
        if isinstance(self.learner, SAC):
            action = self.learner.act(tensor)
        else:
            with torch.no_grad():
                action = epsilon_greedy(self.learner.network(tensor), self.epsilon.value, self.generator)
        return action.cpu().numpy().astype(self.spec.action.dtype)

    # Learning

    def update(self, reward_network: RewardNetwork) -> dict[str, Any]:
        """Take one gradient step, on predicted rewards or, for comparison, on those of the environment."""
        agent = self.recipe.agent
        batch = self.pond.sample(agent.batch_size, self.rng, gamma=agent.gamma, columns=())
        reward = None
        if agent.learn_from == "predicted":
            with torch.no_grad():
                steps = env_step_batch(batch.observation, batch.action, batch.next_observation, self.inputs)
                reward = reward_network.reward(steps)
        self.epsilon.advance(1)
        metrics = self.learner.update(batch, reward)
        self._newest = [*self._newest[-1:], (batch, metrics)]
        return metrics

    def diagnose(self) -> Learning:
        """Describe the newest update, which gave a number that is not finite. On a device it may have been an earlier one."""
        newest, updates = self._newest, self.learner.updates
        names = ("observation", "next_observation", "action", "reward", "discount")
        return Learning(
            "agent",
            self.recipe.agent.learning_rate,
            f"update {updates:,} of the agent"
            if self.device.type == "cpu"
            else f"the agent's updates up to {updates:,}",
            as_numbers(newest[-1][1]) if newest else {},
            as_numbers(newest[-2][1]) if len(newest) > 1 else {},
            f"update {updates - 1:,}",
            {name: getattr(newest[-1][0], name) for name in names} if newest else {},
        )

    @property
    def player(self) -> SACActor | QNetwork:
        """The network that selects actions."""
        return self.learner.actor if isinstance(self.learner, SAC) else self.learner.network

    def test(self) -> Evaluation:
        """Play test rollouts, always from the same seed."""
        policy: Any = self.player
        episodes = self.recipe.agent.test_episodes
        with evaluation_vector(self.recipe.env, self.recipe.vector, episodes) as vector:
            return evaluate(
                policy,
                vector,
                episodes=episodes,
                seed=self.recipe.eval.seed,
                device=self.device,
                deterministic=self.recipe.eval.deterministic is not False,
            )

    # State

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
