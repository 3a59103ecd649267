"""The parameters of several equal networks as one matrix, a row each.

    A networks   P numbers of one network, padded so that every parameter begins at a multiple of 64 bytes

Each network keeps working: its parameters become views of its row, and their gradients views of a second matrix. So
clipping, the optimiser, a soft target and a clone are a few operations on rows, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ALIGNMENT = 16  # floats: 64 bytes


class FlatParameters:
    """`data` and `grad` [A, P] of the networks given, which must be alike and on one device."""

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
                raise ValueError("networks whose parameters lie in one matrix must have the same parameters")
            for name, parameter in parameters.items():
                place = self._view(self.data, name)[row]
                place.copy_(parameter.data)
                parameter.data = place
                parameter.grad = self._view(self.grad, name)[row] if trained else None
                parameter.requires_grad_(trained)

    def _view(self, matrix: Tensor, name: str) -> Tensor:
        """[A, *shape] of one parameter in all networks."""
        shape, begin = self.shapes[name], self.offsets[name]
        return matrix[:, begin : begin + shape.numel()].view(len(self.networks), *shape)

    def stacked(self) -> dict[str, Tensor]:
        """Each parameter of all networks at once, [A, *shape], in the same memory; `put_gradients` takes their gradients."""
        return {name: self._view(self.data, name).detach().requires_grad_() for name in self.shapes}

    def put_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Into `grad`, in the order of `stacked`."""
        for name, gradient in zip(self.shapes, gradients, strict=True):
            self._view(self.grad, name).copy_(gradient)

    def zero_grad(self) -> None:
        self.grad.zero_()


def clip_rows(grad: Tensor, max_norm: float) -> Tensor:
    """Scale each row of [A, P] down to a norm of at most `max_norm`, in place; returns the norms [A] from before."""
    norm: Tensor = torch.linalg.vector_norm(grad, dim=1)
    grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1))
    return norm
