"""The compiled PPO loss against plain torch."""

from __future__ import annotations

import pytest
import torch

from millpond.fast.ppo_loss import PPOLosses, as_metrics, loss_arguments
from millpond.losses import Coefficients, ppo_loss

NAMES = ("log_prob", "old_log_prob", "advantage", "value", "old_value", "target", "entropy", "weight")
LEARNED = ("log_prob", "value", "entropy")


def random_inputs() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    inputs = {name: torch.randn(20, 30, generator=draw) for name in ("advantage", "value", "old_value", "target")}
    inputs["old_log_prob"] = -torch.rand(20, 30, generator=draw)
    inputs["log_prob"] = inputs["old_log_prob"] + 0.2 * torch.randn(20, 30, generator=draw)
    inputs["entropy"] = torch.rand(20, 30, generator=draw)
    inputs["weight"] = torch.rand(20, 30, generator=draw).sub_(0.2).clamp_(min=0.0)  # some steps are not valid
    return inputs


@pytest.mark.parametrize(
    ("vf_clip_coef", "weights_value", "clamp"), [(0.1, True, None), (None, True, 0.1), (0.1, False, 0.3)]
)
def test_loss_and_gradients_equal_plain_torch_in_float64(
    vf_clip_coef: float | None, weights_value: bool, clamp: float | None
) -> None:
    inputs = random_inputs()
    coefficients = Coefficients(
        0.1, vf_clip_coef, 0.44, 0.0021, 0.5, weights_value=weights_value, log_ratio_clamp=clamp
    )
    fast = {name: tensor.clone().requires_grad_(name in LEARNED) for name, tensor in inputs.items()}
    exact = {name: tensor.double().requires_grad_(name in LEARNED) for name, tensor in inputs.items()}
    arguments = loss_arguments(coefficients, float((inputs["weight"] > 0).sum()))
    total, means = PPOLosses.apply(*(fast[name] for name in NAMES), arguments)
    names = ("clip_coef", "vf_clip_coef", "vf_coef", "ent_coef", "weights_value", "log_ratio_clamp")
    settings = {name: getattr(coefficients, name) for name in names}
    expected = ppo_loss(**exact, **settings)
    torch.testing.assert_close(total.double(), expected.total, rtol=1e-4, atol=1e-6)
    for name, metric in as_metrics(means.numpy()).items():
        torch.testing.assert_close(metric.double(), expected.metrics()[name].double(), rtol=1e-4, atol=1e-6)
    ours = torch.autograd.grad(3 * total, [fast[name] for name in LEARNED])
    plain = torch.autograd.grad(3 * expected.total, [exact[name] for name in LEARNED])
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["log_prob", "value", "advantage", "target"])
def test_nan_is_not_hidden(name: str) -> None:
    inputs = random_inputs()
    inputs["weight"].fill_(1.0)
    inputs[name][3, 4] = float("nan")
    total, _ = PPOLosses.apply(
        *(inputs[name] for name in NAMES), loss_arguments(Coefficients(0.1, 0.1, 0.5, 0.1, 1), 600)
    )
    assert total.isnan()
