"""Muon against plain references: its iteration on singular values, a step by hand, and torch's Muon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.trainers.ppo.muon import ORIGINAL, PER_ROUND, Muon, MuonForm, orthogonal
from tests.support.ppo_runs import train_small

STORED = Path(__file__).parents[2] / "data" / "puffer_muon.npz"  # by benchmarks/parity/puffer_muon.py


def orthogonal_reference(matrix: np.ndarray[Any, Any], rounds: Any = ORIGINAL) -> np.ndarray[Any, Any]:
    """Apply the same polynomials to each singular value, by a real decomposition."""
    u, s, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for a, b, c in rounds:
        s = a * s + b * s**3 + c * s**5
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
    expected = orthogonal_reference(matrix.numpy(), PER_ROUND)
    np.testing.assert_allclose(orthogonal(matrix.double(), PER_ROUND).numpy(), expected, atol=1e-9)


def trained_on_stored_gradients(stored: Any, dtype: torch.dtype, form: MuonForm) -> dict[str, list[Any]]:
    """Return the parameters after each step on the gradients of the file."""
    names = [name.removeprefix("gradient/") for name in stored if name.startswith("gradient/")]
    gradients = {name: torch.from_numpy(stored[f"gradient/{name}"]).to(dtype) for name in names}
    parameters = {name: torch.nn.Parameter(torch.zeros_like(gradients[name][0])) for name in names}
    optimizer = Muon(parameters.values(), float(stored["learning_rate"]), float(stored["momentum"]), form)
    after: dict[str, list[Any]] = {name: [] for name in names}
    for step in range(len(gradients["bias"])):
        for name in names:
            parameters[name].grad = gradients[name][step]
        optimizer.step()
        for name in names:
            after[name].append(parameters[name].detach().numpy().copy())
    return after


def test_steps_equal_those_of_pufferlib_3() -> None:
    """Its optimizer, called, in float64: matrices in float32 it rounds to bfloat16 at random."""
    with np.load(STORED) as stored:
        after = trained_on_stored_gradients(stored, torch.float64, "puffer3")
        assert len(after) == 6
        for name, steps in after.items():
            np.testing.assert_allclose(np.stack(steps), stored[f"float64/{name}"], atol=1e-7, err_msg=name)
        single = trained_on_stored_gradients(stored, torch.float32, "puffer3")
        for name, steps in single.items():
            np.testing.assert_allclose(np.stack(steps), stored[f"float64/{name}"], atol=1e-6, err_msg=name)
            rounded = np.abs(stored[f"float32/{name}"] - stored[f"float64/{name}"]).max()
            assert rounded < (1e-6 if name == "bias" else 3e-3), name  # what the rounding is worth
        other = trained_on_stored_gradients(stored, torch.float64, "puffer4")
        for name in ("bias", "square", "tall"):
            assert np.abs(other[name][-1] - stored[f"float64/{name}"][-1]).max() > 2e-3, name


def test_puffer3_averages_the_momentum_and_the_others_sum_it() -> None:
    steps = {}
    forms: tuple[MuonForm, ...] = ("original", "puffer3", "puffer4")
    for form in forms:
        vector = torch.nn.Parameter(torch.zeros(1))
        optimizer = Muon([vector], lr=1.0, momentum=0.9, form=form)
        for gradient in (1.0, 3.0):
            vector.grad = torch.tensor([gradient])
            optimizer.step()
        steps[form] = float(vector.detach())
    # puffer3: m = .1, u = 1.1; m = .09 + .3, u = 3 + .39. The others: m = 1, u = 1 + .9; m = .9 + 3, u = 3 + 3.51.
    assert steps == pytest.approx({"original": -8.41, "puffer3": -4.49, "puffer4": -8.41})


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
