"""Play a trained policy: evaluate whole episodes on seeds that training does not use, act, render."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.envs.env_batch import EnvBatch
from millpond.envs.families import require_extra
from millpond.envs.render import render_rgb, write_gif
from millpond.errors import MillpondError
from millpond.formatting import plural
from millpond.kinds import KINDS
from millpond.planner.estimate import require_device
from millpond.policies.parts import join_parts, torch_dtype
from millpond.rollout.collector import PlayablePolicy, put_actions
from millpond.store import NothingToPlayError, RunError, load_weights
from millpond.trainers.common.envs import evaluation_vector, make_spec
from millpond.trainers.common.session import open_run
from millpond.trust import require_trust
from millpond.vector import FiniteCheck, Vector

RESAMPLES = 1_000
WARN_STEPS, MAX_STEPS = 10_000, 200_000  # length of an episode that gives a warning, and that is an error


class EndlessEpisodeError(MillpondError):
    """An episode of an environment does not end."""


@dataclass(frozen=True)
class Evaluation:
    """Results of episodes, in the order of their seeds."""

    returns: tuple[tuple[float, ...], ...]  # [episode][agent]
    lengths: tuple[int, ...]
    infos: tuple[dict[str, float], ...]
    named_agents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # see `EnvSpec.named_agents`

    @property
    def episode_returns(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Mean return of the agents of each episode."""
        return np.array([np.mean(agents) for agents in self.returns])

    @property
    def mean(self) -> float:
        return float(self.episode_returns.mean())

    @property
    def agent_returns(self) -> dict[str, float]:
        """Mean return of each agent by name; empty if the environment does not name its agents."""
        means = np.mean(self.returns, axis=0)
        return {name: float(means[list(agents)].mean()) for name, agents in self.named_agents.items()}

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the bootstrap interval of the mean; its generator is fixed, so that it is reproducible."""
        rng = np.random.default_rng(0)
        picks = rng.integers(0, len(self.returns), size=(RESAMPLES, len(self.returns)))
        means = self.episode_returns[picks].mean(axis=1)
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def metrics(self) -> dict[str, float]:
        """Return the results as metrics of a record."""
        low, high = self.interval()
        names = {name for info in self.infos for name in info}
        return {
            "eval/episode_return": self.mean,
            "eval/episode_return_low": low,
            "eval/episode_return_high": high,
            **{f"eval/{name}/episode_return": mean for name, mean in self.agent_returns.items()},
            "eval/episode_length": float(np.mean(self.lengths)),
            **{
                f"eval/env/{name}": float(np.mean([i[name] for i in self.infos if name in i])) for name in sorted(names)
            },
        }

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval()
        return {
            "episodes": len(self.lengths),
            "mean": self.mean,
            "interval_95": [low, high],
            "agents": self.agent_returns,
            "returns": [list(agents) for agents in self.returns],
            "lengths": list(self.lengths),
            "infos": list(self.infos),
        }


def evaluate(
    policy: PlayablePolicy,
    vector: Vector,
    *,
    episodes: int,
    seed: int,
    device: torch.device,
    deterministic: bool = False,
    before_step: Callable[[], None] | None = None,
    max_steps: int = MAX_STEPS,
) -> Evaluation:
    """Play the first episode of each env of a vector with at least `episodes` envs, from new seeds.

    Only first episodes count: taking the episodes that end first would favour short ones. `before_step()` is called
    before every step, for rendering: after the last step of an episode, its env already shows the next episode.
    Raises `EndlessEpisodeError` if an episode is longer than `max_steps`.
    """
    agents = vector.spec.num_agents
    vector.reset(seed)
    state = policy.initial_state(vector.num_envs * agents, device)
    state = state.view(vector.num_envs, agents, *state.shape[1:])
    generator = torch.Generator(device).manual_seed(seed)
    finite = FiniteCheck(vector, "the evaluation")
    finished: dict[int, tuple[tuple[float, ...], int, dict[str, float]]] = {}
    expected = set(range(episodes))
    with torch.inference_mode():
        for steps in itertools.count():
            if not expected - finished.keys():
                break
            if steps == WARN_STEPS:
                warnings.warn(
                    f"evaluation: episodes are longer than {steps:,} steps; env.max_steps=N ends them", stacklevel=2
                )
            if steps == max_steps:
                raise EndlessEpisodeError(
                    f"evaluation: an episode is longer than {steps:,} steps, so it may never end; set env.max_steps, "
                    "such as env.max_steps=1000"
                )
            if before_step is not None:
                before_step()
            for _ in range(len(vector)):
                batch = vector.recv()
                finite.current(batch)
                finite.current_rewards(batch)
                finite.raise_found(batch.episodes)
                for episode in batch.episodes:
                    finished.setdefault(episode.env, (episode.returns, episode.length, episode.info))
                group_state = state[batch.first : batch.last]
                group_state[torch.from_numpy(batch.terminated | batch.truncated).to(device)] = 0.0
                mask = (
                    torch.from_numpy(batch.action_mask).to(device).flatten(0, 1)
                    if batch.action_mask.shape[-1]
                    else None
                )
                chosen = policy.act(
                    torch.from_numpy(np.ascontiguousarray(batch.observation)).to(device).flatten(0, 1),
                    group_state.flatten(0, 1),
                    action_mask=mask,
                    generator=generator,
                    deterministic=deterministic,
                )
                group_state.copy_(chosen.state.view(group_state.shape))
                action = chosen.action.cpu().numpy()
                put_actions(vector.spec.action, action.reshape(*batch.reward.shape, *action.shape[1:]), batch.action)
                vector.send()
    ordered = [finished[env] for env in range(episodes)]
    return Evaluation(
        tuple(returns for returns, _, _ in ordered),
        tuple(length for _, length, _ in ordered),
        tuple(info for _, _, info in ordered),
        vector.spec.named_agents,
    )


class LoadedPolicy:
    """The policy of a run. `act` takes a batch of observations and the state that the last call returned.

    `trust` is for the code that the run names: see `millpond.trust.require_trust`.
    """

    def __init__(
        self,
        name: str,
        *,
        best: bool = False,
        run_dir: str = "runs",
        device: str = "cpu",
        trust: bool | None = None,
    ) -> None:
        require_device(device)
        loaded, run = open_run(name, run_dir)
        self.recipe = loaded.recipe
        if not self.recipe.acts:
            raise NothingToPlayError(
                f"run {run.name!r} learned a reward from recorded episodes and has no agent to play "
                f"(reward.reward_only=true); to get its reward of every step: millpond reward score {run.name} EPISODES"
            )
        require_trust(loaded.code, trust, run=run.folder)
        checkpoint = run.checkpoint(best=best)
        self.updates = checkpoint.updates  # of everything that the run trains
        self.spec = make_spec(self.recipe.env, stacked=True)
        self.device = torch.device(device)
        player = KINDS[self.recipe.kind].player.load()(self.recipe, self.spec, checkpoint)
        which = "best checkpoint" if best else "newest checkpoint"
        played = player.description or f"after {plural(checkpoint.updates, 'update')}"
        self.description = f"{which}, {played}"
        self.greedy = player.greedy
        self.policy: Any = player.network.to(self.device)
        source = f"run {run.name!r}, checkpoint {checkpoint.path}"
        load_weights({player.weights: self.policy}, checkpoint.weights, source)
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
    trust: bool | None = None,
) -> tuple[Evaluation, LoadedPolicy]:
    """Play episodes with a run's policy, and return the policy too. `render`: GIF file for the first episode."""
    if render is not None and render.suffix.lower() != ".gif":
        raise RunError(
            f"--render writes GIF files, so {str(render)!r} must end in .gif; try {str(render.with_suffix('.gif'))!r}"
        )
    if render is not None and not render.parent.is_dir():
        raise RunError(f"there is no folder {str(render.parent)!r} for the picture {render.name}; create it first")
    loaded = LoadedPolicy(name, best=best, trust=trust)
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
