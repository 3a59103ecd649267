"""Schema of the rows: names, shapes and dtypes of their arrays.

Rows are allocated from this list, and the plan counts their bytes from it, so both always agree. Light: no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from millpond.envs.spec import EnvSpec

FLOAT = 4  # bytes of a float32
STATES = {"lstm": 2, "gru": 1, "mingru": 1, "none": 0}  # vectors of a layer's recurrent state


@dataclass(frozen=True)
class RowField:
    """One array of the rows. `per_step`: [rows, horizon, agents, *shape], else [rows, agents, *shape]."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    per_step: bool
    trained: bool  # gathered into minibatches

    @property
    def bytes_each(self) -> int:
        return prod(self.shape) * self.itemsize


def state_shape(core: str, hidden_size: int, separate_critic: bool = False, num_layers: int = 1) -> tuple[int, int]:
    """Return the shape of one agent's recurrent state in the built-in policy; a separate critic has its own."""
    return STATES[core] * num_layers * (2 if separate_critic else 1), hidden_size


def row_fields(
    spec: EnvSpec | None,
    state_shape: tuple[int, ...],
    *,
    ratio: bool = False,
    baseline: bool = False,
    learned_reward: bool = False,
) -> list[RowField]:
    """Return every array of the rows; without a spec, all but observations and actions.

    `state_shape` is the shape of one agent's recurrent state; it contains a 0 if the policy has no memory. `ratio`: advantages
    are recomputed, which needs the newest probability ratio of every step. `baseline`: rewards are centred. `learned_reward`:
    a reward model predicts rewards, which advantages are estimated from.
    """
    fields = []
    if spec is not None:
        observation, action = spec.observation, spec.action
        fields.append(
            RowField(
                "observation",
                observation.shape,
                observation.dtype,
                observation.nbytes // prod(observation.shape),
                per_step=True,
                trained=True,
            )
        )
        fields.append(RowField("action", action.shape, action.dtype, 4, per_step=True, trained=True))
        if spec.action_masks:
            fields.append(RowField("action_mask", (action.mask_size,), "bool", 1, per_step=True, trained=True))
    for name, dtype, trained in (
        ("reward", "float32", False),
        ("terminated", "bool", True),
        ("truncated", "bool", True),
        ("alive", "bool", True),
        ("log_prob", "float32", True),
        ("value", "float32", True),
        ("final_value", "float32", False),
        ("advantage", "float32", True),
        *([("ratio", "float32", False)] if ratio else []),
        *([("reward_baseline", "float32", False)] if baseline else []),
        *([("learned_reward", "float32", False)] if learned_reward else []),
    ):
        size = 1 if dtype == "bool" else FLOAT
        fields.append(RowField(name, (), dtype, size, per_step=True, trained=trained))
    fields.append(RowField("next_value", (), "float32", FLOAT, per_step=False, trained=False))
    fields.append(RowField("initial_state", state_shape, "float32", FLOAT, per_step=False, trained=True))
    return fields


def field_bytes(field: RowField, rows: int, horizon: int, agents_per_row: int) -> int:
    """Return the size of one array in bytes."""
    return rows * agents_per_row * (horizon if field.per_step else 1) * field.bytes_each
