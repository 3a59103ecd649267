"""Collectives between three real processes; a single process calls none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from millpond.distributed import (
    ALONE,
    PerRank,
    Place,
    RankError,
    RankLostError,
    Ranks,
    restore_over_ranks,
    save_over_ranks,
)
from millpond.errors import MillpondError
from millpond.store import Checkpoints, Parts, RandomState, ResumeError
from tests.support.rank_processes import run_ranks

SILENCE = 5.0  # seconds


class Counter:
    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def caught(ranks: Ranks, work: Any) -> tuple[str, str, int, bool]:
    try:
        ranks.run_on_first(work)
    except MillpondError as error:
        return type(error).__name__, str(error), error.exit_code, error.quiet
    raise AssertionError("nothing was raised")


def refuse() -> None:
    raise RankError("no room")


def call_collectives(ranks: Ranks, folder: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    assert ranks.all_reduce is not None
    tensor = torch.full((2,), float(ranks.rank + 1))
    ranks.all_reduce(tensor)
    results["sum"] = tensor.tolist()
    results["all_gathered"] = ranks.all_gather({"rank": ranks.rank, "text": "x" * ranks.rank})
    results["gathered"] = ranks.gather(b"ab" * ranks.rank)
    results["broadcast"] = ranks.broadcast(b"first" if ranks.first else b"a longer text of another rank")
    results["all_gathered_bytes"] = ranks.all_gather_bytes(b"cd" * ranks.rank)
    ranks.barrier()
    results["from_first"] = ranks.run_on_first(lambda: [os.getpid(), None])
    results["failed"] = caught(ranks, refuse)
    results["threads"] = torch.get_num_threads()

    torch.manual_seed(ranks.rank)
    module, own = nn.Linear(3, 2), Counter()
    ranks.broadcast_tensors(module.state_dict().values())
    own.number = 10 + ranks.rank
    sampler = np.random.default_rng(ranks.rank)
    random = RandomState(sampler=sampler)
    parts = Parts(weights={"policy": module}, state={"own": PerRank(ranks, own), "random": PerRank(ranks, random)})
    checkpoints = Checkpoints(Path(folder))
    save_over_ranks(ranks, checkpoints, 7, parts, None)
    drawn = float(sampler.random())
    before = module.weight.tolist()
    own.number = 0
    nn.init.zeros_(module.weight)
    results["restored"] = restore_over_ranks(ranks, checkpoints, parts)
    assert float(sampler.random()) == drawn
    assert module.weight.tolist() == before
    results["weights"], results["own"] = before, own.number

    if ranks.rank == 2:
        nn.init.ones_(module.weight)
    with pytest.raises(RankError, match="weights of rank 2 differ from those of rank 0"):
        save_over_ranks(ranks, checkpoints, 8, parts, None)
    return results


def test_collectives_of_three_ranks(tmp_path: Path) -> None:
    results = run_ranks(3, call_collectives, str(tmp_path))
    for rank, answer in enumerate(results):
        assert answer["sum"] == [6.0, 6.0]
        assert answer["all_gathered"] == [{"rank": other, "text": "x" * other} for other in range(3)]
        assert answer["gathered"] == ([b"", b"ab", b"abab"] if rank == 0 else [])
        assert answer["broadcast"] == b"first"
        assert answer["all_gathered_bytes"] == [b"", b"cd", b"cdcd"]
        assert answer["from_first"] == results[0]["from_first"]
        name = "RankError" if rank == 0 else "FirstRankFailedError"
        assert answer["failed"] == (name, "no room", 1, rank > 0)
        assert answer["threads"] == max(1, len(os.sched_getaffinity(0)) // 3)
        assert answer["restored"] is True
        assert answer["weights"] == results[0]["weights"]
        assert answer["own"] == 10 + rank
    assert Checkpoints(tmp_path).updates() == [7]
    # The checkpoint of three ranks is not one of a single rank.
    random = PerRank(ALONE, RandomState(sampler=np.random.default_rng()))
    parts = Parts(weights={"policy": nn.Linear(3, 2)}, state={"own": PerRank(ALONE, Counter()), "random": random})
    with pytest.raises(
        ResumeError, match=r"by 3 ranks, and this run has 1 rank.*torchrun --nproc-per-node=3 -m -- millpond"
    ):
        restore_over_ranks(ALONE, Checkpoints(tmp_path), parts)


def test_one_rank_calls_no_collective() -> None:
    assert ALONE.alone
    assert ALONE.first
    assert ALONE.all_reduce is None
    assert ALONE.all_gather([1]) == [[1]]
    assert ALONE.gather(b"a") == ALONE.all_gather_bytes(b"a") == [b"a"]
    assert ALONE.broadcast(b"a") == b"a"
    assert ALONE.run_on_first(lambda: 3) == 3
    counter = Counter()
    assert PerRank(ALONE, counter).state_dict() == counter.state_dict()
    assert not torch.distributed.is_initialized()


def test_place_comes_from_the_variables_of_torchrun() -> None:
    said = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert Place.here(said) == Place()  # a scheduler may set some of these, too
    place = Place.here({**said, "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    assert place == Place(5, 8, 1, 4)
    assert place.launcher == "torchrun --nnodes=2 --nproc-per-node=4 -m -- "
    assert Place(1, 2, 1, 2).launcher == "torchrun --nproc-per-node=2 -m -- "
    assert Place().launcher == ""


def fall_silent(ranks: Ranks) -> str:
    if not ranks.first:
        time.sleep(3 * SILENCE)
        return ""
    try:
        ranks.all_gather("is anybody there?")
    except RankLostError as error:
        return str(error)
    return "nothing was missed"


@pytest.mark.slow
def test_rank_that_hangs_times_out() -> None:
    message, _ = run_ranks(2, fall_silent, timeout=timedelta(seconds=SILENCE))
    assert message.startswith("a rank has died or does not respond (")


ENDING = """
import atexit, ctypes, sys
from millpond.distributed.ranks import run_and_end_process

libc = ctypes.CDLL(None)
assert libc.__cxa_atexit(libc.abort, None, None) == 0  # as destructors of gloo do now and then
atexit.register(print, "cleaned up")

def work():
    print("worked")
    {last}

run_and_end_process(work)
"""


@pytest.mark.parametrize(
    ("last", "code"), [("pass", 0), ("sys.exit(2)", 2), ("sys.exit()", 0), ("sys.exit('no')", 1), ("1 / 0", 1)]
)
def test_rank_ends_with_its_exit_code_although_a_destructor_would_abort(last: str, code: int) -> None:
    words = [sys.executable, "-c", ENDING.format(last=last)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "worked\ncleaned up\n"
    assert ("ZeroDivisionError" in ended.stderr) == (last == "1 / 0")
