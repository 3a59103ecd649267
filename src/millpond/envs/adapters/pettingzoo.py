"""PettingZoo's parallel envs: `pettingzoo:MODULE`, or envs of a custom factory.

Agents with different spaces are padded to common ones: see `millpond.envs.agents`.

Agents have the order of `possible_agents`. An agent that is not in the env's `agents` is not alive: its observation is
zero, its reward 0, its flags False, and its actions are ignored. An agent that ends before the others has its flag and
its final observation at its last step; the episode continues until no agent is left.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.adapters.gymnasium import LoopOptions, MakeEnv, reset_one
from millpond.envs.agents import AgentActions, AgentObservations, agent_types
from millpond.envs.env_batch import Buffers, EnvError, EpisodeStats, EpisodeTracker, check_seeds, unsavable
from millpond.envs.families import import_extra, parse_options
from millpond.envs.masks import shows_mask
from millpond.envs.render import render_env
from millpond.envs.spaces import ActionLayout, ObservationLayout, read_rewards, reward_refusal
from millpond.envs.spec import EnvSpec

EXTRAS = ("atari", "butterfly", "classic", "sisl")  # families of PettingZoo's envs that need further packages


def pettingzoo_maker(name: str, options: LoopOptions) -> MakeEnv:
    """Return a function that makes one env by `parallel_env` of the module `pettingzoo.NAME`, or NAME itself."""
    env_id = f"pettingzoo:{name}"
    import_extra("pettingzoo", extra="pettingzoo", env_id=env_id)
    for path in (f"pettingzoo.{name}", name):
        try:
            module = importlib.import_module(path)
            break
        except ModuleNotFoundError as error:
            if error.name is not None and path != error.name and not path.startswith(f"{error.name}."):
                family = name.split(".")[0]
                needs = f"'pettingzoo[{family}]'" if family in EXTRAS else error.name.split(".")[0]
                raise EnvError(
                    f"env {env_id!r} needs the module {error.name!r}, which is not installed; install it with: "
                    f"pip install {needs}"
                ) from error
    else:
        near = difflib.get_close_matches(name, _modules(), n=3)
        hint = f"; did you mean {' or '.join(f'pettingzoo:{known}' for known in near)}?" if near else ""
        raise EnvError(f"env {env_id!r}: there is no module pettingzoo.{name}, nor {name}{hint}")
    if not hasattr(module, "parallel_env"):
        raise EnvError(f"env {env_id!r}: module {module.__name__} has no parallel_env; only parallel envs can be used")

    def make() -> Any:
        return module.parallel_env(**options.kwargs)

    return make


def _modules() -> list[str]:
    """Return the modules of PettingZoo that are named as those of its envs are: `butterfly.pistonball_v6`."""
    import pettingzoo

    folder = Path(str(pettingzoo.__file__)).parent
    return [f"{path.parent.name}.{path.stem}" for path in folder.glob("*/*_v[0-9]*.py")]


class PettingZooSpaces:
    """Layouts and spec of a parallel env: one policy acts for all agents."""

    def __init__(self, env: Any, env_id: str, options: LoopOptions) -> None:
        agents = getattr(env, "possible_agents", None)
        if not agents:
            raise EnvError(
                f"env {env_id!r} has no possible_agents, so the number of agents is unknown; set "
                "possible_agents to all agents that can ever appear"
            )
        self.agents: list[Any] = list(agents)
        self.index = {agent: number for number, agent in enumerate(self.agents)}
        names = tuple(str(agent) for agent in self.agents)
        spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in self.agents]
        self.mask_in_observation = [shows_mask(observation) for observation, _ in spaces]
        seen = [space["observation"] if shows_mask(space) else space for space, _ in spaces]
        types = agent_types(names, spaces) if any(space != spaces[0] for space in spaces) else None
        self.observation = AgentObservations([ObservationLayout(space, env_id) for space in seen], types)
        self.action = AgentActions([ActionLayout(space, env_id, options.clip_actions) for _, space in spaces])
        _, infos = reset_one(env, 0, env_id)
        masks = any(self.mask_in_observation) or any("action_mask" in info for info in infos.values())
        self.spec = EnvSpec(
            id=env_id,
            observation=self.observation.spec,
            action=self.action.spec,
            num_agents=len(self.agents),
            max_steps=options.max_steps,
            action_masks=self.action.padded or (masks and self.action.spec.kind != "continuous"),
            agent_names=names,
        )


class PettingZooEnvs:
    """N parallel envs, stepped one after another."""

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
        self._spaces = PettingZooSpaces(self.envs[0], env_id, self.options)
        self.spec = self._spaces.spec
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self._tracker = EpisodeTracker(num_envs, self.spec.num_agents, self.options.info)
        self._progress = np.zeros(1, np.int64)

    def watch(self, progress: npt.NDArray[np.int64]) -> None:
        """Write the env that is being stepped or reset to `progress[0]`, so that the error of a crash can name it."""
        self._progress = progress

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._tracker.reset()
        self.buffers.reward[:] = 0.0
        self.buffers.terminated[:] = False
        self.buffers.truncated[:] = False
        for env, seed in enumerate(check_seeds(seeds, self.num_envs).tolist()):
            self._begin(env, seed)

    def step(self, first: int, last: int) -> None:
        for env in range(first, last):
            self._progress[0] = env
            try:
                self._step_one(env)
            except Exception as error:
                error.add_note(f"in env {env} of {self.spec.id!r}, {self._tracker.length[env]} steps into its episode")
                raise

    def _step_one(self, env: int) -> None:
        buffers, parallel, names = self.buffers, self.envs[env], self._spaces.agents
        acting = [index for index, name in enumerate(names) if buffers.alive[env, index]]
        actions = {names[index]: self._spaces.action.read(index, buffers.action[env, index]) for index in acting}
        observations, rewards, terminations, truncations, infos = parallel.step(actions)

        buffers.reward[env] = 0.0
        buffers.terminated[env] = False
        buffers.truncated[env] = False
        buffers.alive[env] = False
        buffers.observation[env] = 0
        reached_limit = self._tracker.length[env] + 1 == self.spec.max_steps
        for agent in acting:
            name = names[agent]
            number = read_rewards([rewards[name]])
            if number is None:
                raise reward_refusal(rewards[name], self.spec.id, name)
            buffers.reward[env, agent] = number[0]
            terminated = bool(terminations[name])
            truncated = bool(truncations[name]) or (reached_limit and not terminated)
            buffers.terminated[env, agent] = terminated
            buffers.truncated[env, agent] = truncated
            if terminated or truncated:
                self._write_observation(agent, observations[name], buffers.final_observation[env, agent])
                if self.spec.action_masks:
                    self._write_mask(env, agent, observations, infos, buffers.final_action_mask, final=True)
            self._tracker.add_infos(env, infos.get(name, {}), agent)
        self._tracker.add_step(env, env + 1, buffers.reward[env : env + 1])
        if parallel.agents and not reached_limit:
            self._write_observations(env, observations, infos)
            return
        if not (buffers.terminated[env] | buffers.truncated[env])[acting].all():
            raise EnvError(
                f"env {self.spec.id!r} has no agents left, but not all that acted are terminated or truncated; an "
                "agent must be one of the two when it leaves"
            )
        self._tracker.end_episode(env)
        self._begin(env, None)

    def _begin(self, env: int, seed: int | None) -> None:
        self._progress[0] = env
        observations, infos = reset_one(self.envs[env], seed, self.spec.id)
        self.buffers.alive[env] = False
        self.buffers.observation[env] = 0
        self._write_observations(env, observations, infos)

    def _write_observations(self, env: int, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Write observations and masks of the agents that are in the env now.

        The masks of the others are those of an env that allows everything: an empty one would leave a policy without a choice.
        """
        buffers, spaces = self.buffers, self._spaces
        for name in self.envs[env].agents:
            if name not in spaces.index:
                raise EnvError(f"env {self.spec.id!r}: agent {name!r} is not in possible_agents; add it there")
            agent = spaces.index[name]
            buffers.alive[env, agent] = True
            self._write_observation(agent, observations[name], buffers.observation[env, agent])
        if self.spec.action_masks:
            for agent in range(len(spaces.agents)):
                known = buffers.alive[env, agent]
                self._write_mask(env, agent, observations if known else {}, infos if known else {}, buffers.action_mask)

    def _write_mask(
        self,
        env: int,
        agent: int,
        observations: Mapping[Any, Any],
        infos: Mapping[Any, Any],
        masks: npt.NDArray[np.bool_],
        *,
        final: bool = False,
    ) -> None:
        """Write the mask that an agent's infos or its observation have."""
        spaces = self._spaces
        name = spaces.agents[agent]
        mask = infos.get(name, {}).get("action_mask")
        if mask is None and spaces.mask_in_observation[agent] and name in observations:
            mask = observations[name]["action_mask"]
        spaces.action.write_mask(agent, mask, masks[env, agent], env_id=self.spec.id, env=env, final=final)

    def _write_observation(self, agent: int, observation: Any, into: npt.NDArray[Any]) -> None:
        if self._spaces.mask_in_observation[agent]:
            observation = observation["observation"]
        self._spaces.observation.write(agent, observation, into)

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
