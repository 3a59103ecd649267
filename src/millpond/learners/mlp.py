"""Two hidden layers, and several such networks computed at once. K networks  B inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millpond.learners.flat import FlatParameters

LAYERS = ("0", "2", "4")


def mlp(inputs: int, hidden_size: int, outputs: int) -> nn.Sequential:
    """inputs -> hidden -> hidden -> outputs, with ReLU."""
    return nn.Sequential(
        nn.Linear(inputs, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, outputs),
    )


class StackedMLP:
    """The networks of a parameter matrix, each an `mlp` with one output, on the same inputs [B, inputs] -> [K, B]."""

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.stacked = parameters.stacked()
        self.frozen = {name: tensor.detach() for name, tensor in self.stacked.items()}

    def __call__(self, inputs: Tensor, *, frozen: bool = False) -> Tensor:
        """`frozen`: gradients go to the inputs alone."""
        weights = self.frozen if frozen or not torch.is_grad_enabled() else self.stacked
        hidden = inputs.expand(len(self.parameters.networks), *inputs.shape)
        for layer in LAYERS:
            weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
            if layer != LAYERS[-1]:
                hidden = hidden.relu_()
        return hidden.squeeze(-1)

    def backward(self, loss: Tensor) -> None:
        """From a loss of a call that was not frozen to the networks' gradients."""
        self.parameters.put_gradients(torch.autograd.grad(loss, list(self.stacked.values())))
