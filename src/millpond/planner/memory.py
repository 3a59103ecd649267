"""Bytes of a training step and of collecting. Those of the rows: `millpond.rollout.schema`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from millpond.envs.env_batch import Buffers
from millpond.envs.spec import EnvSpec, ObservationSpec, Part
from millpond.rollout.schema import STATES

FLOAT = 4  # bytes of a float32
GATES = {"lstm": 4, "gru": 3, "none": 0}
CELL_KINDS = 16  # codes of a grid cell, where the environment does not say how many there are
GATE_STEPS = 1_024  # sequence steps whose gates are in hand at once on the way back through a core
ROW_STEPS = 384  # the same, where an LSTM goes over whole rows in one call
PLAIN_VECTORS = 21  # that one step of a core's way back has at once in plain torch
THREAD_STEPS = 1_024  # steps of sequences for which another thread is worth waking
THREAD_SEQUENCES = 4  # the same in sequences, within an LSTM
MOMENTS = {"adam": 2, "adamw": 2, "radam": 2, "muon": 1}  # numbers that an optimiser keeps a parameter


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
        return 16 * (9 * channels + 1) + _convolved(part)[-1] * hidden_size
    return prod(part.shape) * hidden_size


def _is_image(part: Part) -> bool:
    """Large enough for the usual three convolutions: 8x8 by 4, 4x4 by 2, 3x3 by 1, of 32, 64 and 64 channels."""
    return part.kind == "pixels" and min(part.shape[-2:]) >= 36


def _convolved(part: Part) -> list[int]:
    """Numbers that come out of each convolution."""
    if not _is_image(part):
        return [16 * (part.shape[-2] - 2) * (part.shape[-1] - 2)]
    sides, found = list(part.shape[-2:]), []
    for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        sides = [(side - kernel) // stride + 1 for side in sides]
        found.append(channels * prod(sides))
    return found


@dataclass(frozen=True)
class TrainingMemory:
    """Peak bytes of one training step on its device, beside the rows.

    The peak is in the backward pass through the core (through the first convolution, where there are images): everything
    that the forward pass stored, and the gradients of the step's hidden vectors. What was gathered is freed by then but for
    the inputs. `workspace` is what only some instruction sets need (layouts of images, conversions of bfloat16); the most
    demanding one is counted, so the sum holds on every processor.
    """

    minibatch: int  # observations as the encoders store them
    activations: int
    workspace: int
    parameters: int
    gradients: int  # each thread has its own, until they are added up; those of earlier parts are not counted
    optimizer: int

    @property
    def total(self) -> int:
        return self.minibatch + self.activations + self.workspace + self.parameters + self.gradients + self.optimizer


def training_memory(
    spec: EnvSpec | None,
    core: str,
    hidden_size: int,
    optimizer: str,
    precision: str,
    rows: int,
    horizon: int,
    agents_per_row: int,
    cores: int = 1,
) -> TrainingMemory | None:
    """One gradient over `rows` rows, which so many cores share."""
    count = parameters(spec, core, hidden_size)
    if spec is None or count is None:
        return None
    parts = spec.observation.parts
    sequences = rows * agents_per_row
    width = 2 if precision == "bfloat16" else FLOAT
    encoders = sum(_kept_by_encoder(part, hidden_size, width) for part in parts)
    tanh = all(part.kind == "vector" for part in parts)
    way_back = encoders + _vectors_of_core(core, width, tanh) * hidden_size
    images = [_backward_of_images(part) for part in parts if part.kind == "pixels"]
    steps = sequences * horizon
    whole_rows = core == "lstm" and width == FLOAT  # in one compiled call
    choices = spec.action.kind != "continuous"
    if whole_rows and choices and _encoder_is_compiled(spec.observation):
        threads, inner = max(1, min(cores, rows // -(-THREAD_SEQUENCES // agents_per_row))), 1
    else:
        threads, inner = _threads(cores, rows, horizon * agents_per_row, sequences if whole_rows else 0)
    per_thread = _gates_in_hand(core, hidden_size, width, -(-sequences // (threads * inner)), horizon)
    in_hand, conversions = (threads * inner * count for count in per_thread)
    of_core = GATES[core] * 2 * hidden_size * hidden_size
    if inner > 1:  # each thread has what it computes with in one piece of memory
        way_back += hidden_size * FLOAT * (1 if choices else 4)
    # The least that a backward pass holds, and the most: with the layout that a convolution may want.
    least = max(steps * way_back + in_hand, *(steps * bare for bare, _ in images), 0)
    most = max(steps * way_back + in_hand + conversions, *(steps * laid_out for _, laid_out in images), 0)
    return TrainingMemory(
        minibatch=steps * sum(_kept_input(part) for part in parts),
        activations=least,
        workspace=most - least,
        parameters=count * FLOAT,
        gradients=(count * threads + (inner - 1) * of_core) * FLOAT,
        optimizer=count * FLOAT * MOMENTS[optimizer],
    )


def _threads(cores: int, rows: int, steps_per_row: int, sequences: int) -> tuple[int, int]:
    """Threads that share the rows of one gradient, and those that share `sequences` of an LSTM where the former is one."""
    threads = max(1, min(cores, rows // -(-THREAD_STEPS // steps_per_row)))
    return threads, max(1, min(cores, sequences // THREAD_SEQUENCES)) if threads == 1 else 1


def _encoder_is_compiled(observation: ObservationSpec) -> bool:
    """Whether there is no torch in it, so that a thread's share may be as small as the core's."""
    if len(observation.parts) > 1:
        return False
    part = observation.parts[0]
    return part.kind == "tokens" or (part.kind == "vector" and part.dtype == "float32")


def _kept_input(part: Part) -> int:
    """Bytes of one observation as its encoder keeps it: bytes that are looked up, else float32."""
    return part.nbytes if part.kind in ("grid", "tokens") else prod(part.shape) * FLOAT


def _kept_by_encoder(part: Part, hidden_size: int, width: int) -> int:
    """Bytes of a step behind its input: what convolutions gave, or the sum over tokens."""
    if part.kind == "tokens":
        return hidden_size * width
    return sum(_convolved(part)) * FLOAT if part.kind == "pixels" else 0


def _vectors_of_core(core: str, width: int, tanh: bool) -> int:
    """Bytes of a step for each hidden number: features, hidden state, gates and cell, and the gradients of the first two.

    With bfloat16 the features are there in float32 too, and so is the cell. Without a core there is one more layer; a
    ReLU in place of what came before it is undone with copies.
    """
    whole = FLOAT if width < FLOAT else 0
    if core == "none":
        return {(FLOAT, False): 24, (FLOAT, True): 16, (2, False): 14, (2, True): 12}[width, tanh]
    return 8 * width + whole + (FLOAT if core == "lstm" else 0)


def _backward_of_images(part: Part) -> tuple[int, int]:
    """Bytes per step in the backward pass of the first convolution, at least and at most.

    At least its output and the gradient of that. At most another copy of the output, or the image once more with its
    channels rounded up to eight, which is the layout that kernels for AVX2 take.
    """
    first = _convolved(part)[0] * FLOAT
    channels = part.shape[0] if len(part.shape) == 3 else 1
    image = -(-channels // 8) * 8 * prod(part.shape[-2:]) * FLOAT
    return 2 * first, first + max(2 * first, first + image)


def _gates_in_hand(core: str, hidden_size: int, width: int, sequences: int, horizon: int) -> tuple[int, int]:
    """Bytes of the gates' gradients of one block of steps and of the block before, which is freed after it.

    In bfloat16 a step is plain torch, with intermediate vectors in float32, not all of them at once on processors without
    instructions for bfloat16: these are returned apart.
    """
    if core == "none":
        return 0, 0
    if core == "lstm" and width == FLOAT:
        # Whole rows in one call: gradients of the gates, and the states they began with; and, packed, the weights and as
        # many steps of states. Where BLAS is left to multiply, nothing is packed, and the plan is that much too high.
        steps = min(horizon, max(1, ROW_STEPS // sequences)) * sequences
        return (steps * 5 + 2 * GATES[core] * hidden_size + steps) * FLOAT * hidden_size, 0
    length = max(1, GATE_STEPS // sequences)
    between = PLAIN_VECTORS * FLOAT if width < FLOAT else 0
    return min(horizon, 2 * length) * 4 * width * sequences * hidden_size, between * sequences * hidden_size


def collecting_bytes(spec: EnvSpec | None, core: str, hidden_size: int, num_envs: int, agent_steps: int) -> int | None:
    """What collecting takes besides the rows: arrays of the envs, recurrent states, and the advantages as trained on."""
    if spec is None:
        return None
    arrays = Buffers.layout(spec, num_envs).values()
    envs = sum(prod(shape) * dtype.itemsize for shape, dtype in arrays)
    return envs + num_envs * spec.num_agents * STATES[core] * hidden_size * FLOAT + agent_steps * FLOAT
