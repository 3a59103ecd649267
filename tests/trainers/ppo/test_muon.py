"""Muon against plain references: its iteration on singular values, a step by hand, and torch's Muon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.trainers.ppo.muon import Muon, orthogonal
from tests.support.ppo_runs import train_small


def orthogonal_reference(matrix: np.ndarray[Any, Any], rounds: int = 5) -> np.ndarray[Any, Any]:
    """Apply the same polynomial to each singular value, by a real decomposition."""
    u, s, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(rounds):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_singular_values_follow_the_polynomial(rows: int, columns: int, scale: float, seed: int) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * scale
    expected = orthogonal_reference(matrix.numpy())
    np.testing.assert_allclose(orthogonal(matrix).numpy(), expected, atol=2e-4)


def test_well_conditioned_matrix_becomes_nearly_orthogonal() -> None:
    matrix = torch.randn(20, 60, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.25


def test_zero_gradient_changes_nothing() -> None:
    assert not orthogonal(torch.zeros(3, 4)).any()


def test_two_steps_by_hand() -> None:
    matrix, vector = torch.nn.Parameter(torch.zeros(4, 1)), torch.nn.Parameter(torch.zeros(2))
    optimizer = Muon([matrix, vector], lr=0.1, momentum=0.5)
    lengths = []
    for _ in range(2):
        before = matrix.detach().clone()
        matrix.grad, vector.grad = torch.full((4, 1), 3.0), torch.tensor([1.0, -2.0])
        optimizer.step()
        lengths.append(float((matrix.detach() - before).norm()))
    # Vectors: m = 1, u = 1 + .5 = 1.5; then m = 1.5, u = 1 + .75 = 1.75; together 3.25 times the rate.
    torch.testing.assert_close(vector.detach(), torch.tensor([-0.325, 0.65]))
    # A column has one singular value, which starts at 1 for any length; tall by 4, so the step is doubled.
    s = 1.0
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    assert lengths == pytest.approx([0.1 * 2 * s] * 2, rel=1e-4)


@pytest.mark.bfloat16
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has its own Muon from version 2.9 on")
def test_matrix_equals_torch_muon() -> None:
    """Torch iterates in bfloat16, and scales momentum by 1 - beta, which the normalisation cancels."""
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (torch.nn.Parameter(torch.zeros(24, 16)) for _ in range(2))
    optimizers = [
        Muon([ours], lr=0.01, momentum=0.9),
        torch.optim.Muon([theirs], lr=0.01, momentum=0.9, weight_decay=0.0, adjust_lr_fn="original"),
    ]
    for _ in range(5):
        ours.grad = torch.randn(24, 16, generator=generator)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    apart = float((ours - theirs).detach().norm() / ours.detach().norm())
    assert apart < 0.1, apart


def test_convolution_filters_are_matrices_with_one_row_per_filter() -> None:
    filters = torch.nn.Parameter(torch.zeros(8, 2, 3, 3))
    flat = torch.nn.Parameter(torch.zeros(8, 18))
    gradient = torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(3))
    filters.grad, flat.grad = gradient, gradient.flatten(1)
    for parameter in (filters, flat):
        Muon([parameter], lr=1.0, momentum=0.9).step()
    torch.testing.assert_close(filters.detach().flatten(1), flat.detach())


def test_muon_state_has_one_number_per_parameter(tmp_path: Path) -> None:
    trainer = train_small(tmp_path, "pond", **{"ppo.optimizer": "muon", "trainer.total_iterations": 2})
    kept = sum(state["momentum"].numel() for state in trainer.optimizer.state.values())
    assert kept == sum(parameter.numel() for parameter in trainer.policy.parameters())
