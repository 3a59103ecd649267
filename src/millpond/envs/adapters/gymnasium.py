"""Gymnasium envs, one Python object per env, stepped in a loop: `gymnasium:ID`, or envs of a custom factory.

An env is seeded once, at `reset`; later episodes continue its own generator. So the trajectory of env i depends on its own
seed and actions alone, as long as it draws from `self.np_random`, as Gymnasium requires.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Aggregate, Buffers, EnvError, EpisodeStats, EpisodeTracker, check_seeds, unsavable
from millpond.envs.families import parse_options, require_extra
from millpond.envs.masks import find_mask, mask_method, shows_mask, write_mask
from millpond.envs.render import render_env
from millpond.envs.spaces import ActionLayout, ObservationLayout, read_rewards, reward_refusal
from millpond.envs.spec import EnvSpec

MakeEnv = Callable[[], Any]


@dataclass(frozen=True)
class LoopOptions:
    """Options of environments that loop over env objects.

    `kwargs`        arguments of the env's constructor
    `max_steps`     steps until truncation; replaces the limit with which a Gymnasium env was registered
    `clip_actions`  clip continuous actions to the space's bounds before the env sees them
    `info`          how a number that the env reports at several steps is aggregated over an episode
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    clip_actions: bool = False
    info: Aggregate = "auto"


def gymnasium_maker(name: str, options: LoopOptions) -> MakeEnv:
    """Return a function that makes one env of Gymnasium's registry."""
    import gymnasium

    env_id = f"gymnasium:{name}"
    extra = {} if options.max_steps is None else {"max_episode_steps": options.max_steps}
    try:
        spec = gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise EnvError(f"env {env_id!r} is not known to Gymnasium: {error}{_did_you_mean(name)}") from error
    require_extra(env_id)

    def make() -> Any:
        try:
            env = gymnasium.make(spec, disable_env_checker=True, **extra, **options.kwargs)
        except gymnasium.error.DependencyNotInstalled as error:
            raise EnvError(f"env {env_id!r} lacks a dependency: {error}") from error
        except TypeError as error:
            raise EnvError(f"env {env_id!r} does not take kwargs {dict(options.kwargs)}: {error}") from error
        answer_quickly(env)
        return env

    return make


def _did_you_mean(name: str) -> str:
    import gymnasium

    versions = [known for known in gymnasium.registry if known.rpartition("-v")[0].lower() == _stem(name)]
    near = versions[::-1] or difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.7)
    return f" Did you mean {' or '.join(f'gymnasium:{known}' for known in near[:3])}?" if near else ""


def _stem(name: str) -> str:
    return (name.rpartition("-v")[0] or name).lower()


class GymnasiumSpaces:
    """Layouts of observations and actions, and the spec, as read from one env object."""

    def __init__(self, env: Any, env_id: str, options: LoopOptions) -> None:
        self.mask_in_observation = shows_mask(env.observation_space)
        space = env.observation_space["observation"] if self.mask_in_observation else env.observation_space
        self.observation = ObservationLayout(space, env_id)
        self.action = ActionLayout(env.action_space, env_id, options.clip_actions)
        _, infos = reset_one(env, 0, env_id)
        masks = self.mask_in_observation or "action_mask" in infos or mask_method(env) is not None
        registered = getattr(env, "spec", None)
        self.spec = EnvSpec(
            id=env_id,
            observation=self.observation.spec,
            action=self.action.spec,
            max_steps=getattr(registered, "max_episode_steps", None),
            action_masks=masks and self.action.spec.kind != "continuous",
        )


def reset_one(env: Any, seed: int | None, env_id: str) -> tuple[Any, Mapping[str, Any]]:
    """Reset an env, and check that it has the API of Gymnasium 0.26 and later."""
    result = env.reset() if seed is None else env.reset(seed=seed)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise EnvError(
            f"env {env_id!r}: reset() must return (observation, infos), but returned a {type(result).__name__}; "
            "this is the old gym API: wrap the env, e.g. with shimmy"
        )
    return result


def step_of(env: Any) -> Callable[[Any], Any]:
    """Return the env's `step`, in one call instead of three through the wrappers with which Gymnasium makes its envs.

    These are `TimeLimit`, whose own counter is used, and `OrderEnforcing`, which checks that `reset` came first.
    """
    from gymnasium.wrappers import OrderEnforcing, TimeLimit

    if type(env) is not TimeLimit or type(env.env) is not OrderEnforcing:
        return env.step  # type: ignore[no-any-return]
    step, most = env.env.env.step, env._max_episode_steps

    def step_and_count(action: Any) -> Any:
        result = step(action)
        env._elapsed_steps += 1
        if env._elapsed_steps >= most:
            observation, reward, terminated, _, infos = result
            return observation, reward, terminated, True, infos
        return result

    return step_and_count


class DiscreteMembership:
    """`Discrete.contains` of one space: the same answers, at a fraction of the cost for members that are int or int64.

    Envs such as CartPole ask it at every step, and spend half of the step on the answer.
    """

    def __init__(self, space: Any) -> None:
        self.space, self.start = space, int(space.start)
        self.stop = self.start + int(space.n)
        self.kinds = (int, np.int64) if space.dtype == np.int64 else (int,)

    def __call__(self, x: Any) -> bool:
        return (type(x) in self.kinds and self.start <= int(x) < self.stop) or type(self.space).contains(self.space, x)


