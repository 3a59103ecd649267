"""Play a trained policy: evaluate whole episodes on seeds that training does not use, act, render."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millpond.config.load import parse_override
from millpond.config.recipe import EnvConfig
from millpond.devices import make_generator
from millpond.envs.env_batch import EnvBatch
from millpond.envs.families import require_extra
from millpond.envs.objects import binding, is_object
from millpond.envs.render import render_rgb, write_gif
from millpond.envs.spec import ObservationSpec
from millpond.errors import MillpondError
from millpond.formatting import plural
from millpond.learners import QNetwork
from millpond.rollout.collector import PlayablePolicy, put_actions
from millpond.store import Run, RunError
from millpond.trainers.common.envs import evaluation_vector, make_spec
from millpond.trainers.common.export.step import describe_action
from millpond.trainers.common.objects import Passed, objects_of, settings_of
from millpond.trainers.common.policy import LoadedPolicy, load_policy
from millpond.trainers.common.session import load_to_run, open_run
from millpond.vector import FiniteCheck, Vector

RESAMPLES = 1_000
WARN_STEPS, MAX_STEPS = 10_000, 200_000  # length of an episode that gives a warning, and that is an error


class EndlessEpisodeError(MillpondError):
    """An episode of an environment does not end."""


@dataclass(frozen=True)
class Evaluation:
    """Results of episodes, in the order of their seeds."""

    returns_by_agent: tuple[tuple[float, ...], ...]  # [episode][agent]
    lengths: tuple[int, ...]  # env steps
    infos: tuple[dict[str, float], ...]
    named_agents: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # see `EnvSpec.named_agents`
    deterministic: bool = False  # the most likely actions were taken, not sampled ones

    @cached_property
    def returns(self) -> tuple[float, ...]:
        """Return of each episode: the mean of its agents."""
        return tuple(float(np.mean(agents)) for agents in self.returns_by_agent)

    @property
    def mean(self) -> float:
        """Mean return of the episodes."""
        return float(np.mean(self.returns))

    @property
    def low(self) -> float:
        """Lower end of the 95% interval of the mean."""
        return self.interval()[0]

    @property
    def high(self) -> float:
        """Upper end of the 95% interval of the mean."""
        return self.interval()[1]

    @property
    def agent_returns(self) -> dict[str, float]:
        """Mean return of each agent by name; empty if the environment does not name its agents."""
        means = np.mean(self.returns_by_agent, axis=0)
        return {name: float(means[list(agents)].mean()) for name, agents in self.named_agents.items()}

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the bootstrap interval of the mean; its generator is fixed, so that it is reproducible."""
        rng = np.random.default_rng(0)
        picks = rng.integers(0, len(self.returns), size=(RESAMPLES, len(self.returns)))
        means = np.array(self.returns)[picks].mean(axis=1)
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    @property
    def actions(self) -> str:
        """How actions were chosen, in words."""
        return "most likely actions (deterministic)" if self.deterministic else "sampled actions"

    def describe(self) -> str:
        """Return the result in one line."""
        low, high = self.interval()
        played = f"{plural(len(self.lengths), 'episode')}, {self.actions}"
        return f"{played}: return {self.mean:.4g}, 95% interval {low:.4g} to {high:.4g}"

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
            "deterministic": self.deterministic,
            "agents": self.agent_returns,
            "returns": [list(agents) for agents in self.returns_by_agent],
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
    generator = make_generator(device, seed)
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
        deterministic,
    )


def evaluate_run(
    run: Run | LoadedPolicy | str | Path,
    *,
    episodes: int,
    seed: int | None = None,
    best: bool = False,
    render: Path | None = None,
    max_frames: int | None = None,
    trust: bool | None = None,
    env: Passed = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    deterministic: bool | None = None,
) -> tuple[Evaluation, LoadedPolicy]:
    """Play episodes with a run's policy, or with one that is loaded, and return the policy too.

    `render`         GIF file for the first episode
    `env`            another env to play in; also the object that the run was trained with, if it cannot be imported
    `overrides`      of the section `env`, such as env.max_steps=100
    `deterministic`  None: as the recipe acts (`eval.deterministic`)
    """
    _require_gif(render)
    if not isinstance(episodes, int | np.integer) or episodes < 1:
        raise RunError(f"episodes={episodes!r} must be a whole number, at least 1")
    if isinstance(run, LoadedPolicy):
        policy = run
    else:
        again = env if env is not None and _needs_object(run) else None
        env = None if again is not None else env
        policy = load_policy(run, best=best, trust=trust, env=again)
    greedy = policy.acts_greedily if deterministic is None else deterministic
    if not greedy and isinstance(policy.network, QNetwork):
        raise RunError("deterministic=False: Q-networks have no probabilities to sample actions from; leave it out")
    with playing_env(policy, env, overrides) as chosen:
        evaluation, frames = _play(policy, chosen, episodes, seed, greedy, render is not None, max_frames)
    if render is not None:
        write_gif(frames[: evaluation.lengths[0]], render)
    return evaluation, policy


