"""Epsilon and epsilon-greedy actions."""

from __future__ import annotations

import pytest
import torch

from millpond.learners import Epsilon, epsilon_greedy


def test_epsilon_is_the_fraction_of_random_actions() -> None:
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(20_000, 4)
    chosen = epsilon_greedy(q, 0.4, torch.Generator().manual_seed(0))
    shares = torch.bincount(chosen, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.7, 0.1, 0.1]), atol=0.01, rtol=0)
    assert epsilon_greedy(q[:9], 0.0, torch.Generator()).tolist() == [1] * 9


def test_epsilon_restarts_from_the_requested_value() -> None:
    epsilon = Epsilon(1.0, 0.1, over=100)
    epsilon.advance(50)
    assert epsilon.value == pytest.approx(0.55)
    epsilon.reset(0.3)
    assert epsilon.value == pytest.approx(0.3)
    epsilon.advance(50)
    assert epsilon.value == pytest.approx(0.2)
    other = Epsilon(0.0, 0.0, over=1)
    other.load_state_dict(epsilon.state_dict())
    assert other.value == epsilon.value
    epsilon.reset()
    assert epsilon.value == pytest.approx(0.3)
