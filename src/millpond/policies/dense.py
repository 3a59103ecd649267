"""A linear layer with tanh as one step of torch's graph, forth and back each in one compiled call. float32 on the CPU.

Plain torch takes three operations forth and four back, and calls libm's tanh for every number.

N observations  D numbers  H hidden
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.compiled import compiled_fast
from millpond.policies import products
from millpond.policies.activations import fast_tanh
from millpond.policies.lstm_kernels import ONE, ZERO, Floats
from millpond.policies.precision import computing_dtype, is_fused_for
from millpond.policies.products import add_product_transposed, add_transposed_product


@compiled_fast
def dense_forward(sgemm: int, numbers: Floats, weight: Floats, bias: Floats, out: Floats) -> None:
    """out [N, H] = tanh(numbers [N, D] @ weight [H, D].T + bias [H])"""
    for row in range(out.shape[0]):
        out[row] = bias
    add_product_transposed(sgemm, numbers, weight, ONE, out)
    for row in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[row, k] = fast_tanh(out[row, k])


@compiled_fast
def dense_backward(
    sgemm: int, d_out: Floats, out: Floats, numbers: Floats, d_sums: Floats, d_weight: Floats, d_bias: Floats
) -> None:
    """Gradients of the weights from those of what came out; `d_bias` comes as zeros, `d_sums` [N, H] is for use here."""
    for row in range(out.shape[0]):
        for k in range(out.shape[1]):
            d_sums[row, k] = d_out[row, k] * (ONE - out[row, k] * out[row, k])
            d_bias[k] += d_sums[row, k]
    add_transposed_product(sgemm, d_sums, numbers, ZERO, d_weight)


def dense(numbers: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """numbers [N, D], weight [H, D], bias [H] -> tanh(numbers @ weight.T + bias). What is observed gets no gradient."""
    if torch.is_grad_enabled():
        return Dense.apply(numbers, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(numbers, weight, bias)


def _forward(numbers: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty(len(numbers), len(weight))
    dense_forward(products.SGEMM, numbers.numpy(), weight.detach().numpy(), bias.detach().numpy(), out.numpy())
    return out


class Dense(torch.autograd.Function):
    """`dense` with its way back."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = _forward(numbers, weight, bias)
        ctx.numbers, ctx.out = numbers.numpy(), out.numpy()
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor, Tensor]:
        size = ctx.out.shape[1]
        d_weight, d_bias = torch.empty(size, ctx.numbers.shape[1]), torch.zeros(size)
        found = np.empty_like(ctx.out), d_weight.numpy(), d_bias.numpy()
        dense_backward(products.SGEMM, d_out.contiguous().numpy(), ctx.out, ctx.numbers, *found)
        return None, d_weight, d_bias


def is_dense_fused(numbers: Tensor) -> bool:
    """Whether `Dense` can take these."""
    return (
        bool(products.SGEMM)
        and is_fused_for(numbers)
        and computing_dtype(numbers) == torch.float32
        and not numbers.requires_grad
        and not torch.compiler.is_compiling()
    )
