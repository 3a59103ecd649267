"""Does an env keep the rules? `millpond envs check ID` plays it at random and says what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from millpond.envs.adapters.gymnasium import GymnasiumEnvs
from millpond.envs.adapters.pettingzoo import PettingZooEnvs
from millpond.envs.env_batch import Buffers, EnvBatch
from millpond.envs.random_play import Trajectory, play, play_on
from millpond.envs.registry import describe, describe_error, make_env_batch
from millpond.envs.reward_wrappers import EpisodicEnvs, RewardEnvs
from millpond.envs.seeds import spawn_seeds
from millpond.envs.spaces import read_part
from millpond.envs.spec import TOKEN_PADDING, EnvSpec
from millpond.plurals import plural

STEPS = 300  # of each play, where nobody says how many
SECONDS = 10.0  # after which the first play of a slow env stops; the others then take as many steps
Status = Literal["ok", "warning", "error"]


class CheckProgress(Protocol):
    """Called with what is being played and how far it is."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


@dataclass(frozen=True)
class CheckResult:
    """One rule, its status, and where it is broken, what is wrong and how to fix it."""

    rule: str
    status: Status
    what: str
    fix: str = ""


@dataclass(frozen=True)
class _Play:
    """How a check plays an environment: from which seed, how long, and who watches."""

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
    """Play an env at random and test every rule of the protocol. One finding a rule, those not kept first.

    The env is played several times, each time for `steps` steps; None is `STEPS`, or as many as a slow env takes in
    `SECONDS`. `watch(rule, done, total)` follows the steps.
    """
    watch("making the envs")
    try:
        spec = describe(env_id, options)
        buffers = Buffers.allocate(spec, num_envs)
        env_batch = make_env_batch(env_id, num_envs, options, buffers)
    except Exception as error:
        return [
            CheckResult("can be made", "error", describe_error(error), "fix what the message names, then check again")
        ]
    findings = [CheckResult("can be made", "ok", f"{num_envs} envs of {plural(spec.num_agents, 'agent')}")]
    try:
        findings += _check_made(env_batch, spec, buffers, env_id, options, steps, _Play(seed, steps or STEPS, watch))
    except Exception as error:
        fix = "run the env alone with random actions until it raises; the message says where"
        findings.append(CheckResult("steps without raising", "error", describe_error(error), fix))
    finally:
        env_batch.close()
    return in_order(findings)


def in_order(findings: list[CheckResult]) -> list[CheckResult]:
    """Errors first, then warnings."""
    return sorted(findings, key=lambda finding: ("error", "warning", "ok").index(finding.status))


def _check_made(
    env_batch: EnvBatch,
    spec: EnvSpec,
    buffers: Buffers,
    env_id: str,
    options: Mapping[str, Any],
    steps: int | None,
    how: _Play,
) -> Iterator[CheckResult]:
    seeds = spawn_seeds(how.seed, env_batch.num_envs)
    yield _buffers(env_batch, spec, buffers)
    limit = SECONDS if steps is None else None
    one = play(env_batch, seeds, how.steps, seconds=limit, watch=how.watching("steps"))
    if len(one.reward) < how.steps:
        what = f"each play stopped after {len(one.reward)} steps, since {SECONDS:g} s had passed"
        yield CheckResult("steps fast enough for a whole check", "warning", what, "check with --steps N to play longer")
        how = replace(how, steps=len(one.reward))
    yield from _raw_spaces(env_batch)
    yield _values("observations", one, spec)
    yield _rewards(one)
    yield _seeds_matter(env_batch, how)
    yield from _endings(one, spec, how.steps)
    yield _books(one)
    rule = "repeats from the same seed"
    yield _compare(
        rule,
        play(env_batch, seeds, how.steps, watch=how.watching(rule)).differs_from(one),
        "draw every random number from the generator that reset(seed=...) seeds (self.np_random), and keep no state "
        "from one episode to the next",
    )
    yield from _alone(one, env_id, options, seeds, how)
    if spec.partial_step and env_batch.num_envs > 1:
        rule = "a part can be stepped alone"
        yield _compare(
            rule,
            play(env_batch, seeds, how.steps, cut=1, watch=how.watching(rule)).differs_from(one),
            "step(first, last) must touch the envs first..last-1 only; or set spec.partial_step to False",
        )
    if spec.savable:
        yield _saving(env_batch, seeds, how)


