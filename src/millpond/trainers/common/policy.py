"""A trained policy to act with: loaded from a run, or the one that a run is training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.config.env_options import env_options
from millpond.config.recipe import Recipe
from millpond.devices import make_generator, to_device
from millpond.envs.format import EnvFormat, format_of
from millpond.envs.objects import binding
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural
from millpond.kinds import KINDS
from millpond.planner.estimate import require_device
from millpond.policies.parts import join_parts, torch_dtype
from millpond.rollout.collector import put_actions
from millpond.store import NothingToPlayError, Run, RunError, load_weights
from millpond.trainers.common.envs import make_spec
from millpond.trainers.common.objects import Objects, Passed, objects_of, objects_to_bind
from millpond.trainers.common.session import open_run
from millpond.trust import require_trust

Array = npt.NDArray[Any]


class LoadedPolicy:
    """A policy with the environment's own observations and actions: `action, state = policy.predict(observation, state)`.

    `network` is the nn.Module, `recipe` the run's config, `spec` describes observations and actions as arrays. `updates` is
    the number of updates of the run; `acts_greedily` says how the recipe acts in evaluations.
    """

    def __init__(
        self,
        network: Any,
        recipe: Recipe,
        spec: EnvSpec,
        *,
        acts_greedily: bool,
        device: torch.device,
        updates: int = 0,
        description: str = "",
        objects: Objects | None = None,
    ) -> None:
        self.network, self.recipe, self.spec = network, recipe, spec
        self.acts_greedily, self.device = acts_greedily, device
        self.updates, self.description = updates, description
        self.objects: Objects = objects or {}
        self._generator = make_generator(device, recipe.seed)

    def __repr__(self) -> str:
        return f"<LoadedPolicy of {self.spec.id}: {self.description or f'{self.updates:,} updates'}>"

    @cached_property
    def format(self) -> EnvFormat:
        """The environment's own format of observations and actions; one env is made to find it."""
        with binding(self.objects):
            return format_of(*env_options(self.recipe.env), self.spec)

    def predict(
        self,
        observation: Any,
        state: Array | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
    ) -> tuple[Any, Array | None]:
        """Return the action for an observation, and the state to pass to the next call, as Stable-Baselines3 does.

        The observation is what the env returns: an array, a number, a dict, a tuple, or of a parallel env a dict by agent. The
        action is what the env takes. A batch, with one more axis in every array, gives a batch of actions.

        `state`          what the last call returned; None at first, and always if the policy has no memory
        `episode_start`  True where an episode starts, so that its state is reset; one per observation of a batch
        `deterministic`  take the most likely action; False samples it. Q-learners always take their best action
        `action_mask`    True for allowed actions, in environments that have masks, unless it is part of the observation
        """
        if self.format.agents and isinstance(observation, Mapping) and set(observation) <= set(self.format.agents):
            return self._predict_for_agents(observation, state, episode_start, deterministic, action_mask)
        encoded = self.format.encode(observation)
        mask = encoded.mask if action_mask is None else action_mask
        action, after = self._choose(encoded.observation, state, episode_start, deterministic, mask)
        return self.format.decode(action, encoded.single), after

    def _predict_for_agents(
        self,
        observations: Mapping[Any, Any],
        state: Array | None,
        episode_start: Any,
        deterministic: bool,
        action_masks: Mapping[Any, Any] | None,
    ) -> tuple[dict[Any, Any], Array | None]:
        """Act for those agents of a parallel env that have an observation; the state has one row per possible agent."""
        agents = [agent for agent in self.format.agents if agent in observations]
        if not agents:
            return {}, state
        allowed = action_masks or {}
        encoded = [self.format.encode_agent(agent, observations[agent], allowed.get(agent)) for agent in agents]
        masks = [one.mask for one in encoded if one.mask is not None]
        mask = np.concatenate(masks) if len(masks) == len(agents) else None
        rows = [self.format.agents.index(agent) for agent in agents]
        everyone = self._state(state, len(self.format.agents), episode_start).numpy()
        seen = np.concatenate([one.observation for one in encoded])
        action, after = self._choose(seen, everyone[rows], None, deterministic, mask)
        if after is not None:
            everyone[rows] = after
        actions = {agent: self.format.decode_agent(agent, action[row : row + 1]) for row, agent in enumerate(agents)}
        return actions, None if after is None else everyone

    def _choose(
        self, observation: Array, state: Array | None, episode_start: Any, deterministic: bool, mask: Any
    ) -> tuple[Array, Array | None]:
        """observation [B, *spec.observation.shape] -> stored actions [B, *spec.action.shape], state [B, ...] or None"""
        if observation.dtype.kind == "f" and np.isnan(observation).any():
            raise RunError(
                f"an observation has NaN, from which {self.spec.id} was not trained to act: {observation!r:.200}"
            )
        before = self._state(state, len(observation), episode_start).to(self.device)
        with torch.inference_mode():
            chosen = self.network.act(
                torch.from_numpy(observation).to(self.device),
                before,
                action_mask=None if mask is None else self._mask(mask, len(observation)),
                generator=self._generator,
                deterministic=deterministic,
            )
        drawn, spec = chosen.action.cpu().numpy(), self.spec.action
        action = np.zeros((len(observation), *spec.shape), spec.dtype)
        put_actions(spec, drawn, action)
        return action, chosen.state.cpu().numpy() if chosen.state.numel() else None

    def _mask(self, mask: Any, batch: int) -> Tensor:
        """Return a mask [B, entries]; numbers of an action, which an env does not mask, are allowed."""
        flat, size = np.asarray(mask, np.bool_).reshape(batch, -1), self.spec.action.mask_size
        choices = sum(self.spec.action.sizes)
        if flat.shape[1] not in (choices, size):
            raise RunError(
                f"the action mask has {flat.shape[1]} entries per observation; {self.spec.id} has {choices}: one per choice"
            )
        whole = np.ones((batch, size), np.bool_)
        whole[:, : flat.shape[1]] = flat
        return torch.from_numpy(whole).to(self.device)

    def _state(self, state: Array | None, batch: int, episode_start: Any) -> Tensor:
        """Return the state before a step, with zeros where an episode starts."""
        initial: Tensor = self.network.initial_state(batch, "cpu")
        if state is None or not initial.numel():
            return initial
        before = torch.tensor(np.asarray(state))
        if before.shape != initial.shape:
            raise RunError(
                f"the state has shape {tuple(before.shape)}, and {plural(batch, 'observation')} need {tuple(initial.shape)}; "
                "pass the state that the last call for the same number of observations returned, or None to start"
            )
        if episode_start is not None:
            starts = np.broadcast_to(np.asarray(episode_start, np.bool_), (batch,))
            before[torch.from_numpy(starts.copy())] = 0.0
        return before

    def export(self, path: str | Path, format: str | None = None) -> Path:
        """Write one step of the policy to a file that runs without Millpond, and return its path: see docs/export.md.

        `format` is `onnx` (FILE.onnx, run by onnxruntime and compared with the policy first) or `torch` (FILE.pt2, read by
        torch.export.load); without it the file's ending decides. Observations, actions and states are named inputs and
        outputs in the environment's own format, and the file describes them.
        """
        from millpond.trainers.common.export import export_policy

        about = {"millpond": version("millpond"), "policy": self.description or type(self.network).__name__}
        own = self.format  # of agents with different spaces, arrays of the spec, which all of them fit into
        return export_policy(
            self.network, self.spec, path, format, observations=own.observations, actions=own.actions, about=about
        )

    def act(
        self, observation: Any, state: Tensor | None = None, *, action_mask: Any = None, deterministic: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return actions [B, ...] as tensors for observations [B, ...] in the format of the policy, and the next state.

        Observations are arrays of `spec.observation`, or a mapping of their parts, name -> [B, ...]. `action_mask`
        [B, choices] is true for allowed actions, in environments that have masks. `predict` takes those of the environment.
        """
        tensor = self._as_tensor(observation).to(self.device)
        mask = None if action_mask is None else torch.as_tensor(action_mask, dtype=torch.bool, device=self.device)
        if state is None:
            state = self.network.initial_state(len(tensor), self.device)
        with torch.inference_mode():
            chosen = self.network.act(
                tensor, state, action_mask=mask, generator=self._generator, deterministic=deterministic
            )
        action_spec = self.spec.action
        if not action_spec.low:
            return chosen.action, chosen.state
        action = chosen.action.clone()
        vector = action[:, len(action_spec.sizes) :]  # after the choices, if it is mixed
        low, high = (torch.tensor(bound, device=self.device) for bound in (action_spec.low, action_spec.high))
        vector.clamp_(low, high)
        return action, chosen.state

    def _as_tensor(self, observation: Any) -> Tensor:
        """Return observations [B, *spec.observation.shape] in the dtype of the spec."""
        spec = self.spec.observation
        if isinstance(observation, Mapping):
            return join_parts(spec, observation)
        tensor, dtype = torch.as_tensor(observation), torch_dtype(spec.dtype, "observation")
        same_kind = tensor.is_floating_point() == dtype.is_floating_point
        if tensor.shape[1:] != spec.shape or tensor.dim() == 0 or not same_kind:
            parts = ", ".join(f"{part.name} {part.dtype} {part.shape}" for part in spec.parts)
            raise RunError(
                f"act was called with observations of {tensor.dtype} {tuple(tensor.shape)}; {self.spec.id} has batches of "
                f"{spec.dtype} {('B', *spec.shape)}"
                + (f", or pass a mapping of the parts, each with a batch axis: {parts}" if len(spec.parts) > 1 else "")
                + ". `predict` takes what the environment returns, single or as a batch"
            )
        return tensor.to(dtype)


def load_policy(
    run: Run | str | Path,
    *,
    best: bool = False,
    run_dir: str = "runs",
    device: str = "cpu",
    env: Passed = None,
    policy: Passed = None,
    trust: bool | None = None,
) -> LoadedPolicy:
    """Load the policy of a run: its newest checkpoint, or its best.

    `env` and `policy` are the objects that it was trained with, if its config names any that cannot be imported. `trust` is
    for the code that the run names: see `millpond.trust.require_trust`.
    """
    require_device(device)
    loaded, opened = open_run(str(run.folder) if isinstance(run, Run) else str(run), run_dir)
    recipe = loaded.recipe
    if not recipe.acts:
        raise NothingToPlayError(
            f"run {opened.name!r} learned a reward from recorded episodes and has no agent to play "
            f"(reward.reward_only=true); to get its reward of every step: millpond reward score {opened.name} EPISODES"
        )
    objects = objects_to_bind(recipe, opened.name, objects_of(opened.folder), env, policy)
    require_trust(loaded.code, trust, run=opened.folder)
    checkpoint = opened.checkpoint(best=best)
    with binding(objects):
        spec = make_spec(recipe.env, stacked=True)
        player = KINDS[recipe.kind].player.load()(recipe, spec, checkpoint)
    network = to_device(player.network, torch.device(device))
    load_weights({player.weights: network}, checkpoint.weights, f"run {opened.name!r}, checkpoint {checkpoint.path}")
    network.eval()
    which = "best checkpoint" if best else "newest checkpoint"
    played = player.description or f"after {plural(checkpoint.updates, 'update')}"
    return LoadedPolicy(
        network,
        recipe,
        spec,
        acts_greedily=player.greedy if recipe.eval.deterministic is None else recipe.eval.deterministic,
        device=torch.device(device),
        updates=checkpoint.updates,
        description=f"{which}, {played}",
        objects=objects,
    )
