"""The trainer of each kind of recipe, behind one face: what the command line and the Python interface drive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millpond.config import Loaded, MixtureRecipe, PPORecipe, RewardRecipe
from millpond.distributed import ALONE, Ranks
from millpond.errors import MillpondError
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


def require_trainer(loaded: Loaded) -> RecordedData | None:
    """Refuse what cannot be trained, before a folder is made for it. Data that was read for that is given back."""
    require_machine(loaded.recipe)
    if not isinstance(loaded.recipe, RewardRecipe) or not loaded.recipe.reward.reward_only:
        return None
    from millpond.trainers.reward.setup import audit_recorded, open_recorded

    recorded = open_recorded(loaded.recipe)
    audit_recorded(loaded.recipe, recorded)
    return recorded


def make_trainer(
    loaded: Loaded,
    run: Run,
    *,
    weights_from: Run | None = None,
    ranks: Ranks = ALONE,
    recorded: RecordedData | None = None,
) -> Trainer:
    """The trainer for a recipe of any kind. Heavy modules are imported for the kind that is asked for.

    `recorded` is what `require_trainer` gave, if it was asked.
    """
    if isinstance(loaded.recipe, PPORecipe):
        from millpond.trainers.ppo.trainer import PPOTrainer

        return PPOTrainer(loaded, run, weights_from=weights_from, ranks=ranks)
    if isinstance(loaded.recipe, MixtureRecipe):
        from millpond.trainers.mixture.trainer import MixtureTrainer

        return MixtureTrainer(loaded, run, weights_from=weights_from, ranks=ranks)
    if not ranks.alone:
        raise MillpondError(
            f"{loaded.name} is of kind {loaded.recipe.kind}, which is trained by one process; "
            f"start it without torchrun (recipes of the kinds ppo and mixture are trained by several)"
        )
    from millpond.trainers.reward.trainer import RewardTrainer

    return RewardTrainer(loaded, run, weights_from=weights_from, recorded=recorded)
