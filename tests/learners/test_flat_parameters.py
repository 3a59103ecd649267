"""Parameters in one matrix, and the optimiser on its rows against torch's optimisers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from millpond.learners.flat_parameters import FlatParameters, RowOptimizer, clip_rows


@pytest.mark.parametrize("rectified", [False, True])
def test_optimizer_equals_that_of_torch(rectified: bool) -> None:
    """In the first steps, where RAdam is not rectified yet, and after them; with a learning rate per row."""
    torch.manual_seed(0)
    data, grad = torch.randn(3, 40), torch.zeros(3, 40)
    theirs = [nn.Parameter(row.clone()) for row in data]
    rates = [1e-2, 1e-2, 3e-2]
    kind = torch.optim.RAdam if rectified else torch.optim.Adam
    optimizers = [kind([row], lr=rate) for row, rate in zip(theirs, rates, strict=True)]
    ours = RowOptimizer(data, grad, rectified=rectified)
    for _ in range(20):
        grad.normal_()
        ours.step(rates)
        for row, (parameter, optimizer) in enumerate(zip(theirs, optimizers, strict=True)):
            parameter.grad = grad[row].clone()
            optimizer.step()
    torch.testing.assert_close(data, torch.stack([row.detach() for row in theirs]), atol=1e-6, rtol=1e-5)


def test_weight_decay_is_that_of_adamw() -> None:
    torch.manual_seed(0)
    data, grad = torch.randn(1, 40), torch.zeros(1, 40)
    theirs = nn.Parameter(data[0].clone())
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.3)
    ours = RowOptimizer(data, grad, rectified=False, weight_decay=0.3)
    for _ in range(20):
        grad.normal_()
        ours.step([1e-2])
        theirs.grad = grad[0].clone()
        optimizer.step()
    torch.testing.assert_close(data[0], theirs.detach(), atol=1e-6, rtol=1e-5)


def test_reset_row_behaves_like_a_new_optimizer() -> None:
    torch.manual_seed(0)
    data, grad = torch.randn(2, 8), torch.randn(2, 8)
    ours = RowOptimizer(data, grad, rectified=True)
    for _ in range(9):
        ours.step([0.1, 0.1])
    ours.reset(1)
    fresh_data = data[1:].clone()
    fresh = RowOptimizer(fresh_data, grad[1:].clone(), rectified=True)
    for _ in range(9):
        ours.step([0.1, 0.1])
        fresh.step([0.1])
    assert torch.equal(data[1:], fresh_data)


def test_state_of_a_row_is_saved_and_loaded() -> None:
    data, grad = torch.randn(2, 8), torch.randn(2, 8)
    one = RowOptimizer(data, grad, rectified=False)
    one.step([0.1, 0.1])
    other = RowOptimizer(data.clone(), grad, rectified=False)
    other.load_row_state(0, one.row_state(1))
    assert torch.equal(other.first[0], one.first[1])
    assert other.updates == [1, 0]


def test_each_row_is_clipped_by_its_own_norm() -> None:
    grad = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert clip_rows(grad, 1.0).tolist() == pytest.approx([5.0, 0.5])
    torch.testing.assert_close(grad, torch.tensor([[0.6, 0.8], [0.3, 0.4]]), atol=1e-5, rtol=1e-5)


def test_parameters_are_views_of_the_rows() -> None:
    networks = [nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)) for _ in range(2)]
    before = [network(torch.ones(1, 3)) for network in networks]
    flat = FlatParameters(networks)
    for network, value in zip(networks, before, strict=True):
        torch.testing.assert_close(network(torch.ones(1, 3)), value)
    networks[1](torch.ones(1, 3)).sum().backward()
    assert not flat.grad[0].any()
    assert flat.grad[1].any()
    stacked = flat.stacked()
    assert torch.equal(stacked["0.weight"][1], networks[1][0].weight)
    flat.data[0].zero_()
    assert not any(parameter.any() for parameter in networks[0].parameters())
    with pytest.raises(ValueError, match="the same parameters"):
        FlatParameters([nn.Linear(2, 2), nn.Linear(2, 3)])
