"""Does a mixture beat a single agent at the same number of frames?

    B  mixture        agents that are cloned from the BigAgent again and again
    A  single         one agent that sees all the frames itself
       single-resets  one agent with the same resets and the same gradient steps: are resets what helps?
       no-resets      the mixture whose agents go on uncloned: is it the shared replay?

Every method has the same frames, the same rounds, and each agent the same batch. All are judged by greedy episodes on
the same seeds: of the BigAgent where there is one, and of the one agent where there is none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millpond.config import MixtureRecipe, load
from millpond.errors import MillpondError
from millpond.experiments.jobs import TrainingJob
from millpond.planner import MixturePlan
from millpond.planner import plan as make_plan

METHODS = ("mixture", "single", "single-resets", "no-resets", "live")
DEFAULT_METHODS = METHODS[:4]
MODES = {"mixture": "rounds"}
ROUNDS = 8
REPLAY = 1.0  # the BigAgent learns from as many transitions in a round as the round has
EVALUATION_SEED = 7_000_003  # apart from those that a run evaluates itself with on its way


@dataclass(frozen=True)
class ExperimentSettings:
    """What is asked. Games and seeds may be added later; the rest is what makes runs comparable."""

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


def check(settings: ExperimentSettings) -> None:
    """Refuse what cannot be run before anything is run."""
    unknown = [method for method in settings.methods if method not in METHODS]
    if unknown:
        raise MillpondError(f"methods={','.join(unknown)} are not known; there are {', '.join(METHODS)}")
    if settings.seeds < 1 or settings.episodes < 1 or settings.rounds < 1 or not settings.games:
        raise MillpondError("an experiment needs at least one seed, one game, one round and one episode")
    for game in settings.games:
        for method in settings.methods:
            load(settings.recipe, overrides_of(settings, game, method, 1))


def all_jobs(settings: ExperimentSettings) -> list[TrainingJob]:
    """Seed by seed, so that an experiment that is broken off can be read for as many seeds as are done."""
    return [
        TrainingJob(run_name(game, method, seed), settings.recipe, overrides_of(settings, game, method, seed))
        for seed in range(1, settings.seeds + 1)
        for game in settings.games
        for method in settings.methods
    ]


def run_name(game: str, method: str, seed: int) -> str:
    return f"{game.replace(':', '-')}.{method}.seed{seed}"


def overrides_of(settings: ExperimentSettings, game: str, method: str, seed: int) -> tuple[str, ...]:
    """A round has the same frames for every method: one agent alone has as many collections as all agents together."""
    base = load(settings.recipe, settings.overrides).recipe
    if not isinstance(base, MixtureRecipe):
        raise MillpondError(
            f"recipe {settings.recipe} is of kind {base.kind}; this experiment needs one of kind mixture"
        )
    agents, alone = base.mixture.agents, method.startswith("single")
    sized = make_plan(settings.recipe, (*settings.overrides, f"env.id={game}")).plan
    assert isinstance(sized, MixturePlan)
    own = (agents * sized.transitions_per_collection) * sized.frame_skip
    collections = max(1, settings.frames // (settings.rounds * own))
    updates = max(1, round(REPLAY * collections * agents * sized.transitions_per_collection / sized.big_batch_size))
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


def run_folder(folder: Path, game: str, method: str, seed: int) -> Path:
    return folder / "runs" / run_name(game, method, seed)
