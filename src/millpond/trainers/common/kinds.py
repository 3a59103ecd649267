"""The trainer of each kind of recipe, behind one face: what the command line and the Python interface drive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from millpond.config import Loaded
from millpond.distributed import ALONE, Ranks
from millpond.errors import MillpondError
from millpond.kinds import KINDS, Kind
from millpond.store import Run
from millpond.trainers.common.session import require_machine

if TYPE_CHECKING:
    from millpond.trainers.reward.setup import RecordedData


class Trainer(Protocol):
    """Everything of one run."""

    def train(self) -> None:
        """Run to the end, or to where it is stopped."""

    def close(self) -> None:
        """End workers and close files."""

    def opening(self) -> list[str]:
        """Lines to print before training."""

    def summary(self) -> list[str]:
        """Lines to print when the run is over; none where it was stopped before its end."""


@dataclass(frozen=True)
class Player:
    """The network that plays for a run, before it has its weights."""

    network: Any
    weights: str  # their name in a checkpoint
    greedy: bool  # evaluated with its best actions; else it samples them
    description: str = ""  # of what plays, if that is not the whole run after all its updates


def require_trainer(loaded: Loaded) -> RecordedData | None:
    """Refuse what cannot be trained before a folder is made for it. Return the recorded data if it was read for that."""
    require_machine(loaded.recipe)
    prepare = KINDS[loaded.recipe.kind].prepare
    return prepare.load()(loaded.recipe) if prepare is not None else None


def make_trainer(
    loaded: Loaded,
    run: Run,
    *,
    weights_from: Run | None = None,
    ranks: Ranks = ALONE,
    recorded: RecordedData | None = None,
) -> Trainer:
    """Build the trainer of a recipe of any kind. Only the modules of that kind are imported.

    `recorded` is what `require_trainer` returned, if it was called.
    """
    kind = KINDS[loaded.recipe.kind]
    options: dict[str, Any] = {"recorded": recorded} if kind.prepare is not None else {}
    if _trained_by_ranks(kind):
        options["ranks"] = ranks
    elif not ranks.alone:
        several = " and ".join(other.name for other in KINDS.values() if _trained_by_ranks(other))
        raise MillpondError(
            f"{loaded.name} is of kind {kind.name}, which is trained by one process; "
            f"start it without torchrun (recipes of the kinds {several} are trained by several)"
        )
    return kind.trainer.load()(loaded, run, weights_from=weights_from, **options)


def _trained_by_ranks(kind: Kind) -> bool:
    return kind.planner.load().ranks is not None
