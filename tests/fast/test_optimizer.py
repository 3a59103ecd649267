"""Compiled Adam against torch's: parameters, and a state that both read."""

from __future__ import annotations

import copy

import pytest
import torch

from millpond import fast
from millpond.fast.optimizer import CompiledAdam, is_compiled_adam
from millpond.trainers.ppo.update import Updater

SETTINGS = {"lr": 3e-3, "betas": (0.8, 0.99), "eps": 1e-5}


def make_parameters() -> torch.nn.ParameterList:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 4), (7,), (1,), (60, 81))  # the last in several blocks
    return torch.nn.ParameterList(torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes)


def set_gradients(parameters: torch.nn.ParameterList, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for place, parameter in enumerate(parameters):
        unused = place == 2 and seed == 0  # a parameter whose first step comes later
        parameter.grad = None if unused else torch.randn(parameter.shape, generator=generator)


def assert_same(ours: torch.nn.ParameterList, theirs: torch.nn.ParameterList) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-6, atol=1e-6)


def test_steps_equal_those_of_torch_in_float64() -> None:
    ours, theirs = make_parameters(), make_parameters().double()
    compiled = CompiledAdam(torch.optim.Adam(ours, **SETTINGS))  # type: ignore[arg-type]
    exact = torch.optim.Adam(theirs, **SETTINGS)  # type: ignore[arg-type]
    for seed in range(20):
        set_gradients(ours, seed)
        for one, other in zip(ours, theirs, strict=True):
            other.grad = None if one.grad is None else one.grad.double()
        compiled.step()
        exact.step()
        assert_same(ours, theirs)


@pytest.mark.parametrize("compiled_first", [True, False])
def test_state_is_continued_by_the_other(compiled_first: bool) -> None:
    """Some steps by one, its checkpoint loaded for the other, then the same steps by both."""
    before, after = make_parameters(), make_parameters()
    first = torch.optim.Adam(before, fused=True, **SETTINGS)  # type: ignore[arg-type]
    for seed in range(3):
        set_gradients(before, seed)
        CompiledAdam(first).step() if compiled_first else first.step()
    second = torch.optim.Adam(after, fused=True, **SETTINGS)  # type: ignore[arg-type]
    step = CompiledAdam(second).step
    after.load_state_dict(before.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for seed in range(3, 6):
        set_gradients(before, seed)
        set_gradients(after, seed)
        if compiled_first:
            CompiledAdam(first).step()
            second.step()
        else:
            first.step()
            step()
        assert_same(before, after)
    states = (optimizer.state_dict()["state"] for optimizer in (first, second))
    for one, other in zip(*(state.values() for state in states), strict=True):
        assert one.keys() == other.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert one["step"].dtype == other["step"].dtype
        assert torch.equal(one["step"], other["step"])


def test_state_that_is_loaded_later_is_used() -> None:
    """A compiled Adam that has taken steps does not go on with the moments before the load."""
    parameters = make_parameters()
    optimizer = torch.optim.Adam(parameters, **SETTINGS)  # type: ignore[arg-type]
    compiled = CompiledAdam(optimizer)
    set_gradients(parameters, 1)
    compiled.step()
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(parameters.state_dict())
    results = []
    for _ in range(2):
        optimizer.load_state_dict(copy.deepcopy(saved))
        parameters.load_state_dict(weights)
        set_gradients(parameters, 2)
        compiled.step()
        results.append(copy.deepcopy(parameters.state_dict()))
    for one, other in zip(results[0].values(), results[1].values(), strict=True):
        assert torch.equal(one, other)


def test_optimizers_with_other_options_are_left_to_torch() -> None:
    parameters = make_parameters()
    assert is_compiled_adam(torch.optim.Adam(parameters, fused=True))
    assert not is_compiled_adam(torch.optim.Adam(parameters, amsgrad=True))
    assert not is_compiled_adam(torch.optim.Adam(parameters, weight_decay=0.1))
    assert not is_compiled_adam(torch.optim.AdamW(parameters))
    assert not is_compiled_adam(torch.optim.Adam(make_parameters().double()))
    assert not is_compiled_adam(torch.optim.Adam([torch.nn.Parameter(torch.zeros(3, 4).t())]))
    assert not is_compiled_adam(torch.optim.RAdam(parameters))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam])
def test_clipped_steps_of_the_updaters_are_equal(kind: type[torch.optim.Optimizer]) -> None:
    ours, theirs = make_parameters(), make_parameters()
    compiled, plain = fast.updater(ours), Updater.__new__(Updater)
    assert compiled is not None
    plain.parameters = list(theirs)
    optimizers = [kind(parameters, lr=0.01) for parameters in (ours, theirs)]  # type: ignore[call-arg]
    for seed in range(3):
        set_gradients(ours, seed)
        set_gradients(theirs, seed)
        norm = compiled.clip_and_step(optimizers[0], 0.5)
        torch.testing.assert_close(norm, plain.clip_and_step(optimizers[1], 0.5))
        assert_same(ours, theirs)


def test_nan_in_a_gradient_spreads_to_the_parameter() -> None:
    parameters = make_parameters()
    compiled = CompiledAdam(torch.optim.Adam(parameters))
    set_gradients(parameters, 1)
    assert parameters[1].grad is not None
    parameters[1].grad[2] = float("nan")
    compiled.step()
    assert parameters[1][2].isnan()
    assert parameters[0].isfinite().all()
