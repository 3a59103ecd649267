"""The parameters of several equal networks as one matrix, one row per network, and an optimiser for its rows.

Each network keeps working: its parameters become views of its row, and their gradients views of a second matrix. So
clipping, the optimiser step, a soft target update and a clone are a few operations on rows, however many layers there are.

A networks   P numbers per network, padded so that every parameter begins at a multiple of 64 bytes
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from millpond.devices import saved

ALIGNMENT = 16  # floats: 64 bytes
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
MIN_TRACTABLE_RHO = 5.0


class FlatParameters:
    """`data` and `grad` [A, P] of networks that have the same parameters and are on one device."""

    def __init__(self, networks: Sequence[nn.Module], *, trained: bool = True) -> None:
        self.networks = list(networks)
        self.shapes = {name: parameter.shape for name, parameter in networks[0].named_parameters()}
        self.offsets: dict[str, int] = {}
        size = 0
        for name, shape in self.shapes.items():
            self.offsets[name] = size
            size += -(-shape.numel() // ALIGNMENT) * ALIGNMENT
        device = next(networks[0].parameters()).device
        self.data = torch.zeros(len(networks), size, device=device)
        self.grad = torch.zeros_like(self.data) if trained else torch.empty(0, device=device)
        for row, network in enumerate(self.networks):
            parameters = dict(network.named_parameters())
            if {name: parameter.shape for name, parameter in parameters.items()} != self.shapes:
                raise ValueError("networks that share one parameter matrix must have the same parameters")
            for name, parameter in parameters.items():
                place = self._view(self.data, name)[row]
                place.copy_(parameter.data)
                parameter.data = place
                parameter.grad = self._view(self.grad, name)[row] if trained else None
                parameter.requires_grad_(trained)
        self._parameters = [[dict(network.named_parameters())[name] for name in self.shapes] for network in networks]
        self._gradients: list[list[Tensor]] = []
        if trained:
            self._gradients = [
                [self._view(self.grad, name)[row] for name in self.shapes] for row in range(len(networks))
            ]

    def _view(self, matrix: Tensor, name: str) -> Tensor:
        """Return one parameter of all networks, [A, *shape]."""
        shape, begin = self.shapes[name], self.offsets[name]
        return matrix[:, begin : begin + shape.numel()].view(len(self.networks), *shape)

    def stacked(self) -> dict[str, Tensor]:
        """Return each parameter of all networks, [A, *shape], in the same memory; `put_gradients` takes their gradients."""
        return {name: self._view(self.data, name).detach().requires_grad_() for name in self.shapes}

    @torch.no_grad()
    def put_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Copy gradients in the order of `stacked` into `grad`."""
        torch._foreach_copy_([self._view(self.grad, name) for name in self.shapes], list(gradients))

    def backward(self, loss: Tensor, row: int = 0) -> None:
        """Compute the gradient of one network's loss and write it into its row of `grad`.

        On a device this is one copy; autograd would add each parameter's gradient to zeros.
        """
        if loss.device.type == "cpu":
            self.grad[row].zero_()
            loss.backward()  # type: ignore[no-untyped-call]
            return
        gradients = torch.autograd.grad(loss, self._parameters[row])
        with torch.no_grad():
            torch._foreach_copy_(self._gradients[row], list(gradients))


def clip_rows(grad: Tensor, max_norm: float) -> Tensor:
    """Scale each row of [A, P] down to a norm of at most `max_norm`, in place; return the norms [A] before."""
    norm: Tensor = torch.linalg.vector_norm(grad, dim=1)
    grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1))
    return norm


class StepSize(NamedTuple):
    """One step of Adam as p <- p - rate m / (sqrt(v) + epsilon), or as p <- p - rate m if epsilon is None."""

    rate: float
    epsilon: float | None


def step_sizes(updates: int, rates: Sequence[float], *, rectified: bool) -> list[StepSize]:
    """Return the steps after `updates` earlier ones, with the bias corrections, and RAdam's factor if `rectified`."""
    steps = []
    for number, rate in enumerate(rates, updates + 1):
        rate /= 1 - BETA1**number
        correction = 1 - BETA2**number
        if rectified:
            longest = 2 / (1 - BETA2) - 1
            length = longest - 2 * number * BETA2**number / correction
            if length <= MIN_TRACTABLE_RHO:
                steps.append(StepSize(rate, None))
                continue
            above, below = (length - 4) * (length - 2) * longest, (longest - 4) * (longest - 2) * length
            rate *= math.sqrt(above / below)
        root = math.sqrt(correction)  # sqrt(v^) + eps = (sqrt(v) + eps root) / root
        steps.append(StepSize(rate * root, EPS * root))
    return steps


class RowOptimizer:
    """Adam (Kingma and Ba, 2015) or RAdam (Liu et al., 2020) on the rows of a parameter matrix [A, P].

        m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
        Adam    p <- p - lr  m^ / (sqrt(v^) + eps)          m^ = m / (1 - b1^t), v^ = v / (1 - b2^t)
        RAdam   p <- p - lr r_t m^ / (sqrt(v^) + eps)       if the variance of v^ is tractable (rho_t > 5)
                p <- p - lr m^                              if it is not: in the first steps

    Every row has its own number of updates t and learning rate, as if it had a separate optimiser. Before each step,
    p <- (1 - lr weight_decay) p (AdamW; Loshchilov and Hutter, 2019).
    """

    def __init__(self, data: Tensor, grad: Tensor, *, rectified: bool, weight_decay: float = 0.0) -> None:
        self.data, self.grad, self.rectified, self.weight_decay = data, grad, rectified, weight_decay
        self.first, self.second = torch.zeros_like(data), torch.zeros_like(data)
        self.updates = [0] * len(data)

    @torch.no_grad()
    def step(self, learning_rates: Sequence[float]) -> None:
        """Update every row with its own learning rate."""
        self.first.lerp_(self.grad, 1 - BETA1)
        self.second.mul_(BETA2).addcmul_(self.grad, self.grad, value=1 - BETA2)
        self.updates = [count + 1 for count in self.updates]
        pairs = list(zip(self.updates, learning_rates, strict=True))
        if len(set(pairs)) == 1:
            self._apply(slice(None), *pairs[0])
        else:
            for row, (updates, rate) in enumerate(pairs):
                self._apply(slice(row, row + 1), updates, rate)

    def _apply(self, rows: slice, updates: int, rate: float) -> None:
        if self.weight_decay:
            self.data[rows].mul_(1 - rate * self.weight_decay)
        (step,) = step_sizes(updates - 1, [rate], rectified=self.rectified)
        if step.epsilon is None:
            self.data[rows].add_(self.first[rows], alpha=-step.rate)
            return
        deviation = self.second[rows].sqrt().add_(step.epsilon)
        self.data[rows].addcdiv_(self.first[rows], deviation, value=-step.rate)

    def reset(self, row: int) -> None:
        """Reset the state of one row."""
        self.first[row].zero_()
        self.second[row].zero_()
        self.updates[row] = 0

    def row_state(self, row: int) -> dict[str, Any]:
        return {
            "first": saved(self.first[row]),
            "second": saved(self.second[row]),
            "updates": self.updates[row],
        }

    def load_row_state(self, row: int, state: dict[str, Any]) -> None:
        self.first[row].copy_(state["first"])
        self.second[row].copy_(state["second"])
        self.updates[row] = int(state["updates"])
