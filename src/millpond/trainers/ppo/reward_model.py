"""Rewards that a network predicts in place of the env's, for envs that pay only at the end of an episode.

`ppo.reward_model: online`  the network learns beside the policy: the returns of finished episodes are decomposed (L-RD)
`ppo.reward_model: RUN`     the network of a finished reward run, unchanged

    collect rows -> store finished episodes -> updates of the network -> rows["learned_reward"] -> advantages

# N steps   L steps of an episode   B episodes per batch   K sampled steps per episode
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.config import PPORecipe
from millpond.config.reward_model import ONLINE
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.rewards import objectives
from millpond.rewards.batches import StepSampler
from millpond.rewards.network import RewardInputs, RewardNetwork, StepBatch, reset_parameters
from millpond.rewards.own_episodes import EpisodeStore, env_inputs, env_step_batch
from millpond.rollout.following import Filled, FollowingObservations, write_by_agent
from millpond.rollout.rows import Rows
from millpond.store import Run, RunError
from millpond.trainers.reward.setup import make_network, open_reward_run

Array = npt.NDArray[Any]
BLOCK = 65_536  # steps whose rewards are predicted at once
FILE = "reward_model.json"  # in the folder of a run: the reward run whose network it uses, and how that is built
WEIGHTS = "reward_model.safetensors"


class RewardModel:
    """A reward network that predicts the rewards of rows; the base of both kinds."""

    def __init__(self, network: RewardNetwork, spec: EnvSpec, rows: Rows, device: torch.device) -> None:
        self.network, self.spec, self.rows, self.device = network.to(device), spec, rows, device
        self.next_observations = FollowingObservations()

    def after_collection(self) -> dict[str, float]:
        """Predict the rewards of the rows that were just collected; return metrics."""
        filled = self.next_observations.transitions(self.rows)
        return self._predict(filled)

    def _predict(self, filled: list[Filled]) -> dict[str, float]:
        total, count = 0.0, 0
        for part in filled:
            predicted = self._rewards(part)
            write_by_agent(self.rows, "learned_reward", part, predicted)
            alive = part.steps["alive"]
            total, count = total + float(predicted[alive].sum(dtype=np.float64)), count + int(alive.sum())
        return {"learned_reward_per_agent_step": total / max(1, count)}

    def _rewards(self, part: Filled) -> Array:
        """Return rewards [n * A, T]."""
        shape = part.steps["alive"].shape
        arrays = (part.steps["observation"], part.steps["action"], part.next_observation)
        flat = [array.reshape(-1, *array.shape[2:]) for array in arrays]
        reward = np.empty(shape[0] * shape[1], np.float32)
        with torch.no_grad():
            for first in range(0, len(reward), BLOCK):
                some = slice(first, first + BLOCK)
                batch = self._batch(*(array[some] for array in flat))
                reward[some] = self.network.reward(batch).cpu().numpy()
        return reward.reshape(shape)

    def _batch(self, observation: Array, action: Array, next_observation: Array) -> StepBatch:
        """Steps [N, ...] as inputs of the network. Actions are stored as drawn; the env got them clipped."""
        if self.spec.action.kind == "continuous":
            action = np.clip(action, self.spec.action.low, self.spec.action.high).astype(np.float32)
        now, acted, after = (
            torch.from_numpy(array).to(self.device) for array in (observation, action, next_observation)
        )
        return env_step_batch(now, acted, after, self.network.inputs)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the network does not change."""