def _require_gif(render: Path | None) -> None:
    if render is not None and render.suffix.lower() != ".gif":
        raise RunError(
            f"--render writes GIF files, so {str(render)!r} must end in .gif; try {str(render.with_suffix('.gif'))!r}"
        )
    if render is not None and not render.parent.is_dir():
        raise RunError(f"there is no folder {str(render.parent)!r} for the picture {render.name}; create it first")


def _needs_object(run: Run | str | Path) -> bool:
    """True if a run was trained with an env that cannot be imported, and that this process has not kept."""
    loaded, opened = open_run(str(run.folder) if isinstance(run, Run) else str(run))
    return is_object(loaded.recipe.env.id) and loaded.recipe.env.id not in objects_of(opened.folder)


@contextmanager
def playing_env(policy: LoadedPolicy, env: Passed, overrides: Mapping[str, Any] | Sequence[str]) -> Iterator[EnvConfig]:
    """Yield the env that a policy plays in: that of its recipe, or another one, which must show and take the same."""
    changes = dict(overrides if isinstance(overrides, Mapping) else map(parse_override, overrides))
    wrong = [key for key in changes if key.partition(".")[0] != "env"]
    if wrong:
        raise RunError(
            f"{wrong[0]} cannot change in an evaluation; only settings of the env can, such as env.max_steps=100"
        )
    changes, passed = settings_of(env, None, changes)
    changes.pop("vector.backend", None)  # evaluations are inline anyway
    with binding({**policy.objects, **passed}):
        if not changes:
            yield policy.recipe.env
            return
        changed = load_to_run(policy.recipe, changes).recipe.env  # its own code was trusted when it was loaded
        require_extra(changed.id)
        spec = make_spec(changed, stacked=True)
        seen, trained = spec.observation, policy.spec.observation
        if seen != trained:
            raise RunError(
                f"env {changed.id} has observations {_parts(seen)}; the policy was trained with {_parts(trained)}"
            )
        if spec.action != policy.spec.action:
            takes, trained_to = describe_action(spec.action), describe_action(policy.spec.action)
            raise RunError(f"env {changed.id} takes actions of {takes}; the policy was trained to give {trained_to}")
        yield changed


def _parts(spec: ObservationSpec) -> str:
    kinds = [f"{part.name} ({part.kind}, {part.dtype} {part.shape})" for part in spec.parts]
    highest = [f"{part.name} up to {part.high:g}" for part in spec.parts if part.high is not None]
    return ", ".join([*kinds, *highest])


def _play(
    policy: LoadedPolicy,
    env: EnvConfig,
    episodes: int,
    seed: int | None,
    deterministic: bool,
    render: bool,
    max_frames: int | None,
) -> tuple[Evaluation, list[Any]]:
    """Play episodes; return the frames of the first one too, if they are rendered."""
    require_extra(env.id)
    env_batches: list[EnvBatch] | None = [] if render else None
    frames: list[Any] = []

    def draw() -> None:
        if env_batches and (max_frames is None or len(frames) < max_frames):
            frames.append(render_rgb(env_batches[-1], 0))

    with evaluation_vector(env, policy.recipe.vector, episodes, env_batches=env_batches) as vector:
        evaluation = evaluate(
            policy.network,
            vector,
            episodes=episodes,
            seed=policy.recipe.eval.seed if seed is None else seed,
            device=policy.device,
            deterministic=deterministic,
            before_step=draw if render else None,
        )
    return evaluation, frames
