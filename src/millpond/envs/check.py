"""`millpond envs check ID`: play an env with random actions, report which rules it breaks and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from millpond.envs.adapters.gymnasium import GymnasiumEnvs
from millpond.envs.adapters.pettingzoo import PettingZooEnvs
from millpond.envs.env_batch import Buffers, EnvBatch, spawn_seeds
from millpond.envs.random_play import Trajectory, play, play_on
from millpond.envs.registry import describe, describe_error, make_env_batch
from millpond.envs.reward_wrappers import EpisodicEnvs, RewardEnvs
from millpond.envs.spaces import read_part
from millpond.envs.spec import TOKEN_PADDING, EnvSpec
from millpond.formatting import plural

STEPS = 300  # per play, unless a number is set
SECONDS = 10.0  # after which the first play of a slow env stops; the other plays then take as many steps
Status = Literal["ok", "warning", "error"]


class CheckProgress(Protocol):
    """Called with the rule that is being checked and the number of steps done."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


@dataclass(frozen=True)
class CheckResult:
    """One rule, its status and, if it is broken, what is wrong and how to fix it."""

    rule: str
    status: Status
    what: str
    fix: str = ""


@dataclass(frozen=True)
class _PlaySettings:
    """Seed, number of steps and progress callback of a check."""

    seed: int
    steps: int
    watch: CheckProgress

    def watching(self, rule: str) -> Callable[[int], None]:
        return lambda done: self.watch(rule, done, self.steps)


def check_env(
    env_id: str,
    options: Mapping[str, Any],
    *,
    num_envs: int = 3,
    steps: int | None = None,
    seed: int = 0,
    watch: CheckProgress = lambda what, done=0, total=None: None,
) -> list[CheckResult]:
    """Play an env with random actions and test every rule of the protocol; return one result per rule, errors first.

    The env is played several times, each time for `steps` steps; None is `STEPS`, or as many as a slow env takes in
    `SECONDS`. `watch(rule, done, total)` is called with the progress.
    """
    watch("making the envs")
    try:
        spec = describe(env_id, options)
        buffers = Buffers.allocate(spec, num_envs)
        env_batch = make_env_batch(env_id, num_envs, options, buffers)
    except Exception as error:
        return [
            CheckResult("can be made", "error", describe_error(error), "fix what the message names and check again")
        ]
    results = [CheckResult("can be made", "ok", f"{num_envs} envs of {plural(spec.num_agents, 'agent')}")]
    try:
        results += _check_batch(
            env_batch, spec, buffers, env_id, options, steps, _PlaySettings(seed, steps or STEPS, watch)
        )
    except Exception as error:
        fix = "run the env alone with random actions until it raises; the message says where"
        results.append(CheckResult("steps without raising", "error", describe_error(error), fix))
    finally:
        env_batch.close()
    return in_order(results)


def in_order(results: list[CheckResult]) -> list[CheckResult]:
    """Sort results: errors first, then warnings."""
    return sorted(results, key=lambda result: ("error", "warning", "ok").index(result.status))


def _check_batch(
    env_batch: EnvBatch,
    spec: EnvSpec,
    buffers: Buffers,
    env_id: str,
    options: Mapping[str, Any],
    steps: int | None,
    settings: _PlaySettings,
) -> Iterator[CheckResult]:
    seeds = spawn_seeds(settings.seed, env_batch.num_envs)
    yield _buffers(env_batch, spec, buffers)
    limit = SECONDS if steps is None else None
    trajectory = play(env_batch, seeds, settings.steps, seconds=limit, watch=settings.watching("steps"))
    if len(trajectory.reward) < settings.steps:
        what = f"each play stopped after {len(trajectory.reward)} steps, since {SECONDS:g} s had passed"
        yield CheckResult("steps fast enough for a whole check", "warning", what, "check with --steps N to play longer")
        settings = replace(settings, steps=len(trajectory.reward))
    yield from _raw_spaces(env_batch)
    yield _values("observations", trajectory, spec)
    yield _rewards(trajectory)
    yield _seeds_matter(env_batch, settings)
    yield from _endings(trajectory, spec, settings.steps)
    yield _episode_statistics(trajectory)
    rule = "repeats from the same seed"
    yield _compare(
        rule,
        play(env_batch, seeds, settings.steps, watch=settings.watching(rule)).differs_from(trajectory),
        "draw every random number from the generator that reset(seed=...) seeds (self.np_random), and keep no state "
        "from one episode to the next",
    )
    yield from _alone(trajectory, env_id, options, seeds, settings)
    if spec.partial_step and env_batch.num_envs > 1:
        rule = "a slice can be stepped alone"
        yield _compare(
            rule,
            play(env_batch, seeds, settings.steps, cut=1, watch=settings.watching(rule)).differs_from(trajectory),
            "step(first, last) must touch the envs first..last-1 only; or set spec.partial_step to False",
        )
    if spec.savable:
        yield _saving(env_batch, seeds, settings)


