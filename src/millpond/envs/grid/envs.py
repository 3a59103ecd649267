"""The grid environment: a batch of envs over one set of arrays, stepped by compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, Episode
from millpond.envs.episodes import EpisodeBook
from millpond.envs.errors import EnvError
from millpond.envs.grid.kernels import reset_envs, step_envs
from millpond.envs.grid.render import render_rgb, render_text
from millpond.envs.grid.spec import ACTION_NAMES, INFO_NAMES, GridOptions, describe, options
from millpond.envs.grid.state import Rules, State
from millpond.envs.saving import buffer_arrays, load_arrays, save_arrays
from millpond.envs.seeds import check_seeds


class GridEnvs:
    """See `GridOptions` for the rules. Disjoint slices may be stepped by several threads at once."""

    def __init__(self, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.spec = describe(mapping)
        self.options: GridOptions = options(mapping)
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self.state = State.allocate(self.options, num_envs)
        self.rules = Rules.of(self.options)
        self._book = EpisodeBook(num_envs, self.spec.num_agents)

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.state.random[:] = check_seeds(seeds, self.num_envs)
        self._book.begin_all()
        buffers = self.buffers
        buffers.reward[:] = 0.0
        buffers.terminated[:] = False
        buffers.truncated[:] = False
        buffers.alive[:] = True
        self._check(reset_envs(self.rules, self.state, buffers.observation))

    def step(self, first: int, last: int) -> None:
        buffers = self.buffers
        ended = step_envs(
            self.rules,
            self.state,
            first,
            last,
            buffers.action,
            buffers.observation,
            buffers.final_observation,
            buffers.reward,
            buffers.truncated,
        )
        if ended:
            self._check(ended)
            for env in first + np.flatnonzero(buffers.truncated[first:last, 0]):
                made = zip(INFO_NAMES, self.state.ended_made[env], strict=True)
                length = int(self.state.ended_length[env])
                self._book.append(
                    int(env), self.state.ended_returns[env], length, {name: float(value) for name, value in made}
                )

    def episodes(self) -> list[Episode]:
        return self._book.drain()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        return (
            save_arrays("grid", self.state._asdict())
            | save_arrays("buffers", buffer_arrays(self.buffers))
            | self._book.save_state()
        )

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_arrays("grid", self.state._asdict(), state, env_id="grid")
        load_arrays("buffers", buffer_arrays(self.buffers), state, env_id="grid")
        self._book.load_state(state)

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        """The whole map of one env as an image."""
        return render_rgb(self.options, self.state, env)

    def render_text(self, env: int) -> str:
        """The whole map of one env as lines of text, with what the agents carry."""
        return render_text(self.options, self.state, env)

    def close(self) -> None:
        """Nothing is held but arrays."""

    def _check(self, code: int) -> None:
        """Say what a kernel's negative code means."""
        if code >= 0:
            return
        if code < -self.num_envs:
            env = -1 - self.num_envs - code
            raise EnvError(
                f"env 'grid': env {env} was given the actions {self.buffers.action[env].tolist()}, but an action is "
                f"one of 0..{len(ACTION_NAMES) - 1} ({', '.join(ACTION_NAMES)})"
            )
        rules = self.options
        raise EnvError(
            f"env 'grid': no room was left for all objects of env {-1 - code} on the map of "
            f"{rules.width}x{rules.height}; enlarge width or height, or take walls away (walls={rules.walls})"
        )
