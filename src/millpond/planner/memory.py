"""Bytes: of the experience rows field by field, and of a training step.

The rows are allocated from this very list of fields, so what the plan says of them is what a run takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from millpond.envs.spec import EnvSpec, Part

FLOAT = 4  # bytes of a float32
STATES = {"lstm": 2, "gru": 1, "none": 0}  # vectors of a core's recurrent state
GATES = {"lstm": 4, "gru": 3, "none": 0}
CELL_KINDS = 16  # codes of a grid cell, where the world does not say how many there are
MOMENTS = {"adam": 2, "adamw": 2, "radam": 2, "muon": 1}  # numbers that an optimiser keeps a parameter


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


def row_fields(spec: EnvSpec | None, core: str, hidden_size: int) -> list[RowField]:
    """Every array that the rows hold; without a spec, all but observations and actions."""
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
            fields.append(RowField("action_mask", (sum(action.sizes),), "bool", 1, per_step=True, trained=True))
    for name, dtype, trained in (
        ("reward", "float32", False),
        ("terminated", "bool", True),
        ("truncated", "bool", True),
        ("alive", "bool", True),
        ("log_prob", "float32", True),
        ("value", "float32", True),
        ("final_value", "float32", False),
        ("advantage", "float32", True),
    ):
        size = 1 if dtype == "bool" else FLOAT
        fields.append(RowField(name, (), dtype, size, per_step=True, trained=trained))
    fields.append(RowField("next_value", (), "float32", FLOAT, per_step=False, trained=False))
    if STATES[core]:
        shape = (STATES[core], hidden_size)
        fields.append(RowField("initial_state", shape, "float32", FLOAT, per_step=False, trained=True))
    return fields


def field_bytes(field: RowField, rows: int, horizon: int, agents_per_row: int) -> int:
    """Bytes of one array."""
    return rows * agents_per_row * (horizon if field.per_step else 1) * field.bytes_each


def parameters(spec: EnvSpec | None, core: str, hidden_size: int) -> int | None:
    """How many parameters the built-in policy has: encoders, their common bias, core, heads."""
    if spec is None:
        return None
    encoders = sum(_encoder(part, hidden_size) for part in spec.observation.parts) + hidden_size
    if core == "none":
        remembering = hidden_size * hidden_size + hidden_size
    else:
        remembering = GATES[core] * 2 * hidden_size * hidden_size + 4 * hidden_size
    deviations = spec.action.shape[0] if spec.action.kind == "continuous" else 0
    outputs = deviations or sum(spec.action.sizes)
    return encoders + remembering + (outputs + 1) * (hidden_size + 1) + deviations


def _encoder(part: Part, hidden_size: int) -> int:
    if part.kind == "grid":  # a table of what each cell can hold, but for empty
        return prod(part.shape) * (CELL_KINDS - 1 if part.high is None else int(part.high)) * hidden_size
    if part.kind == "tokens":  # tables of places and of features with their values, and a product of the two
        features = 256 if part.high is None else int(part.high) + 1
        return (256 + 2 * 16 * features) * hidden_size + hidden_size * hidden_size
    if part.kind == "pixels":
        channels = part.shape[0] if len(part.shape) == 3 else 1
        if _is_image(part):
            convolutions = 32 * (channels * 64 + 1) + 64 * (32 * 16 + 1) + 64 * (64 * 9 + 1)
            return convolutions + _convolved(part)[-1] * hidden_size
        height, width = part.shape[-2:]
        return 16 * (9 * channels + 1) + 16 * (height - 2) * (width - 2) * hidden_size
    return prod(part.shape) * hidden_size


def _is_image(part: Part) -> bool:
    """Large enough for the usual three convolutions: 8x8 by 4, 4x4 by 2, 3x3 by 1, of 32, 64 and 64 channels."""
    return part.kind == "pixels" and min(part.shape[-2:]) >= 36


def _convolved(part: Part) -> list[int]:
    """Numbers that come out of each convolution."""
    sides, found = list(part.shape[-2:]), []
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        sides = [(side - kernel) // stride + 1 for side in sides]
        found.append(channels * prod(sides))
    return found


@dataclass(frozen=True)
class TrainingMemory:
    """About how many bytes one training step takes on its device, beside the rows."""

    minibatch: int
    activations: int
    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.minibatch + self.activations + self.parameters + self.gradients + self.optimizer


def training_memory(
    spec: EnvSpec | None,
    core: str,
    hidden_size: int,
    optimizer: str,
    precision: str,
    rows: int,
    horizon: int,
    agents_per_row: int,
) -> TrainingMemory | None:
    """One gradient over `rows` rows: what is gathered, what the backward pass keeps, and the model three times over."""
    count = parameters(spec, core, hidden_size)
    if spec is None or count is None:
        return None
    fields = row_fields(spec, core, hidden_size)
    minibatch = sum(field_bytes(field, rows, horizon, agents_per_row) for field in fields if field.trained)
    width = 2 if precision == "bfloat16" else FLOAT
    kept = 2 + GATES[core] + STATES[core]  # vectors of hidden_size a step: encoder in and out, gates, states
    inputs = sum(
        prod(part.shape) + (sum(_convolved(part)) if _is_image(part) else 0) for part in spec.observation.parts
    )
    activations = rows * horizon * agents_per_row * (kept * hidden_size + inputs + sum(spec.action.sizes)) * width
    return TrainingMemory(minibatch, activations, count * FLOAT, count * FLOAT, count * FLOAT * MOMENTS[optimizer])