def _compare(rule: str, difference: str | None, fix: str) -> CheckResult:
    return CheckResult(rule, "ok", "") if difference is None else CheckResult(rule, "error", difference, fix)


def _buffers(env_batch: EnvBatch, spec: EnvSpec, buffers: Buffers) -> CheckResult:
    rule = "spec and buffers agree"
    if env_batch.spec != spec:
        return CheckResult(
            rule, "error", f"describe gives {spec}, its own spec is {env_batch.spec}", "make both from one place"
        )
    if env_batch.buffers is not buffers:
        return CheckResult(
            rule, "error", "the environment has buffers of its own", "write into the buffers that are given"
        )
    for name, (shape, dtype) in Buffers.layout(spec, env_batch.num_envs).items():
        array = getattr(env_batch.buffers, name)
        if array.shape != shape or array.dtype != dtype:
            what = f"{name} is {array.dtype} {array.shape}, the spec says {dtype} {shape}"
            return CheckResult(rule, "error", what, "allocate with Buffers.allocate(spec, num_envs)")
    return CheckResult(rule, "ok", f"an observation is {spec.observation.dtype} {spec.observation.shape}")


def _raw_spaces(env_batch: EnvBatch) -> Iterator[CheckResult]:
    """What a Gymnasium or PettingZoo env shows, against the space that it declares."""
    inner = env_batch
    while isinstance(inner, RewardEnvs | EpisodicEnvs):
        inner = inner.env_batch
    rule, fix = "observations lie in the declared space", "fix the observation_space, or cast and clip what is shown"
    if isinstance(inner, GymnasiumEnvs):
        env = inner.envs[0]
        env.action_space.seed(0)
        observation, _ = env.reset(seed=1)
        shown, space = [observation], env.observation_space
        for _ in range(20):
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            shown.append(observation)
            if terminated or truncated:
                break
    elif isinstance(inner, PettingZooEnvs):
        env = inner.envs[0]
        observations, _ = env.reset(seed=1)
        agent = env.agents[0]
        shown, space = [observations[agent]], env.observation_space(agent)
    else:
        return
    wrong = [value for value in shown if not space.contains(value)]
    if not wrong:
        yield CheckResult(rule, "ok", str(space))
        return
    value = np.asarray(wrong[0]) if not isinstance(wrong[0], Mapping | tuple) else None
    told = f"{wrong[0]}" if value is None else f"{value.dtype} {value.shape}, from {value.min()} to {value.max()}"
    yield CheckResult(rule, "error", f"shown was {told}, the space is {space}", fix)


def _values(what: str, one: Trajectory, spec: EnvSpec) -> CheckResult:
    """Finite, and not above the largest value that the spec names."""
    for part in spec.observation.parts:
        for stored in (one.observation, one.final_observation):
            if not len(stored):
                continue
            values = read_part(stored, spec.observation, part)
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                return CheckResult(
                    f"{what} are finite", "error", f"{part.name} has NaN or infinity", "find the division"
                )
            if part.kind == "tokens":  # its largest value is that of the features of tokens that are not padding
                values = values[..., 1][values[..., 0] != TOKEN_PADDING]
            if part.high is not None and values.size and values.max() > part.high:
                told = f"{part.name} reaches {values.max()}, the spec says at most {part.high}"
                return CheckResult(f"{what} are in bounds", "error", told, "fix the space, or clip what is shown")
    return CheckResult(f"{what} are finite and in bounds", "ok", "")


def _rewards(one: Trajectory) -> CheckResult:
    if not np.isfinite(one.reward).all():
        return CheckResult(
            "rewards are finite", "error", "a reward is NaN or infinite", "find the division or overflow"
        )
    if one.reward[~one.alive[:-1]].any():
        told = "an agent that is not alive was rewarded"
        return CheckResult("rewards are finite", "error", told, "give rewards to agents that act only")
    if not one.reward.any():
        told = "random play was never rewarded"
        return CheckResult("rewards are finite", "warning", told, "shape the reward, or expect slow learning")
    return CheckResult(
        "rewards are finite", "ok", f"from {one.reward.min():g} to {one.reward.max():g} under random play"
    )


