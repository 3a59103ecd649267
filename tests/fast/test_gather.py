"""Rows gathered by compiled code equal those gathered by torch, whatever the type and size of a step."""

from __future__ import annotations

import pytest
import torch

from millpond.envs.spec import ActionSpec
from millpond.fast.gather import _words, gather_fast, gather_time_first
from millpond.rollout.micro_batch import gather
from millpond.rollout.rows import as_sequences
from tests.support.update_rows import AGENTS as ROW_AGENTS
from tests.support.update_rows import OBSERVATIONS, WEIGHT, random_rows
from tests.support.update_rows import ROWS as NUM_ROWS

CPU = torch.device("cpu")
ROWS, STEPS, AGENTS = 6, 5, 3


@pytest.mark.parametrize("shape", [(), (2,), (4, 7)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32, torch.float64])
def test_sequences_equal_plain_indexing(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    stored = torch.randint(0, 100, (ROWS, STEPS, AGENTS, *shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = torch.tensor([4, 0, 4, 5])
    out = torch.empty(STEPS, len(rows), AGENTS, *shape, dtype=dtype)
    gather_time_first(_words(stored.numpy()), rows.numpy(), _words(out.numpy()))
    expected = stored[rows].transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(out.flatten(1, 2).transpose(0, 1), expected, rtol=0, atol=0)
    plain = as_sequences(stored, rows, CPU)
    torch.testing.assert_close(plain, expected, rtol=0, atol=0)
    assert plain.transpose(0, 1).is_contiguous(), "time is first in memory"


@pytest.mark.parametrize("row", [NUM_ROWS, -1])
@pytest.mark.parametrize("way", ["fast", "plain"])
def test_row_that_does_not_exist_is_refused(row: int, way: str) -> None:
    rows, advantages = random_rows(ActionSpec.discrete(4), False, OBSERVATIONS["vector"])
    picked, weight = torch.tensor([0, row]), WEIGHT[:2]
    with pytest.raises(IndexError):
        gather_fast(rows, advantages, picked, weight) if way == "fast" else gather(
            rows, advantages, picked, weight, CPU
        )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_micro_batch_equals_that_of_torch(observation: str, masked: bool) -> None:
    rows, advantages = random_rows(ActionSpec.multidiscrete((3, 2)), masked, OBSERVATIONS[observation])
    picked, weight = torch.tensor([7, 0, 3]), WEIGHT[[7, 0, 3]]
    fast, plain = gather_fast(rows, advantages, picked, weight), gather(rows, advantages, picked, weight, CPU)
    for name, expected in vars(plain).items():
        array = getattr(fast, name)
        assert (array is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(array, expected, rtol=0, atol=0)
            if name != "state":
                assert array.transpose(0, 1).is_contiguous(), f"{name}: time is first in memory"
    assert not plain.reset[:, 0].any()
    assert len(plain.reset) == 3 * ROW_AGENTS
