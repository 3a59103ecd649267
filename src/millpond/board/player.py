"""Play one episode of a run's policy and print it as JSON, for the board: `python -m millpond.board.player RUN [--best]`.

Each step has what the env showed before it, the actions of the agents, and their rewards. A grid world is described by its
state: the map once, then the cells that change, agents and what they carry. Other envs are drawn: PNG images in base64.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_STEPS = 1_000  # that are recorded
MAX_FRAME = 320  # pixels; larger frames are reduced by a whole factor
MAX_FRAME_BYTES = 20 << 20  # of all frames


def main() -> None:
    """Print an episode, or why there is none."""
    parser = argparse.ArgumentParser(description="Play one episode and print it as JSON.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    sys.path.append(os.getcwd())  # for custom environments, as the command line does
    from millpond.errors import MillpondError

    printed, sys.stdout = sys.stdout, sys.stderr  # whatever an env prints
    try:
        episode = play(given.run, best=given.best, seed=given.seed)
    except MillpondError as error:
        episode = {"error": str(error)}
    printed.write(json.dumps(episode, allow_nan=False))


def play(folder: Path, *, best: bool, seed: int | None) -> dict[str, Any]:
    """Play an episode. Code that the run names is imported only if it is trusted already."""
    import torch

    from millpond.envs.env_batch import EnvBatch
    from millpond.envs.families import require_extra
    from millpond.trainers.common.envs import evaluation_vector
    from millpond.trainers.common.play import evaluate, playing_env
    from millpond.trainers.common.policy import load_policy

    torch.set_num_threads(1)
    policy = load_policy(str(folder), best=best, trust=False)
    seed = policy.recipe.eval.seed if seed is None else seed
    env_batches: list[EnvBatch] = []
    recording: Recording | None = None

    def record() -> None:
        nonlocal recording
        if recording is None:
            recording = Recording(env_batches[-1])
        recording.add()

    with playing_env(policy, None, ()) as env:
        require_extra(env.id)
        with evaluation_vector(env, policy.recipe.vector, 1, env_batches=env_batches) as vector:
            evaluation = evaluate(
                policy.network,
                vector,
                episodes=1,
                seed=seed,
                device=policy.device,
                deterministic=policy.acts_greedily,
                before_step=record,
            )
            assert recording is not None
            recording.add_outcome()
    return {
        **recording.to_json(evaluation.lengths[0]),
        "env": env.id,
        "seed": seed,
        "policy": policy.description,
        "actions_are": evaluation.actions,
        "returns": list(evaluation.returns_by_agent[0]),
        "length": evaluation.lengths[0],
        "info": evaluation.infos[0],
    }


class Recording:
    """What an env shows step by step. `add` is called before each step: the buffers then hold the step before."""

    def __init__(self, env_batch: Any) -> None:
        self._env_batch = env_batch
        self._calls = 0
        self._actions: list[Any] = []
        self._rewards: list[list[float]] = []
        self._frames: list[str] = []
        self._frame_bytes = 0
        self._caption = ""
        self._grid = GridRecording(env_batch) if env_batch.spec.id == "grid" else None

    def add(self) -> None:
        if self._calls:
            self.add_outcome()
        self._calls += 1
        if self._calls > MAX_STEPS:
            return
        if self._grid is not None:
            self._grid.add()
        elif not self._caption and self._frame_bytes < MAX_FRAME_BYTES:
            self._draw()

    def add_outcome(self) -> None:
        """Record actions and rewards of the step that was taken last."""
        if len(self._rewards) < MAX_STEPS:
            buffers = self._env_batch.buffers
            self._actions.append(np.round(buffers.action[0].astype(np.float64), 3).tolist())
            self._rewards.append([float(f"{value:.6g}") for value in buffers.reward[0].tolist()])

    def _draw(self) -> None:
        from millpond.envs.env_batch import EnvError
        from millpond.envs.render import render_rgb

        try:
            data = png(render_rgb(self._env_batch, 0))
        except EnvError as error:
            self._caption = str(error)
            return
        self._frame_bytes += len(data)
        self._frames.append(base64.b64encode(data).decode("ascii"))

    def to_json(self, length: int) -> dict[str, Any]:
        steps = min(length, MAX_STEPS)
        return {
            "steps": steps,
            "action_names": _action_names(self._env_batch.spec.id),
            "actions": self._actions[:steps],
            "rewards": self._rewards[:steps],
            "frames": self._frames[:steps],
            "grid": None if self._grid is None else self._grid.to_json(steps),
            "caption": self._caption,
        }


class GridRecording:
    """The map of a grid world at first, and per step the cells that changed, the agents and what they carry."""

    def __init__(self, env_batch: Any) -> None:
        from millpond.envs.grid.envs import map_cells

        self._envs = env_batch
        self._first = map_cells(env_batch.options, env_batch.state, 0).copy()
        self._before = self._first.copy()
        self._steps: list[dict[str, Any]] = []

    def add(self) -> None:
        from millpond.envs.grid.envs import agent_positions, map_cells

        options, state = self._envs.options, self._envs.state
        cells = map_cells(options, state, 0)
        changed = np.argwhere(cells != self._before)
        self._steps.append(
            {
                "cells": [[int(row), int(column), int(cells[row, column])] for row, column in changed],
                "agents": [list(place) for place in agent_positions(options, state, 0)],
                "carried": state.inventory[0].tolist(),
            }
        )
        self._before = cells.copy()

    def to_json(self, steps: int) -> dict[str, Any]:
        from millpond.envs.grid.envs import AGENT_COLOURS, COLOURS
        from millpond.envs.grid.game import CELL_NAMES, RESOURCES

        return {
            "map": self._first.tolist(),
            "steps": self._steps[:steps],
            "cell_names": CELL_NAMES,
            "resources": RESOURCES,
            "colours": COLOURS.tolist(),
            "agent_colours": AGENT_COLOURS.tolist(),
        }


def _action_names(env_id: str) -> list[str]:
    if env_id != "grid":
        return []
    from millpond.envs.grid.game import ACTION_NAMES

    return list(ACTION_NAMES)


def png(frame: npt.NDArray[np.uint8]) -> bytes:
    """Return a frame as PNG, reduced to at most `MAX_FRAME` pixels."""
    from PIL import Image

    factor = max(1, -(-max(frame.shape[:2]) // MAX_FRAME))
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(frame))
    if factor > 1:
        image = image.reduce(factor)
    image.save(buffer, format="PNG")
    return buffer.getvalue()


if __name__ == "__main__":
    main()
