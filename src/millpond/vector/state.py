"""A vector's whole state as named arrays, so that it can lie in a checkpoint and be loaded without trust."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, Episode
from millpond.plurals import plural
from millpond.vector.crash import VectorError
from millpond.vector.crew import Op
from millpond.vector.fleet import Fleet
from millpond.vector.stretch import Status
from millpond.vector.turns import Turns

State = dict[str, npt.NDArray[Any]]


def save_state(fleet: Fleet, turns: Turns) -> State:
    """Arrays of the vector itself, and `env_batch/SHARD/NAME` for those of each environment."""
    _require_savable(fleet)
    if fleet.seed is None:
        raise VectorError("there is nothing to save before reset(seed)")
    if fleet.mover not in (None, turns) and not fleet.mover.resting:
        raise VectorError("a part is in the middle of its round: receive what it sent and call its rest() first")
    env_batches = fleet.command_all(Op.SAVE)
    waiting = [[_plain(episode) for episode in stretch.ended] for stretch in turns.stretches]
    state: State = {
        "layout": _layout(fleet),
        "seed": np.array(fleet.seed, np.int64),
        "position": np.array(turns.position, np.int64),
        "status": np.array([stretch.status for stretch in turns.stretches], np.int64),
        "episodes": np.frombuffer(json.dumps(waiting).encode(), np.uint8).copy(),
        "seeds": fleet.arena.seeds.copy(),
        "env_steps": fleet.env_steps.copy(),
        "restarts": fleet.restarts.copy(),
        "unreported": fleet.unreported.copy(),
    }
    state |= {f"buffers/{name}": array.copy() for name, array in _buffers(fleet).items()}
    for index, env_batch in enumerate(env_batches):
        state |= {f"environment/{index}/{name}": array for name, array in env_batch.items()}
    return state


def load_state(fleet: Fleet, turns: Turns, state: State) -> None:
    _require_savable(fleet)
    saved, here = state["layout"], _layout(fleet)
    if not np.array_equal(saved, here):
        raise VectorError(
            f"the state is of {_in_words(saved)}, and this vector has {_in_words(here)}: a state goes back only into the "
            f"same sizes"
        )
    env_batches: list[State] = [{} for _ in fleet.layout.shards]
    for name, array in state.items():
        if name.startswith("environment/"):
            _, index, own_name = name.split("/", 2)
            env_batches[int(index)][own_name] = array
    fleet.command_all(Op.LOAD, env_batches)
    for name, array in _buffers(fleet).items():
        array[...] = state[f"buffers/{name}"]
    fleet.seed = int(state["seed"])
    fleet.arena.seeds[:] = state["seeds"]
    fleet.env_steps[:] = state["env_steps"]
    fleet.restarts[:] = state["restarts"]
    fleet.unreported[:] = state["unreported"]
    fleet.mark_restarts()
    if fleet.mover is not None:
        fleet.mover.begin()
    fleet.mover = turns
    turns.position = (int(state["position"][0]), int(state["position"][1]))
    waiting = json.loads(state["episodes"].tobytes())
    for stretch, status, episodes in zip(turns.stretches, state["status"], waiting, strict=True):
        stretch.status = Status(int(status))
        stretch.ended = [Episode(env, tuple(returns), length, info) for env, returns, length, info in episodes]


def _plain(episode: Episode) -> tuple[int, list[float], int, dict[str, float]]:
    """As JSON has it; an environment may have put numpy's numbers where Python's are meant."""
    returns, info = map(float, episode.returns), episode.info.items()
    return int(episode.env), list(returns), int(episode.length), {name: float(value) for name, value in info}


def _layout(fleet: Fleet) -> npt.NDArray[np.int64]:
    layout = fleet.layout
    beside = [layout.trainer_envs] if layout.trainer_envs else []  # states of earlier versions know nothing of it
    return np.array([layout.num_envs, layout.groups, layout.num_workers, *beside], np.int64)


def _in_words(layout: npt.NDArray[np.int64]) -> str:
    envs, groups, workers, *beside = layout.tolist()
    sizes = f"{envs:,} envs in {plural(groups, 'group')} and {plural(workers, 'worker')}"
    return f"{sizes}, of which the trainer steps {beside[0]:,} of each group" if beside else sizes


def _buffers(fleet: Fleet) -> State:
    return {field.name: getattr(fleet.arena.buffers, field.name) for field in fields(Buffers)}


def _require_savable(fleet: Fleet) -> None:
    if not fleet.spec.savable:
        raise VectorError(
            f"{fleet.spec.id} cannot save its state (spec.savable is false): its episodes start afresh after a resume"
        )
