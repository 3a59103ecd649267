"""MettaGrid's C++ core, driven directly: each env is one simulation, which reads and writes the caller's buffers.

Each episode is a new simulation, with a map seed and a core seed from the env's own random stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvError, EpisodeStats
from millpond.envs.episode_tracker import EpisodeTracker
from millpond.envs.mettagrid.scenario import Scenario, parse_mettagrid_options
from millpond.envs.seeds import check_seeds, draw

SEED_SHIFT = np.uint64(33)  # the core takes 31 bits


class MettaGridEnvs:
    """N simulations of one scenario."""

    def __init__(self, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.options = parse_mettagrid_options(mapping)
        self._scenario = Scenario(self.options)
        self.spec = self._scenario.spec
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        agents = self.spec.num_agents
        # The core takes indices into the config's whole list of actions. If the policy's actions come first in it, and there
        # is no second choice, they are these indices, and the core reads them in place.
        self._ids = self._scenario.action_ids
        self._in_place = self._scenario.vibe_ids is None and bool((self._ids == np.arange(len(self._ids))).all())
        self._action = self.buffers.action if self._in_place else np.zeros((num_envs, agents), np.int32)
        self._choices = np.array(self.spec.action.sizes, np.uint32)
        self._vibe = np.zeros((num_envs, agents), np.int32)
        self._random = np.zeros(num_envs, np.uint64)
        self.cores: list[Any] = [None] * num_envs
        self._steps: list[Any] = [None] * num_envs
        self._tracker = EpisodeTracker(num_envs, agents)
        self._progress = np.zeros(1, np.int64)

    def watch(self, progress: npt.NDArray[np.int64]) -> None:
        """Write the env that is being stepped or reset to `progress[0]`, so that the error of a crash can name it."""
        self._progress = progress

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._random[:] = check_seeds(seeds, self.num_envs)
        self._tracker.reset()
        self.buffers.alive[:] = True
        for env in range(self.num_envs):
            self._begin(env)

    def step(self, first: int, last: int) -> None:
        terminated, truncated = self.buffers.terminated[first:last], self.buffers.truncated[first:last]
        self._convert_actions(first, last)
        terminated[:] = False
        truncated[:] = False
        for env, step in enumerate(self._steps[first:last], first):
            self._progress[0] = env
            step()
        if self._scenario.end_stats:
            self._end_by_stats(first, last)
        if np.count_nonzero(terminated) or np.count_nonzero(truncated):
            for env in (first + np.flatnonzero(terminated.all(1) | truncated.all(1))).tolist():
                self._end(env)

    def _convert_actions(self, first: int, last: int) -> None:
        """Convert actions to the core's. The core ignores an invalid action; here it is an error."""
        actions = self.buffers.action[first:last]
        # As unsigned numbers, so that one comparison finds negative ones too.
        wrong = actions.view(np.uint32) >= self._choices
        if np.count_nonzero(wrong):
            env = first + int(np.argwhere(wrong)[0, 0])
            raise EnvError(
                f"env 'mettagrid': env {env} was given the actions {self.buffers.action[env].tolist()}, but they must "
                f"be at least 0 and below {self._choices.tolist()}"
            )
        if self._in_place:
            return
        choices = actions if actions.ndim == 3 else actions[..., None]
        self._action[first:last] = self._ids[choices[..., 0]]
        if self._scenario.vibe_ids is not None:
            self._vibe[first:last] = self._scenario.vibe_ids[choices[..., 1]]

    def _end_by_stats(self, first: int, last: int) -> None:
        """Truncate episodes in which a game statistic has reached the threshold of the config, as MettaGrid does."""
        for env in range(first, last):
            for name, threshold in self._scenario.end_stats.items():
                value = self.cores[env].get_game_stat(name)
                if value is not None and value >= threshold:
                    self.buffers.truncated[env] = True

    def _begin(self, env: int) -> None:
        """Start a new simulation; the core clears rewards and flags and writes the first observation."""
        self._progress[0] = env
        stream = self._random[env : env + 1]
        map_seed, core_seed = (int(draw(stream)[0] >> SEED_SHIFT) for _ in range(2))
        core = self._scenario.new_core(map_seed, core_seed)
        buffers = self.buffers
        core.set_buffers(
            buffers.observation[env],
            buffers.terminated[env],
            buffers.truncated[env],
            buffers.reward[env],
            self._action[env],
            self._vibe[env],
        )
        self.cores[env], self._steps[env] = core, core.step

    def _end(self, env: int) -> None:
        buffers = self.buffers
        buffers.final_observation[env] = buffers.observation[env]
        core = self.cores[env]  # it counts returns and lengths itself
        info = agent_means(core.get_episode_stats())
        self._tracker.add_ended(env, core.get_episode_rewards(), int(core.current_step), info)
        saved = [(array, array[env].copy()) for array in (buffers.reward, buffers.terminated, buffers.truncated)]
        self._begin(env)
        for array, values in saved:
            array[env] = values

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        raise EnvError("the state of env 'mettagrid' cannot be saved: its core does not export it; see spec.savable")

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        raise EnvError("the state of env 'mettagrid' cannot be restored: its core does not import it; see spec.savable")

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        """Draw the map, 8 pixels per cell, one colour per kind of object."""
        core = self.cores[env]
        image = np.full((core.map_height, core.map_width, 3), 24, np.uint8)
        kinds = {name: index for index, name in enumerate(core.object_type_names)}
        for thing in core.grid_objects().values():
            column, row = thing["location"][:2]
            hue = 2 * np.pi * kinds[thing["type_name"]] / max(1, len(kinds))
            image[row, column] = 150 + 100 * np.cos(hue - np.array([0.0, 2.1, 4.2]))
        return image.repeat(8, 0).repeat(8, 1)

    def close(self) -> None:
        self.cores, self._steps = [], []


def agent_means(stats: Mapping[str, Any]) -> dict[str, float]:
    """Average the agents' statistics of an episode over agents; a missing one counts as 0."""
    agents = stats["agent"]
    names = sorted({name for agent in agents for name in agent})
    return {name: float(sum(agent.get(name, 0.0) for agent in agents) / len(agents)) for name in names}
