"""The compiled LSTM with few sequences; against torch's cells it is tested in tests/policies/test_cores.py."""

from __future__ import annotations

import pytest
import torch

from millpond.fast.lstm import FastLSTM
from millpond.policies.cores import LSTM
from tests.support.policy_inputs import with_resets

T = 9


@pytest.mark.parametrize("size", [5, 6])  # even and odd
@pytest.mark.parametrize("batch", [3, 4, 5])
def test_results_of_few_sequences_equal_those_among_many(batch: int, size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    plain = LSTM(size)
    core = FastLSTM(plain)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.normal_(generator=generator)
    features = torch.randn(T, 12, size, generator=generator)
    state, reset = torch.randn(12, 2, size, generator=generator), with_resets(generator, T, 12)
    weight = torch.zeros(T, 12, size)
    weight[:, :batch] = torch.randn(T, batch, size, generator=generator)  # only these have gradients
    many = core.unroll(features, state, reset)
    few = core.unroll(*(array.contiguous() for array in (features[:, :batch], state[:batch], reset[:, :batch])))
    torch.testing.assert_close(few, many[:, :batch], rtol=2e-5, atol=2e-6)
    wanted = torch.autograd.grad((many * weight).sum(), list(core.parameters()))
    found = torch.autograd.grad((few * weight[:, :batch]).sum(), list(core.parameters()))
    for gradient, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