def _compare(rule: str, difference: str | None, fix: str) -> CheckResult:
    return CheckResult(rule, "ok", "") if difference is None else CheckResult(rule, "error", difference, fix)


def _buffers(env_batch: EnvBatch, spec: EnvSpec, buffers: Buffers) -> CheckResult:
    rule = "spec and buffers agree"
    if replace(env_batch.spec, id=spec.id) != spec:
        return CheckResult(
            rule, "error", f"describe returns {spec}, the env batch has {env_batch.spec}", "build both in one place"
        )
    if env_batch.buffers is not buffers:
        return CheckResult(
            rule, "error", "the env batch has its own buffers", "write into the buffers that it is given"
        )
    for name, (shape, dtype) in Buffers.layout(spec, env_batch.num_envs).items():
        array = getattr(env_batch.buffers, name)
        if array.shape != shape or array.dtype != dtype:
            what = f"{name} is {array.dtype} {array.shape}, the spec says {dtype} {shape}"
            return CheckResult(rule, "error", what, "allocate with Buffers.allocate(spec, num_envs)")
    return CheckResult(rule, "ok", f"an observation is {spec.observation.dtype} {spec.observation.shape}")


def _raw_spaces(env_batch: EnvBatch) -> Iterator[CheckResult]:
    """Compare the observations of a Gymnasium or PettingZoo env with the space that it declares."""
    inner = env_batch
    while isinstance(inner, RewardEnvs | EpisodicEnvs):
        inner = inner.env_batch
    rule, fix = "observations are in the declared space", "fix the observation_space, or cast and clip observations"
    if isinstance(inner, GymnasiumEnvs):
        env = inner.envs[0]
        env.action_space.seed(0)
        observation, _ = env.reset(seed=1)
        observations, space = [observation], env.observation_space
        for _ in range(20):
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            observations.append(observation)
            if terminated or truncated:
                break
    elif isinstance(inner, PettingZooEnvs):
        env = inner.envs[0]
        by_agent, _ = env.reset(seed=1)
        observations, space = [], env.observation_space(env.agents[0])
        for agent in env.agents:  # the first that is wrong, if there is one
            if not env.observation_space(agent).contains(by_agent[agent]):
                observations, space = [by_agent[agent]], env.observation_space(agent)
                break
    else:
        return
    wrong = [value for value in observations if not space.contains(value)]
    if not wrong:
        yield CheckResult(rule, "ok", str(space))
        return
    value = np.asarray(wrong[0]) if not isinstance(wrong[0], Mapping | tuple) else None
    seen = f"{wrong[0]}" if value is None else f"{value.dtype} {value.shape}, from {value.min()} to {value.max()}"
    yield CheckResult(rule, "error", f"an observation was {seen}, the space is {space}", fix)


def _values(what: str, trajectory: Trajectory, spec: EnvSpec) -> CheckResult:
    """Check that observations are finite and not above `Part.high`."""
    for part in spec.observation.parts:
        for stored in (trajectory.observation, trajectory.final_observation):
            if not len(stored):
                continue
            values = read_part(stored, spec.observation, part)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                return CheckResult(
                    f"{what} are finite", "error", f"{part.name} has NaN or infinity", "find the division"
                )
            if part.kind == "tokens":  # `high` is the largest feature of tokens that are not padding
                values = values[..., 1][values[..., 0] != TOKEN_PADDING]
            if part.high is not None and values.size and values.max() > part.high:
                what_is_wrong = f"{part.name} reaches {values.max()}, the spec says at most {part.high}"
                return CheckResult(
                    f"{what} are in bounds", "error", what_is_wrong, "fix the space, or clip observations"
                )
    return CheckResult(f"{what} are finite and in bounds", "ok", "")


def _rewards(trajectory: Trajectory) -> CheckResult:
    if not np.isfinite(trajectory.reward).all():
        return CheckResult(
            "rewards are finite", "error", "a reward is NaN or infinite", "find the division or overflow"
        )
    if trajectory.reward[~trajectory.alive[:-1]].any():
        what = "an agent that is not alive was rewarded"
        return CheckResult("rewards are finite", "error", what, "reward only agents that act")
    if not trajectory.reward.any():
        what = "random play got no reward"
        return CheckResult("rewards are finite", "warning", what, "shape the reward, or expect slow learning")
    return CheckResult(
        "rewards are finite", "ok", f"from {trajectory.reward.min():g} to {trajectory.reward.max():g} under random play"
    )


