"""Does a mixture beat a single agent at the same number of frames?

    B  mixture        agents that are repeatedly replaced by clones of the BigAgent
    A  single         one agent that collects all the frames
       single-resets  one agent with the same resets and the same gradient steps: are resets what helps?
       no-resets      the mixture whose agents are never replaced: is it the shared replay?

Every method has the same number of frames and mixture rounds, and each agent the same batch size. All are scored by
greedy episodes on the same seeds: of the BigAgent, or of the one agent if there is none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millpond.config import MixtureRecipe, load
from millpond.errors import MillpondError
from millpond.planner import MixturePlan
from millpond.planner import plan as make_plan

METHODS = ("mixture", "single", "single-resets", "no-resets", "live")
DEFAULT_METHODS = METHODS[:4]
MODES = {"mixture": "rounds"}
ROUNDS = 8
REPLAY_RATIO = 1.0  # transitions that the BigAgent learns from in a mixture round, per transition collected in it
EVALUATION_SEED = 7_000_003  # differs from the seeds of the evaluations during a run


@dataclass(frozen=True)
class ExperimentSettings:
    """Settings of the experiment. Games, seeds and methods may be added later; runs are comparable if the rest agrees."""

    frames: int = 1_048_576
    seeds: int = 3
    games: tuple[str, ...] = ("minatar:breakout", "minatar:asterix")
    methods: tuple[str, ...] = DEFAULT_METHODS
    recipe: str = "mixture"
    rounds: int = ROUNDS
    episodes: int = 100
    overrides: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TrainingJob:
    """Name of a run, its recipe, and overrides."""

    name: str
    recipe: str
    overrides: tuple[str, ...]


def check_settings(settings: ExperimentSettings) -> None:
    """Refuse invalid settings before anything runs."""
    unknown = [method for method in settings.methods if method not in METHODS]
    if unknown:
        raise MillpondError(f"methods={','.join(unknown)} are unknown; there are {', '.join(METHODS)}")
    if settings.seeds < 1 or settings.episodes < 1 or settings.rounds < 1 or not settings.games:
        raise MillpondError("an experiment needs at least one seed, one game, one round and one episode")
    for game in settings.games:
        for method in settings.methods:
            load(settings.recipe, run_overrides(settings, game, method, 1))


def all_jobs(settings: ExperimentSettings) -> list[TrainingJob]:
    """All runs, seed by seed, so that an interrupted experiment can be analysed for the seeds that are complete."""
    return [
        TrainingJob(run_name(game, method, seed), settings.recipe, run_overrides(settings, game, method, seed))
        for seed in range(1, settings.seeds + 1)
        for game in settings.games
        for method in settings.methods
    ]


def run_name(game: str, method: str, seed: int) -> str:
    return f"{game.replace(':', '-')}.{method}.seed{seed}"


def run_overrides(settings: ExperimentSettings, game: str, method: str, seed: int) -> tuple[str, ...]:
    """Overrides of one run.

    A mixture round has the same frames for every method: a single agent collects as often as all agents together.
    """
    base = load(settings.recipe, settings.overrides).recipe
    if not isinstance(base, MixtureRecipe):
        raise MillpondError(
            f"recipe {settings.recipe} is of kind {base.kind}; this experiment needs one of kind mixture"
        )
    agents, alone = base.mixture.agents, method.startswith("single")
    planned = make_plan(settings.recipe, overrides_of_game(settings, game)).plan
    assert isinstance(planned, MixturePlan)
    frames_per_collection = (agents * planned.transitions_per_collection) * planned.frame_skip
    collections = max(1, settings.frames // (settings.rounds * frames_per_collection))
    updates = max(
        1, round(REPLAY_RATIO * collections * agents * planned.transitions_per_collection / planned.big_batch_size)
    )
    changes = {
        "env.id": game,
        "seed": seed,
        "mixture.mode": MODES.get(method, method),
        "mixture.agents": 1 if alone else agents,
        "mixture.total_frames": settings.frames,
        "mixture.collections_per_round": collections * (agents if alone else 1),
        "mixture.big_updates": updates,
        "eval.interval": 1,
        "log.tensorboard": "false",
    }
    if method == "live":
        changes["mixture.own_fraction"] = 1 / (agents + 1)
    return (*settings.overrides, *(f"{key}={value}" for key, value in changes.items()))


def overrides_of_game(settings: ExperimentSettings, game: str) -> tuple[str, ...]:
    """Overrides that all methods share in a game."""
    return (*settings.overrides, f"env.id={game}")


def run_folder(folder: Path, game: str, method: str, seed: int) -> Path:
    return folder / "runs" / run_name(game, method, seed)
