"""Numbers of a mixture: rounds of collections and gradient steps, ponds, the lake, replay ratios."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from millpond.config import MixtureRecipe
from millpond.config.check import flatten
from millpond.config.mixture import SINGLE, frame_skip, longest_n_step, own_envs, state_shape
from millpond.envs.spec import EnvSpec
from millpond.planner.device_memory import mixture_device_bytes
from millpond.planner.estimate import Measured, TimeEstimate, speed_sections
from millpond.planner.kind import Plan
from millpond.planner.remembered import AT_THE_START
from millpond.replay.schema import Schema, lake_record_bytes, pond_record_bytes

# Stored bytes of an 84 x 84 frame, lz4 frame by frame, as measured on recordings of each game.
MEASURED_FRAME_BYTES = {"gravitar": 640, "montezuma_revenge": 1_021, "pong": 265}
MEASURED_SIDE = 84


@dataclass(frozen=True)
class MixturePlan(Plan):
    """Numbers of a mixture. In a `collection` every env of an agent takes `pqn.num_steps` steps.

    A pond holds consecutive steps, so that each frame is stored once. It is written to the lake when another collection
    might not fit, assuming that every step ends an episode and adds a final observation. The BigPond holds transitions from
    anywhere in the lake, which share no frames: each has its own stack and at most n following frames. In mode live the
    BigPond is a ring buffer that all envs write to.
    """

    mode: str
    agents: int
    envs_per_agent: int
    own_envs: int
    vector: str  # how envs are stepped: the backend, or what `auto` does
    frame_skip: int
    transitions_per_collection: int
    minibatch_transitions: int
    env_steps_per_collection: int
    frames_per_collection: int
    collections_per_round: int
    env_steps_per_round: int
    frames_per_round: int
    total_frames: int
    frames: int
    unused_frames: int
    frames_per_agent: int
    rounds: int
    whole_rounds: int
    last_round_collections: int
    collections: int
    pqn_updates_per_collection: int
    pqn_updates_per_round: int
    pqn_replay_ratio: int
    big_updates: int
    big_batch_size: int
    big_replay_ratio: float
    big_pond_replay_ratio: float
    big_updates_in_all: int
    resets: int
    pond_transitions: int
    pond_rows: int
    collections_per_pour: int
    pours_per_round: int
    own_pond_rows: int
    big_pond_transitions: int
    big_pond_rows: int
    observation_bytes: int | None
    frame_bytes: int | None
    transition_bytes_twice: int | None
    transition_bytes_once: int | None
    pond_bytes: int | None
    own_pond_bytes: int | None
    big_pond_bytes: int | None
    lake_frame_bytes: float | None
    lake_frame_measured: bool
    lake_frame_compressed: bool
    lake_transitions: int
    lake_bytes: int | None
    device_bytes: int | None  # on a GPU, at the peak

    @property
    def updates_in_run(self) -> int:
        return self.agents * self.pqn_updates_per_collection * self.collections + self.big_updates_in_all

    @property
    def env_steps_in_run(self) -> int:
        return self.frames // self.frame_skip


def plan_mixture(recipe: MixtureRecipe, spec: EnvSpec | None, vector: str = AT_THE_START) -> MixturePlan:
    """Derive all numbers. `spec` has single frames. The budget is rounded down to collections; the last round may be short."""
    mixture, pqn, dqn, flat = recipe.mixture, recipe.pqn, recipe.dqn, flatten(recipe)
    own = int(own_envs(flat)) if mixture.mode == "live" else 0
    skip = frame_skip(flat)
    collection = pqn.num_envs * pqn.num_steps
    steps = collection * mixture.agents + own * pqn.num_steps
    collections = mixture.total_frames // (steps * skip)
    if recipe.trainer.total_iterations is not None:
        collections = min(collections, recipe.trainer.total_iterations * mixture.collections_per_round)
    whole_rounds, rest = divmod(collections, mixture.collections_per_round)
    rounds = whole_rounds + (rest > 0)
    uses_lake = mixture.mode != "single"
    per_round = steps * mixture.collections_per_round
    updates = big_updates_of_round(recipe, per_round)
    total_updates = whole_rounds * updates
    if rest:
        total_updates += big_updates_of_round(recipe, steps * rest)
    replayed = updates * dqn.batch_size
    pond_rows = mixture.pond_transitions // pqn.num_envs * pqn.num_envs if uses_lake else 0
    per_pour = mixture.pond_transitions // (2 * collection) if uses_lake else 0
    lake_transitions = collections * steps if uses_lake else 0

    big_pond = mixture.big_pond_transitions
    lanes = mixture.agents * pqn.num_envs + own
    if mixture.mode == "live":
        big_pond_rows = big_pond // lanes * lanes
    else:
        deepest = recipe.env.frame_stack + longest_n_step(dqn.target, dqn.n_step, dqn.n_step_from)
        big_pond_rows = big_pond * deepest if uses_lake else 0
    frame = observation = pond_record = lake_record = lake_frame = None
    measured = compressed = False
    if spec is not None:
        schema = Schema.from_spec(spec, state_shape=state_shape(recipe))
        frame, compressed = spec.observation.nbytes, bool(schema.compressed)
        observation = frame * recipe.env.frame_stack
        lake_frame, measured = _stored_frame(recipe, spec, frame) if compressed else (float(frame), False)
        pond_record, lake_record = pond_record_bytes(schema), lake_record_bytes(schema, lake_frame)
    return MixturePlan(
        mode=mixture.mode,
        agents=mixture.agents,
        envs_per_agent=pqn.num_envs,
        own_envs=own,
        vector=vector,
        frame_skip=skip,
        transitions_per_collection=collection,
        minibatch_transitions=collection // pqn.num_minibatches,
        env_steps_per_collection=steps,
        frames_per_collection=steps * skip,
        collections_per_round=mixture.collections_per_round,
        env_steps_per_round=per_round,
        frames_per_round=per_round * skip,
        total_frames=mixture.total_frames,
        frames=collections * steps * skip,
        unused_frames=max(0, mixture.total_frames - collections * steps * skip),
        frames_per_agent=collections * collection * skip,
        rounds=rounds,
        whole_rounds=whole_rounds,
        last_round_collections=rest,
        collections=collections,
        pqn_updates_per_collection=pqn.num_minibatches * pqn.update_epochs,
        pqn_updates_per_round=pqn.num_minibatches * pqn.update_epochs * mixture.collections_per_round,
        pqn_replay_ratio=pqn.update_epochs,
        big_updates=updates,
        big_batch_size=dqn.batch_size,
        big_replay_ratio=replayed / per_round,
        big_pond_replay_ratio=replayed / big_pond,
        big_updates_in_all=total_updates,
        resets=rounds if mixture.mode in ("rounds", "live", SINGLE[1]) else 0,
        pond_transitions=mixture.pond_transitions,
        pond_rows=pond_rows,
        collections_per_pour=per_pour,
        pours_per_round=-(-mixture.collections_per_round // per_pour) if per_pour else 0,
        big_pond_transitions=mixture.big_pond_transitions,
        own_pond_rows=pond_rows // pqn.num_envs * own,
        big_pond_rows=big_pond_rows,
        observation_bytes=observation,
        frame_bytes=frame,
        transition_bytes_twice=None if observation is None else 2 * observation,
        transition_bytes_once=frame,
        pond_bytes=None if pond_record is None else pond_record * pond_rows,
        own_pond_bytes=None if pond_record is None else pond_record * (pond_rows // pqn.num_envs * own),
        big_pond_bytes=None if pond_record is None else pond_record * big_pond_rows,
        lake_frame_bytes=lake_frame,
        lake_frame_measured=measured,
        lake_frame_compressed=compressed,
        lake_transitions=lake_transitions,
        lake_bytes=None if lake_record is None else round(lake_transitions * lake_record),
        device_bytes=None
        if spec is None or pond_record is None
        else mixture_device_bytes(
            recipe,
            spec,
            collection=collection,
            big_updates=updates,
            big_pond_bytes=pond_record * big_pond_rows,
        ),
    )


def big_updates_of_round(recipe: MixtureRecipe, env_steps: int) -> int:
    """Gradient steps of the BigAgent in a round of `env_steps` steps."""
    if recipe.mixture.mode == "single":
        return 0
    if recipe.mixture.big_updates is not None:
        return recipe.mixture.big_updates
    assert recipe.dqn.replay_ratio is not None  # a rule
    return max(1, round(env_steps * recipe.dqn.replay_ratio / recipe.dqn.batch_size))


def _stored_frame(recipe: MixtureRecipe, spec: EnvSpec, frame: int) -> tuple[float, bool]:
    """Bytes of a frame on disk, from the config, as measured for the game, or uncompressed; and True if measured."""
    if recipe.lake.expected_frame_bytes is not None:
        return recipe.lake.expected_frame_bytes, False
    game = recipe.env.id.partition(":")[2]
    if recipe.env.id.startswith("atari:") and game in MEASURED_FRAME_BYTES:
        side = prod(spec.observation.shape[-2:])
        return MEASURED_FRAME_BYTES[game] * side / MEASURED_SIDE**2, side == MEASURED_SIDE**2
    return float(frame), False


def mixture_speed_settings(recipe: MixtureRecipe) -> dict[str, Any]:
    """Return the settings that decide how long a step takes."""
    return {
        **speed_sections(recipe, "env", "vector", "policy", "mixture"),
        "pqn": recipe.pqn.model_dump(
            mode="json", include={"num_envs", "num_steps", "num_minibatches", "update_epochs"}
        ),
        "dqn": recipe.dqn.model_dump(
            mode="json", include={"target", "batch_size", "n_step", "double", "loss", "target_tau", "random_shift"}
        ),
    }


def estimate_mixture(plan: MixturePlan, measured: Measured) -> TimeEstimate:
    """Scale by the number of collections, of BigAgent updates, and of transitions sampled from the growing lake."""
    sizes, seconds = measured.sizes, measured.seconds
    per_collection = {
        name: seconds[name] / sizes["collections_per_round"] for name in ("collect", "pour", "learn", "other")
    }
    per_update = seconds["train_big"] / sizes["big_updates"] if sizes["big_updates"] else 0.0
    per_transition = seconds["fill"] / sizes["drawn"] if sizes["drawn"] else 0.0
    parts = {name: spent * plan.collections_per_round for name, spent in per_collection.items()}
    parts |= {"fill": per_transition * drawn_in_round(plan, plan.rounds), "train_big": per_update * plan.big_updates}
    fills = sum(drawn_in_round(plan, number + 1) for number in range(plan.rounds)) if per_transition else 0
    whole_run = (
        plan.collections * sum(per_collection.values()) + plan.big_updates_in_all * per_update + fills * per_transition
    )
    return TimeEstimate("round", plan.rounds, parts, whole_run, measured)


def drawn_in_round(plan: MixturePlan, number: int) -> int:
    """Transitions sampled into the BigPond at the end of round `number`, counted from 1."""
    if plan.mode in ("live", "single"):
        return 0
    return min(plan.big_pond_transitions, number * plan.env_steps_per_round, plan.lake_transitions)