def answer_quickly(env: Any) -> None:
    """Let the action space of an env that Gymnasium made answer `contains` by `DiscreteMembership`, if it is a `Discrete`."""
    from gymnasium.spaces import Discrete

    space: Any = getattr(env.unwrapped, "action_space", None)
    if type(space) is Discrete and "contains" not in vars(space):
        space.contains = DiscreteMembership(space)


class GymnasiumEnvs:
    """N Gymnasium envs, stepped one after another."""

    def __init__(
        self,
        env_id: str,
        make: MakeEnv,
        num_envs: int,
        mapping: Mapping[str, Any],
        buffers: Buffers | None = None,
    ) -> None:
        self.options = parse_options(LoopOptions, mapping, env_id=env_id)
        self.envs = [make() for _ in range(num_envs)]
        self._steps = [step_of(env) for env in self.envs]
        self._spaces = GymnasiumSpaces(self.envs[0], env_id, self.options)
        self.spec = self._spaces.spec
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self._tracker = EpisodeTracker(num_envs, 1, self.options.info)
        self._progress = np.zeros(1, np.int64)

    def watch(self, progress: npt.NDArray[np.int64]) -> None:
        """Write the env that is being stepped or reset to `progress[0]`, so that the error of a crash can name it."""
        self._progress = progress

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._tracker.reset()
        self.buffers.reward[:] = 0.0
        self.buffers.terminated[:] = False
        self.buffers.truncated[:] = False
        self.buffers.alive[:] = True
        for env, seed in enumerate(check_seeds(seeds, self.num_envs).tolist()):
            self._begin(env, seed)

    def step(self, first: int, last: int) -> None:
        buffers, spaces, steps, progress = self.buffers, self._spaces, self._steps, self._progress
        masks = spaces.spec.action_masks
        observations: list[Any] = []
        rewards: list[Any] = []
        ended: list[int] = []
        actions = spaces.action.read_all(buffers.action[first:last, 0])
        buffers.terminated[first:last] = False
        buffers.truncated[first:last] = False
        for env, action in zip(range(first, last), actions, strict=True):
            progress[0] = env
            try:
                result = steps[env](action)
            except Exception as error:
                error.add_note(f"in env {env} of {self.spec.id!r}, {self._tracker.length[env]} steps into its episode")
                raise
            if len(result) != 5:
                raise EnvError(
                    f"env {self.spec.id!r}: step() must return (observation, reward, terminated, truncated, infos), "
                    f"but returned {len(result)} values; this is the old gym API: wrap the env, e.g. with shimmy"
                )
            observation, reward, terminated, truncated, infos = result
            rewards.append(reward)
            observations.append(observation)
            if infos:
                self._tracker.add_infos(env, infos)
            if terminated or truncated:
                self._write_observation(observation, buffers.final_observation[env, 0])
                buffers.terminated[env, 0], buffers.truncated[env, 0] = terminated, truncated
                ended.append(env)
                if masks:
                    self._write_mask(env, observation, infos, buffers.final_action_mask, final=True)
            elif masks:
                self._write_mask(env, observation, infos, buffers.action_mask)
        self._write_observations(first, observations, buffers.observation[first:last, 0])
        self._write_rewards(first, rewards)
        self._tracker.add_step(first, last, buffers.reward[first:last])
        for env in ended:
            self._tracker.end_episode(env)
            self._begin(env, None)

    def _begin(self, env: int, seed: int | None) -> None:
        self._progress[0] = env
        observation, infos = reset_one(self.envs[env], seed, self.spec.id)
        self._write_observation(observation, self.buffers.observation[env, 0])
        if self.spec.action_masks:
            self._write_mask(env, observation, infos, self.buffers.action_mask)

    def _write_observation(self, observation: Any, into: npt.NDArray[Any]) -> None:
        if self._spaces.mask_in_observation:
            observation = observation["observation"]
        self._spaces.observation.write(observation, into)

    def _write_observations(self, first: int, observations: list[Any], into: npt.NDArray[Any]) -> None:
        if self._spaces.mask_in_observation:
            observations = [observation["observation"] for observation in observations]

        def watch(index: int) -> None:
            self._progress[0] = first + index

        self._spaces.observation.write_all(observations, into, watch)

    def _write_rewards(self, first: int, rewards: Sequence[Any]) -> None:
        numbers = read_rewards(rewards)
        if numbers is None:
            env, reward = next((i, reward) for i, reward in enumerate(rewards) if read_rewards([reward]) is None)
            self._progress[0] = first + env
            raise reward_refusal(reward, self.spec.id)
        self.buffers.reward[first : first + len(numbers), 0] = numbers

    def _write_mask(
        self, env: int, observation: Any, infos: Mapping[str, Any], masks: npt.NDArray[np.bool_], *, final: bool = False
    ) -> None:
        mask = find_mask(infos, observation, self.envs[env], in_observation=self._spaces.mask_in_observation)
        write_mask(mask, self._spaces.action, masks[env, 0], env_id=self.spec.id, env=env, final=final)

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        raise unsavable(self.spec.id, "saved")

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        raise unsavable(self.spec.id, "restored")

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        """Render one env; most need kwargs={'render_mode': 'rgb_array'}."""
        return render_env(self.envs[env], self.spec.id)

    def close(self) -> None:
        for env in self.envs:
            env.close()