def _seeds_matter(env_batch: EnvBatch, how: _Play) -> CheckResult:
    """The same actions under two sets of seeds."""
    rule = "other seeds give other episodes"
    played = []
    for offset in (0, 1):
        env_batch.reset(spawn_seeds(how.seed + offset, env_batch.num_envs))
        randoms = [np.random.default_rng(7) for _ in range(env_batch.num_envs)]
        played.append(play_on(env_batch, randoms, how.steps, watch=how.watching(rule)))
    if played[0].differs_from(played[1]) is not None:
        return CheckResult(rule, "ok", "")
    what = "the same actions lead to the same whatever the seed"
    return CheckResult(rule, "warning", what, "if anything should be random, draw it from self.np_random")


def _endings(one: Trajectory, spec: EnvSpec, steps: int) -> Iterator[CheckResult]:
    if not one.ended.any():
        told = f"no episode ended in {steps} steps of random play, so endings were not tested"
        yield CheckResult("episodes end", "warning", told, "check with more steps, or give the env a limit of its own")
        return
    yield CheckResult("episodes end", "ok", f"{len(one.episodes)} in {steps} steps")
    unwritten = one.ended & ~one.final_written
    yield _compare(
        "an ended episode shows its final observation",
        f"final_observation was not written at step {np.argwhere(unwritten)[0][0]}" if unwritten.any() else None,
        "write the true last observation into final_observation before the reset",
    )
    limited = [e for e in one.episodes if spec.max_steps is not None and e.length == spec.max_steps]
    by_limit = bool(limited) and not one.truncated.any()
    yield CheckResult(
        "the step limit truncates",
        "warning" if by_limit else "ok",
        f"episodes of max_steps={spec.max_steps} steps terminated, and none was truncated" if by_limit else "",
        "return truncated=True, terminated=False when only time ran out: its value must bootstrap" if by_limit else "",
    )


def _books(one: Trajectory) -> CheckResult:
    """Episodes that began with the play: their returns and lengths are those of the rewards seen."""
    rule, fix = "returns and lengths add up", "count from reset to the end, rewards as the env gave them"
    whole = [next((e for e in one.episodes if e.env == env), None) for env in range(one.reward.shape[1])]
    for env, episode in enumerate(whole):
        if episode is None:
            continue
        seen = one.reward[: episode.length, env].sum(0, dtype=np.float64)
        if not one.ended[episode.length - 1, env].any():
            told = f"env {env} reports an episode of {episode.length} steps, but none ended then"
            return CheckResult(rule, "error", told, fix)
        if not np.allclose(seen, episode.returns, rtol=1e-4, atol=1e-4):
            told = f"env {env}: rewards sum to {seen.tolist()}, the episode says {list(episode.returns)}"
            return CheckResult(
                rule, "warning", told, f"{fix}; with reward_scale or reward_clip this is as it should be"
            )
    return CheckResult(rule, "ok", "")


def _alone(
    one: Trajectory, env_id: str, options: Mapping[str, Any], seeds: npt.NDArray[np.uint64], how: _Play
) -> Iterator[CheckResult]:
    """The last env of the batch, alone in an environment of its own."""
    rule = "an env depends on its own seed and actions alone"
    alone = make_env_batch(env_id, 1, options)
    try:
        played = play(alone, seeds[-1:], how.steps, watch=how.watching(rule))
        difference = played.differs_from(one.env(len(seeds) - 1))
    finally:
        alone.close()
    fix = "keep state in the env object, not in its class or module, and draw from self.np_random, not from np.random"
    yield _compare(rule, difference, fix)


def _saving(env_batch: EnvBatch, seeds: npt.NDArray[np.uint64], how: _Play) -> CheckResult:
    rule = "a saved state goes on as before"
    play(env_batch, seeds, min(how.steps, 50))
    saved = env_batch.save_state()
    first = play_on(env_batch, [np.random.default_rng(7) for _ in seeds], how.steps, watch=how.watching(rule))
    env_batch.load_state(saved)
    again = play_on(env_batch, [np.random.default_rng(7) for _ in seeds], how.steps, watch=how.watching(rule))
    fix = "save_state must hold everything that a step reads, generators and current observations included"
    return _compare(rule, again.differs_from(first), fix)