class OnlineRewardModel(RewardModel):
    """Learns from the returns of the run's own episodes, of each agent its own."""

    def __init__(self, recipe: PPORecipe, spec: EnvSpec, rows: Rows, device: torch.device) -> None:
        settings = recipe.reward_model
        seeds = np.random.SeedSequence((recipe.seed, 0x72)).generate_state(2)
        network = RewardNetwork(
            settings.objective,
            env_inputs(spec),
            settings.hidden_size,
            normalize=settings.normalize,
            clip=settings.normalize_clip,
        )
        reset_parameters(network, torch.Generator().manual_seed(int(seeds[0])))
        super().__init__(network, spec, rows, device)
        self.settings = settings
        self.rng = np.random.default_rng(int(seeds[1]))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.learning_rate)
        self.store = EpisodeStore(settings.records, spec.observation, spec.action)
        self._open: dict[int, list[dict[str, Array]]] = {}  # by lane: steps of the episode that goes on
        self.learns = False  # from the first iteration with enough episodes on

    def after_collection(self) -> dict[str, float]:
        """Store finished episodes, learn from the store, and predict the rewards of the new rows; return metrics."""
        filled = self.next_observations.transitions(self.rows)
        for part in filled:
            self._keep(part)
        metrics = {"reward_model/episodes": float(len(self.store))}
        if not self.learns and len(self.store) >= self.settings.min_episodes:
            self.learns = True
            _, steps, total = self.store.table()
            self.network.set_scale(total / steps)
        if not self.learns:
            for part in filled:
                write_by_agent(self.rows, "learned_reward", part, part.steps["reward"])
            return metrics
        return metrics | {"R_loss": self._learn()} | self._predict(filled)

    # Episodes

    def _keep(self, part: Filled) -> None:
        """Add what was collected to the episodes that go on, and finished ones to the store."""
        if self.network.normalizer is not None:
            seen = part.steps["observation"][part.steps["alive"]]
            for first in range(0, len(seen), BLOCK):
                block = torch.from_numpy(seen[first : first + BLOCK])
                self.network.normalizer.update(block.to(self.device).flatten(1).float())
        for index, lane in enumerate(part.lanes.tolist()):
            begin = 0
            for end in np.flatnonzero(part.steps["ended"][index]).tolist():
                self._append(lane, part, index, slice(begin, end + 1))
                self._finish(lane, part.next_observation[index, end])
                begin = end + 1
            self._append(lane, part, index, slice(begin, None))

    def _append(self, lane: int, part: Filled, index: int, time: slice) -> None:
        chunk = {name: part.steps[name][index, time].copy() for name in ("observation", "action", "reward", "alive")}
        if len(chunk["reward"]):
            self._open.setdefault(lane, []).append(chunk)

    def _finish(self, lane: int, final_observation: Array) -> None:
        """Store an episode. One whose env was restarted, or whose agent was not there at its end, is dropped."""
        chunks = self._open.pop(lane)
        episode = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        alive = episode.pop("alive")
        if not alive[-1]:
            return
        absent = np.flatnonzero(~alive)
        begin = int(absent[-1]) + 1 if len(absent) else 0
        observation = np.concatenate([episode["observation"][begin:], final_observation[None]])
        self.store.add(observation, episode["action"][begin:], float(episode["reward"][begin:].sum(dtype=np.float64)))

    # Learning

    def _learn(self) -> float:
        """Take the updates of an iteration; return the mean loss in squared units of the rewards."""
        settings, network = self.settings, self.network
        first, steps, total = self.store.table()
        sampler = StepSampler(steps, settings.episodes_per_batch, settings.steps_per_episode)
        scale, shift = float(network.scale), float(network.shift)
        target = ((total / steps - shift) / scale).astype(np.float32)
        losses = []
        for _ in range(settings.updates):
            episodes, at = sampler(self.rng)
            batch = self._batch(*self.store.gather(first[episodes], at))
            output = network.raw(network.features(batch.observation, batch.action, batch.next_observation))
            valid = None if sampler.always_filled else self._tensor(sampler.valid_steps(episodes))
            loss = self._loss(output.view(at.shape), self._tensor(target[episodes]), steps[episodes], valid)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            losses.append(loss.detach())
        return float(torch.stack(losses).mean()) * scale**2

    def _loss(self, output: Tensor, target: Tensor, steps: Array, valid: Tensor | None) -> Tensor:
        if self.settings.objective == "rrd":
            return objectives.rrd_loss(output, target, valid)
        return objectives.lrd_loss(output, target, self._tensor(steps.astype(np.float32)), valid)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the weights, which checkpoints keep beside the policy's."""
        chunks = {
            str(lane): [{name: torch.from_numpy(array) for name, array in chunk.items()} for chunk in lane_chunks]
            for lane, lane_chunks in self._open.items()
        }
        return {
            "optimizer": self.optimizer.state_dict(),
            "store": self.store.state_dict(),
            "open": chunks,
            "rng": self.rng.bit_generator.state,
            "learns": self.learns,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.store.load_state_dict(state["store"])
        self.rng.bit_generator.state = state["rng"]
        self.learns = bool(state["learns"])
        self._open = {}
        if self.spec.savable:  # else the episodes that went on have restarted
            for lane, chunks in state["open"].items():
                self._open[int(lane)] = [{name: array.numpy() for name, array in chunk.items()} for chunk in chunks]


def make_reward_model(
    recipe: PPORecipe, spec: EnvSpec, rows: Rows, run: Run, device: torch.device
) -> RewardModel | None:
    """Build what `ppo.reward_model` names; None if the env's rewards count."""
    name = recipe.ppo.reward_model
    if name is None:
        return None
    if name == ONLINE:
        return OnlineRewardModel(recipe, spec, rows, device)
    if not run.resumed:
        _copy_network(name, spec, run, recipe.run_dir)
    return RewardModel(_copied_network(run), spec, rows, device)


def _copy_network(name: str, spec: EnvSpec, run: Run, run_dir: str) -> None:
    """Copy the network of a reward run into the folder of this one, which then needs it no more.

    Nothing that the run names is imported or executed: its config is read as text, its weights as safetensors.
    """
    from safetensors.torch import save_file

    try:
        recipe, other = open_reward_run(name, run_dir)
    except RunError as error:
        raise RunError(f"ppo.reward_model={name}: {error}") from None
    checkpoint = other.checkpoint()
    inputs = env_inputs(spec)
    network = make_network(recipe, inputs, seed=0)
    weights = checkpoint.weights.get("reward", {})
    try:
        network.load_state_dict(weights)
    except RuntimeError:
        raise MillpondError(
            f"ppo.reward_model={name}: the network of run {other.name!r}, which was trained on {recipe.learns_from}, does not "
            f"take the {inputs.numbers:,} numbers of an observation and the {inputs.action:,} of an action of {spec.id}; "
            f"train one on episodes of this env, or set ppo.reward_model={ONLINE}"
        ) from None
    reward = recipe.reward
    built = {
        "run": str(other.folder.resolve()),
        "updates": checkpoint.updates,
        "objective": reward.objective,
        "numbers": inputs.numbers,
        "action": inputs.action,
        "hidden_size": reward.hidden_size,
        "normalize": reward.normalize,
        "clip": reward.normalize_clip,
    }
    save_file({key: tensor.contiguous() for key, tensor in network.state_dict().items()}, run.folder / WEIGHTS)
    (run.folder / FILE).write_text(json.dumps(built, indent=2), encoding="utf-8")


def _copied_network(run: Run) -> RewardNetwork:
    from safetensors.torch import load_file

    built = json.loads((run.folder / FILE).read_text(encoding="utf-8"))
    network = RewardNetwork(
        built["objective"],
        RewardInputs(built["numbers"], built["action"]),
        built["hidden_size"],
        normalize=built["normalize"],
        clip=built["clip"],
    )
    network.load_state_dict(load_file(run.folder / WEIGHTS))
    return network.requires_grad_(False).eval()
