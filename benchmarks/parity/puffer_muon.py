"""Steps of the Muon that PufferLib 3 trains with, stored for a test. Runs in PufferLib's virtual environment.

    ~/.cache/millpond/peers/puffer/bin/python benchmarks/parity/puffer_muon.py tests/data/puffer_muon.npz

It is `ForeachMuon` of heavyball, made as PufferLib's trainer makes it. Its iteration rounds matrices in float32 to bfloat16, at
random; those in float64 stay as they are, so that the arithmetic can be compared exactly. Stored are the gradients and
the parameters after each step, in both precisions.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import heavyball.utils
import numpy as np
import torch
from heavyball import ForeachMuon

SHAPES = {
    "tall": (48, 16),
    "wide": (16, 40),
    "square": (24, 24),
    "row": (1, 12),
    "filters": (8, 3, 3, 3),
    "bias": (24,),
}
STEPS, LR, BETA1, BETA2, EPS = 6, 0.015, 0.95, 0.999, 1e-8


def main() -> None:
    torch.manual_seed(0)
    heavyball.utils.compile_mode = None
    # Gradients of one direction and noise, as in training: the momentum matters.
    towards = {name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    gradients = {
        name: torch.stack([towards[name] + torch.randn(shape, dtype=torch.float64) for _ in range(STEPS)])
        for name, shape in SHAPES.items()
    }
    stored: dict[str, object] = {}
    for dtype in (torch.float64, torch.float32):
        parameters = {name: torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for name, shape in SHAPES.items()}
        optimizer = ForeachMuon(list(parameters.values()), lr=LR, betas=(BETA1, BETA2), eps=EPS)
        after: dict[str, list[np.ndarray]] = {name: [] for name in SHAPES}
        for step in range(STEPS):
            for name, parameter in parameters.items():
                parameter.grad = gradients[name][step].to(dtype)
            optimizer.step()
            for name, parameter in parameters.items():
                after[name].append(parameter.detach().numpy().copy())
        stored |= {f"{str(dtype).removeprefix('torch.')}/{name}": np.stack(steps) for name, steps in after.items()}
    np.savez_compressed(
        sys.argv[1],
        version=version("heavyball"),
        learning_rate=LR,
        momentum=BETA1,
        **{f"gradient/{name}": steps.numpy() for name, steps in gradients.items()},
        **stored,
    )


if __name__ == "__main__":
    main()
