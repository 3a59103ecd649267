"""Checkpoints of several ranks: rank 0 writes one with the state of every rank."""

from __future__ import annotations

import hashlib
from typing import Any

from millpond.distributed.ranks import RankError, Ranks, launcher
from millpond.formatting import plural
from millpond.store import Checkpoint, Checkpoints, Parts, ResumeError, Stateful
from millpond.store.tree import tree_from_bytes, tree_to_bytes

KEY = "of_ranks"


class PerRank:
    """Part of a checkpoint that differs between ranks: all states are saved, and each rank restores its own."""

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
    """Raise `ResumeError` if the number of ranks has changed."""
    if saved != here:
        raise ResumeError(
            f"{what} was written by {plural(saved, 'rank')}, and this run has {plural(here, 'rank')}: "
            f"envs, rows and generators belong to a rank, so the number of ranks cannot change. "
            f"Resume with: {launcher(saved)}millpond train --resume {run}. "
            f"To use {plural(here, 'rank')}, start a new run with its weights: "
            f"{launcher(here)}millpond train RECIPE --from {run}"
        )


def save_over_ranks(ranks: Ranks, checkpoints: Checkpoints, updates: int, parts: Parts, score: float | None) -> None:
    """Write a checkpoint on rank 0 with the parts of all ranks, after checking that their weights are equal."""
    if not ranks.alone:
        _require_same_weights(ranks, parts)
    if ranks.first:
        checkpoints.save(updates, parts, score)
    else:
        parts.collect(updates)  # takes part in the gathering of rank 0


def restore_over_ranks(ranks: Ranks, checkpoints: Checkpoints, parts: Parts) -> bool:
    """Restore the newest undamaged checkpoint, which only rank 0 reads; return False if there is none."""
    if ranks.alone:
        return checkpoints.restore(parts)
    if not ranks.run_on_first(lambda: checkpoints.restore(parts)):
        return False
    data = b""
    if ranks.first:
        checkpoint = checkpoints.load(checkpoints.updates()[-1])
        weights = {part: dict(tensors) for part, tensors in checkpoint.weights.items()}
        data = tree_to_bytes([checkpoint.updates, weights, dict(checkpoint.state), dict(checkpoint.values)])
    data = ranks.broadcast(data)
    if not ranks.first:
        parts.restore(Checkpoint(*tree_from_bytes(data, "the checkpoint from rank 0")))
    return True


def _require_same_weights(ranks: Ranks, parts: Parts) -> None:
    """Raise `RankError` if weights differ between ranks: all take the same steps, so a difference is a bug."""
    import torch

    digest = hashlib.sha256()
    for part in parts.weights.values():
        for name, tensor in part.state_dict().items():
            digest.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    digests = ranks.all_gather(digest.hexdigest())
    others = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        raise RankError(
            f"the weights of rank {', '.join(map(str, others))} differ from those of rank 0, so the ranks have diverged; "
            f"no checkpoint is written. A custom policy must compute the same on every rank"
        )
