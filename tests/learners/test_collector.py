"""Epsilon and epsilon-greedy actions."""

from __future__ import annotations

import pytest
import torch

from millpond.learners import Epsilon, epsilon_greedy
from millpond.learners.collector import allowed_action


def test_epsilon_is_the_fraction_of_random_actions() -> None:
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(20_000, 4)
    chosen = epsilon_greedy(q, 0.4, torch.Generator().manual_seed(0))
    shares = torch.bincount(chosen, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.7, 0.1, 0.1]), atol=0.01, rtol=0)
    assert epsilon_greedy(q[:9], 0.0, torch.Generator()).tolist() == [1] * 9


def test_forbidden_actions_are_neither_best_nor_random() -> None:
    q = torch.tensor([[0.0, 9.0, 1.0, 0.0]]).expand(20_000, 4)
    mask = torch.tensor([[True, False, True, True]]).expand(20_000, 4)
    chosen = epsilon_greedy(q, 0.6, torch.Generator().manual_seed(0), mask)
    shares = torch.bincount(chosen, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.2, 0.0, 0.6, 0.2]), atol=0.01, rtol=0)


def test_allowed_action_is_the_one_of_that_rank() -> None:
    mask = torch.tensor([[False, True, False, True, True], [False] * 5, [False, False, False, False, True]])
    draws = [0.0, 0.34, 0.67, 1 - 2**-24]
    chosen = [allowed_action(torch.full((3,), draw), mask).tolist() for draw in draws]
    assert chosen == [[1, 0, 4], [3, 1, 4], [4, 3, 4], [4, 4, 4]]  # a mask that allows nothing allows all


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
