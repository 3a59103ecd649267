"""Random rows to train on, and updaters and gradients to compare, for tests of updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from millpond import fast
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast.update import FastUpdater
from millpond.policies import Policy
from millpond.rollout.micro_batch import Advantages, MicroBatch
from millpond.rollout.rows import Rows
from millpond.rollout.schema import RowField

ROWS, HORIZON, AGENTS, HIDDEN, NUMBERS = 9, 12, 2, 16, 5
WEIGHT = np.linspace(0.5, 1.5, ROWS, dtype=np.float32)
SPEC = ObservationSpec.single((NUMBERS,), "float32", "vector")
OBSERVATIONS = {
    "vector": SPEC,
    "tokens": ObservationSpec.single((24, 3), "uint8", "tokens"),
    "odd tokens": ObservationSpec.single((20, 3), "uint8", "tokens"),
    "several": ObservationSpec.packed([("cells", "grid", (3, 3), "uint8"), ("held", "vector", (3,), "uint8")]),
}


def random_rows(
    action: ActionSpec,
    masked: bool,
    seen: ObservationSpec,
    hidden: int = HIDDEN,
    states: int = 2,
    *,
    ratio: bool = False,
) -> tuple[Rows, Advantages]:
    """Return random rows in which episodes end and agents die, and advantages of them. `ratio`: these are written back."""
    draw = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "observation": (seen.shape, seen.dtype),
        "action": (action.shape, action.dtype),
        "log_prob": ((), "float32"),
        "value": ((), "float32"),
        "initial_state": ((states, hidden), "float32"),
        **dict.fromkeys(("terminated", "truncated", "alive"), ((), "bool")),
        **({"action_mask": ((action.mask_size,), "bool")} if masked else {}),
        **({"ratio": ((), "float32")} if ratio else {}),
    }
    fields = [
        RowField(name, shape, dtype, np.dtype(dtype).itemsize, per_step=name != "initial_state", trained=True)
        for name, (shape, dtype) in shapes.items()
    ]
    rows = Rows(fields, ROWS, HORIZON, AGENTS, AGENTS, "cpu")
    for name in ("initial_state", "value"):
        rows[name].normal_(generator=draw)
    if seen.dtype == "float32":
        rows["observation"].normal_(generator=draw)
    else:
        rows["observation"].random_(0, 256 if len(seen.shape) > 1 else 3, generator=draw)
    if seen.parts[0].kind == "tokens":  # the first step has no real token, the next has one, and so on
        for t in range(HORIZON):
            rows["observation"][:, t, :, t:] = 255
    low, high = {"continuous": (-4.0, -2.5), "mixed": (-6.5, -3.5)}.get(action.kind, (-2.0, -0.2))
    rows["log_prob"].uniform_(low, high, generator=draw)
    if action.kind == "continuous":
        rows["action"].normal_(generator=draw)
    else:
        sizes = torch.tensor(action.sizes) if action.shape else torch.tensor(action.sizes[0])
        chosen = rows["action"][..., : len(action.sizes)] if action.shape else rows["action"]
        chosen.copy_((torch.rand(chosen.shape, generator=draw) * sizes).int())
        rows["action"][..., len(action.sizes) :].normal_(generator=draw) if action.low else None
    for name, often in (("terminated", 0.1), ("truncated", 0.1), ("alive", 0.9)):
        rows[name].copy_(torch.rand(rows[name].shape, generator=draw) < often)
    if masked:
        mask = torch.rand(rows["action_mask"].shape, generator=draw) < 0.7
        begins = torch.tensor((0, *action.sizes[:-1])).cumsum(0)
        chosen = rows["action"].view(*mask.shape[:-1], -1)[..., : len(action.sizes)].long()
        rows["action_mask"].copy_(mask.scatter(-1, chosen + begins, True))  # what was taken was allowed
    advantage = torch.randn(ROWS, HORIZON, AGENTS, generator=draw)
    return rows, Advantages(advantage, 2 * advantage, np.zeros(ROWS), torch.zeros(()), rows["alive"].sum(dim=(1, 2)))


def fast_updater(policy: torch.nn.Module, autocast: bool = False) -> FastUpdater:
    updater = fast.updater(policy, autocast=autocast)
    assert updater is not None
    return updater


def set_value_scale(policy: Policy, mean: float, deviation: float) -> None:
    """Set the statistics by which a policy normalises its value."""
    assert policy.value_scale is not None
    policy.value_scale.mean.fill_(mean)
    policy.value_scale.variance.fill_(deviation**2)


def in_float64(micro_batch: MicroBatch) -> MicroBatch:
    doubled = {
        name: tensor.double()
        for name, tensor in vars(micro_batch).items()
        if tensor is not None and tensor.is_floating_point()
    }
    return replace(micro_batch, **doubled)


def gradients_of(policy: torch.nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in policy.parameters()]
