"""Checkpoints of several ranks: rank 0 writes one that holds every rank's state."""

from __future__ import annotations

import hashlib
from typing import Any

from millpond.distributed.ranks import RankError, Ranks, launcher
from millpond.plurals import plural
from millpond.store import Checkpoint, Checkpoints, Parts, ResumeError, Stateful
from millpond.store.tree import tree_from_bytes, tree_to_bytes

KEY = "of_ranks"


class PerRank:
    """A part of a checkpoint that every rank has one of: all are saved, and each rank takes its own back."""

    def __init__(self, ranks: Ranks, owner: Stateful) -> None:
        self._ranks, self._owner = ranks, owner

    def state_dict(self) -> Any:
        if self._ranks.alone:
            return self._owner.state_dict()
        return {KEY: self._ranks.gather(tree_to_bytes(self._owner.state_dict()))}

    def load_state_dict(self, state: Any) -> None:
        saved = len(state[KEY]) if isinstance(state, dict) and KEY in state else 1
        require_ranks(saved, self._ranks.count, "this checkpoint")
        self._owner.load_state_dict(
            state if self._ranks.alone else tree_from_bytes(state[KEY][self._ranks.rank], f"rank {self._ranks.rank}")
        )


def require_ranks(saved: int, here: int, what: str, run: str = "RUN") -> None:
    """Refuse to go on with another number of ranks."""
    if saved != here:
        raise ResumeError(
            f"{what} is of {plural(saved, 'rank')}, and this is {plural(here, 'rank')}: "
            f"envs, rows and generators belong to a rank, so a run keeps its number of them. "
            f"Resume with: {launcher(saved)}millpond train --resume {run}. "
            f"To go on with {plural(here, 'rank')} start a new run with its weights: "
            f"{launcher(here)}millpond train RECIPE --from {run}"
        )


def save_over_ranks(ranks: Ranks, checkpoints: Checkpoints, updates: int, parts: Parts, score: float | None) -> None:
    """Write a checkpoint at rank 0, with the parts of all ranks, once their weights are found to be the same."""
    if not ranks.alone:
        _require_same_weights(ranks, parts)
    if ranks.first:
        checkpoints.save(updates, parts, score)
    else:
        parts.collect(updates)  # gives rank 0 what it gathers


def restore_over_ranks(ranks: Ranks, checkpoints: Checkpoints, parts: Parts) -> bool:
    """Take up the newest whole checkpoint, which rank 0 alone reads; false when there is none."""
    if ranks.alone:
        return checkpoints.restore(parts)
    if not ranks.lead(lambda: checkpoints.restore(parts)):
        return False
    data = b""
    if ranks.first:
        found = checkpoints.load(checkpoints.updates()[-1])
        weights = {part: dict(tensors) for part, tensors in found.weights.items()}
        data = tree_to_bytes([found.updates, weights, dict(found.state), dict(found.values)])
    data = ranks.broadcast(data)
    if not ranks.first:
        parts.restore(Checkpoint(*tree_from_bytes(data, "what rank 0 sent")))
    return True


def _require_same_weights(ranks: Ranks, parts: Parts) -> None:
    """All ranks take the same steps from the same weights, so any difference is a fault and not to be saved."""
    import torch

    digest = hashlib.sha256()
    for part in parts.weights.values():
        for name, tensor in part.state_dict().items():
            digest.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    found = ranks.share(digest.hexdigest())
    others = [rank for rank, other in enumerate(found) if other != found[0]]
    if others:
        raise RankError(
            f"the weights of rank {', '.join(map(str, others))} are not those of rank 0, so the ranks have come apart; "
            f"this is not saved. A policy of one's own must do the same on every rank"
        )