def _seeds_matter(env_batch: EnvBatch, settings: _PlaySettings) -> CheckResult:
    """Play the same actions with two sets of seeds."""
    rule = "other seeds give other episodes"
    played = []
    for offset in (0, 1):
        env_batch.reset(spawn_seeds(settings.seed + offset, env_batch.num_envs))
        randoms = [np.random.default_rng(7) for _ in range(env_batch.num_envs)]
        played.append(play_on(env_batch, randoms, settings.steps, watch=settings.watching(rule)))
    if played[0].differs_from(played[1]) is not None:
        return CheckResult(rule, "ok", "")
    what = "the same actions lead to the same trajectory with every seed"
    return CheckResult(rule, "warning", what, "if anything should be random, draw it from self.np_random")


def _endings(trajectory: Trajectory, spec: EnvSpec, steps: int) -> Iterator[CheckResult]:
    if not trajectory.ended.any():
        what = f"no episode ended in {steps} steps of random play, so endings were not tested"
        yield CheckResult("episodes end", "warning", what, "check with more steps, or give the env a step limit")
        return
    yield CheckResult("episodes end", "ok", f"{len(trajectory.episodes)} in {steps} steps")
    unwritten = trajectory.ended & ~trajectory.final_written
    yield _compare(
        "an ended episode shows its final observation",
        f"final_observation was not written at step {np.argwhere(unwritten)[0][0]}" if unwritten.any() else None,
        "write the true last observation into final_observation before the reset",
    )
    limited = [e for e in trajectory.episodes if spec.max_steps is not None and e.length == spec.max_steps]
    by_limit = bool(limited) and not trajectory.truncated.any()
    yield CheckResult(
        "the step limit truncates",
        "warning" if by_limit else "ok",
        f"episodes of max_steps={spec.max_steps} steps terminated, and none was truncated" if by_limit else "",
        "return truncated=True, terminated=False when only time ran out: its value must bootstrap" if by_limit else "",
    )


def _episode_statistics(trajectory: Trajectory) -> CheckResult:
    """Compare returns and lengths of the first episodes with the rewards seen."""
    rule, fix = "returns and lengths add up", "count from reset to the end, rewards as the env gave them"
    whole = [next((e for e in trajectory.episodes if e.env == env), None) for env in range(trajectory.reward.shape[1])]
    for env, episode in enumerate(whole):
        if episode is None:
            continue
        seen = trajectory.reward[: episode.length, env].sum(0, dtype=np.float64)
        if not trajectory.ended[episode.length - 1, env].any():
            what = f"env {env} reports an episode of {episode.length} steps, but none ended then"
            return CheckResult(rule, "error", what, fix)
        if not np.allclose(seen, episode.returns, rtol=1e-4, atol=1e-4):
            what = f"env {env}: rewards sum to {seen.tolist()}, the episode says {list(episode.returns)}"
            return CheckResult(rule, "warning", what, f"{fix}; with reward_scale or reward_clip this is expected")
    return CheckResult(rule, "ok", "")


def _alone(
    trajectory: Trajectory,
    env_id: str,
    options: Mapping[str, Any],
    seeds: npt.NDArray[np.uint64],
    settings: _PlaySettings,
) -> Iterator[CheckResult]:
    """Play the last env of the batch alone, in a batch of one."""
    rule = "an env depends on its own seed and actions alone"
    alone = make_env_batch(env_id, 1, options)
    try:
        played = play(alone, seeds[-1:], settings.steps, watch=settings.watching(rule))
        difference = played.differs_from(trajectory.env(len(seeds) - 1))
    finally:
        alone.close()
    fix = "keep state in the env object, not in its class or module, and draw from self.np_random, not from np.random"
    yield _compare(rule, difference, fix)


def _saving(env_batch: EnvBatch, seeds: npt.NDArray[np.uint64], settings: _PlaySettings) -> CheckResult:
    rule = "a saved state continues as before"
    play(env_batch, seeds, min(settings.steps, 50))
    saved = env_batch.save_state()
    first = play_on(env_batch, [np.random.default_rng(7) for _ in seeds], settings.steps, watch=settings.watching(rule))
    env_batch.load_state(saved)
    again = play_on(env_batch, [np.random.default_rng(7) for _ in seeds], settings.steps, watch=settings.watching(rule))
    fix = "save_state must hold everything that a step reads, generators and current observations included"
    return _compare(rule, again.differs_from(first), fix)
