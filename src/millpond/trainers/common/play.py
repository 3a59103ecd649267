"""A trained policy, loaded from its run: to act, to evaluate, to render."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millpond.envs.env_batch import EnvBatch
from millpond.envs.families import require_extra
from millpond.envs.render import render_rgb, write_gif
from millpond.formatting import plural
from millpond.kinds import KINDS
from millpond.planner.estimate import require_device
from millpond.policies.parts import join_parts, torch_dtype
from millpond.store import Checkpoints, NothingToPlayError, RunError, load_weights
from millpond.trainers.common.envs import evaluation_vector, make_spec
from millpond.trainers.common.evaluate import Evaluation, evaluate
from millpond.trainers.common.session import open_run


class LoadedPolicy:
    """The policy of a run. `act` takes a batch of observations and the state that the last call returned."""

    def __init__(self, name: str, *, best: bool = False, run_dir: str = "runs", device: str = "cpu") -> None:
        require_device(device)
        loaded, run = open_run(name, run_dir)
        self.recipe = loaded.recipe
        if not self.recipe.acts:
            raise NothingToPlayError(
                f"run {run.name!r} learned a reward from recorded episodes and has no agent to play "
                f"(reward.reward_only=true); to get its reward of every step: millpond reward score {run.name} EPISODES"
            )
        checkpoints = Checkpoints(run.checkpoints_path)
        checkpoint = checkpoints.best() if best else checkpoints.find().checkpoint
        if checkpoint is None:
            raise RunError(
                f"run {run.name!r} has no {'best' if best else 'usable'} checkpoint in {run.checkpoints_path}"
            )
        self.updates = checkpoint.updates  # of everything that the run trains
        self.spec = make_spec(self.recipe.env, stacked=True)
        self.device = torch.device(device)
        player = KINDS[self.recipe.kind].player.load()(self.recipe, self.spec, checkpoint)
        which = "best checkpoint" if best else "newest checkpoint"
        played = player.description or f"after {plural(checkpoint.updates, 'update')}"
        self.description = f"{which}, {played}"
        self.greedy = player.greedy
        self.policy: Any = player.network.to(self.device)
        load_weights({player.weights: self.policy}, checkpoint.weights, f"run {run.name!r}")
        self.policy.eval()

    def act(
        self, observation: Any, state: Tensor | None = None, *, action_mask: Any = None, deterministic: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return actions [B, ...] for observations [B, ...], and the state to pass to the next call.

        Observations have the format of the environment (`spec.observation`), or are a mapping of their parts, name ->
        [B, ...]. `action_mask` [B, choices] is true for allowed actions, in environments that have masks.
        """
        tensor = self._as_tensor(observation).to(self.device)
        mask = None if action_mask is None else torch.as_tensor(action_mask, dtype=torch.bool, device=self.device)
        if state is None:
            state = self.policy.initial_state(len(tensor), self.device)
        with torch.inference_mode():
            chosen = self.policy.act(tensor, state, action_mask=mask, deterministic=deterministic)
        action_spec = self.spec.action
        if action_spec.kind != "continuous":
            return chosen.action, chosen.state
        low, high = (torch.tensor(bound, device=self.device) for bound in (action_spec.low, action_spec.high))
        return chosen.action.clamp(low, high), chosen.state

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
            )
        return tensor.to(dtype)


def evaluate_run(
    name: str,
    *,
    episodes: int,
    seed: int | None = None,
    best: bool = False,
    render: Path | None = None,
    max_frames: int | None = None,
) -> tuple[Evaluation, LoadedPolicy]:
    """Play episodes with a run's policy, and return the policy too. `render`: GIF file for the first episode."""
    if render is not None and render.suffix.lower() != ".gif":
        raise RunError(
            f"--render writes GIF files, so {str(render)!r} must end in .gif; try {str(render.with_suffix('.gif'))!r}"
        )
    if render is not None and not render.parent.is_dir():
        raise RunError(f"there is no folder {str(render.parent)!r} for the picture {render.name}; create it first")
    loaded = LoadedPolicy(name, best=best)
    require_extra(loaded.recipe.env.id)
    env_batches: list[EnvBatch] | None = None if render is None else []
    frames: list[Any] = []

    def draw() -> None:
        if env_batches and (max_frames is None or len(frames) < max_frames):
            frames.append(render_rgb(env_batches[-1], 0))

    with evaluation_vector(loaded.recipe.env, loaded.recipe.vector, episodes, env_batches=env_batches) as vector:
        evaluation = evaluate(
            loaded.policy,
            vector,
            episodes=episodes,
            seed=loaded.recipe.eval.seed if seed is None else seed,
            device=loaded.device,
            deterministic=loaded.greedy,
            before_step=draw if render is not None else None,
        )
    if render is not None:
        write_gif(frames[: evaluation.lengths[0]], render)
    return evaluation, loaded
