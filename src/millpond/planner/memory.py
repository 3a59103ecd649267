"""Bytes of a training step and of collecting. Those of the rows: `millpond.rollout.schema`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from millpond.envs.env_batch import Buffers
from millpond.envs.spec import EnvSpec, Part
from millpond.fast.limits import (
    FEEDFORWARD_BLOCK,
    LSTM_BLOCK,
    MIN_FEEDFORWARD_STEPS_PER_THREAD,
    MIN_SEQUENCES_PER_THREAD,
    MIN_STEPS_PER_THREAD,
    compiles_encoder,
    image_block,
    image_row_threads,
    min_images_per_thread,
)
from millpond.sizes import convolutions

FLOAT = 4  # bytes of a float32
GATES = {"lstm": 4, "gru": 3, "mingru": 3, "none": 0}
CELL_KINDS = 16  # codes of a grid cell, if the environment does not set their number
PLAIN_BLOCK = 1_024  # sequence steps per block of the backward pass through a core, in plain torch
PLAIN_TOKEN_BLOCK = 256  # observations whose tokens are looked up together, in plain torch
PLAIN_TOKEN_VECTORS = 6  # per token of such a block
MINGRU_PLAIN_VECTORS = 13  # vectors of a step in the backward pass of a MinGRU layer in plain torch
PLAIN_VECTORS = 21  # vectors of one step of a core's backward pass in plain torch
MOMENTS = {
    "adam": 2,
    "adamw": 2,
    "radam": 2,
    "muon": 1,
    "schedule_free_adamw": 3,
}  # numbers that an optimiser stores per parameter


def parameters(
    spec: EnvSpec | None, core: str, hidden_size: int, separate_critic: bool = False, num_layers: int = 1
) -> int | None:
    """Number of parameters of the built-in policy: encoders, their common bias, core, heads; a critic has the first three."""
    if spec is None:
        return None
    encoders = sum(_encoder(part, hidden_size) for part in spec.observation.parts) + hidden_size
    if core == "none":
        core_size = hidden_size * hidden_size + hidden_size
    elif core == "mingru":
        core_size = num_layers * GATES[core] * (hidden_size * hidden_size + hidden_size)
    else:
        core_size = GATES[core] * 2 * hidden_size * hidden_size + 4 * hidden_size
    deviations, outputs = len(spec.action.low), spec.action.mask_size
    networks = 2 if separate_critic else 1
    return networks * (encoders + core_size) + (outputs + 1) * (hidden_size + 1) + deviations


def _encoder(part: Part, hidden_size: int) -> int:
    if part.kind == "grid":  # a table with a row for each content of each cell except empty
        return prod(part.shape) * (CELL_KINDS - 1 if part.high is None else int(part.high)) * hidden_size
    if part.kind == "tokens":  # tables of positions and of features with values, and a matrix
        features = 256 if part.high is None else int(part.high) + 1
        return (256 + 2 * 16 * features) * hidden_size + hidden_size * hidden_size
    if part.kind == "pixels":
        layers = convolutions(part.shape)
        filters = sum(layer.filters * (layer.channels * layer.side**2 + 1) for layer in layers)
        return filters + layers[-1].outputs * hidden_size
    return prod(part.shape) * hidden_size


@dataclass(frozen=True)
class TrainingMemory:
    """Peak bytes of one training step on its device, in addition to the rows.

    The peak is in the backward pass of the core (or of the first convolution, if there are images): everything that the
    forward pass stored, and the gradients of the hidden vectors. Of the gathered minibatch only the inputs are left by then.
    `workspace` is needed by some instruction sets only (layouts of images, conversions of bfloat16); the largest is counted,
    so that the sum is an upper bound on every processor.
    """

    minibatch: int  # observations as the encoders store them
    activations: int
    workspace: int
    parameters: int
    gradients: int  # one set per thread until they are summed; those of earlier micro-batches are not counted
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
    fast: bool = True,
    separate_critic: bool = False,
    num_layers: int = 1,
) -> TrainingMemory | None:
    """Return the memory of one gradient over `rows` rows, which `cores` threads share if it is computed by `fast/`.

    With a separate critic, `fast/` computes policies without memory on vectors only.
    """
    count = parameters(spec, core, hidden_size, separate_critic, num_layers)
    if spec is None or count is None:
        return None
    parts = spec.observation.parts
    sequences = rows * agents_per_row
    width = 2 if precision == "bfloat16" else FLOAT
    encoders = sum(_stored_by_encoder(part, hidden_size, width) for part in parts)
    tanh = all(part.kind == "vector" for part in parts)
    of_core = _vectors_of_core(core, width, tanh, num_layers)
    backward = encoders + of_core * hidden_size
    if separate_critic:  # goes backward first, while all that the other network stored is in memory
        backward += encoders + (of_core - 2 * width) * hidden_size
    feedforward = fast and core == "none" and width == FLOAT and compiles_encoder(spec.observation) and tanh
    fast = fast and (feedforward or not separate_critic)
    shapes = [part.shape for part in parts if part.kind == "pixels"]
    compiled_images = bool(shapes) and fast and width == FLOAT
    steps = sequences * horizon
    if feedforward:
        blocks = 5 if separate_critic else 3
        return _feedforward(spec, hidden_size, optimizer, rows, horizon * agents_per_row, cores, count, blocks)
    whole_rows = fast and core in ("lstm", "gru") and width == FLOAT  # in one compiled call
    if not fast:
        threads, inner = 1, 1
    elif whole_rows and compiles_encoder(spec.observation):
        threads, inner = max(1, min(cores, rows // -(-MIN_SEQUENCES_PER_THREAD // agents_per_row))), 1
    else:
        threads, inner = _threads(cores, rows, horizon * agents_per_row, sequences if whole_rows else 0, shapes)
    per_thread = _gate_gradients(core, hidden_size, width, -(-sequences // (threads * inner)), horizon, fast)
    gates, conversions = (threads * inner * count for count in per_thread)
    saved_lookups, lookups = (0, 0) if fast else _plain_lookups(parts, steps, hidden_size)
    gates, conversions = gates + saved_lookups, conversions + lookups
    weights_of_core = GATES[core] * 2 * hidden_size * hidden_size
    if inner > 1:  # each thread has its own working memory
        backward += hidden_size * FLOAT
    # Minimum and maximum of a backward pass; the maximum includes the layout that a convolution may need.
    lowest, highest = steps * backward + gates, steps * backward + gates + conversions
    of_encoders = 0
    if compiled_images:
        sharing = _image_threads(cores, shapes, steps) if threads == 1 else threads
        bare, laid_out = _backward_of_blocks(shapes, steps, sharing)
        lowest, highest = max(lowest, steps * encoders + bare), max(highest, steps * encoders + laid_out)
        of_encoders = (sharing - threads) * sum(_encoder(part, hidden_size) for part in parts if part.kind == "pixels")
    for bare, laid_out in map(_backward_of_images, () if compiled_images else shapes):
        lowest, highest = max(lowest, steps * bare), max(highest, steps * laid_out)
    return TrainingMemory(
        minibatch=steps * sum(_stored_input(part, compiled_images) for part in parts),
        activations=lowest,
        workspace=highest - lowest,
        parameters=count * FLOAT,
        gradients=(count * threads + (inner - 1) * weights_of_core + of_encoders) * FLOAT,
        optimizer=count * FLOAT * MOMENTS[optimizer],
    )


def _feedforward(
    spec: EnvSpec,
    hidden_size: int,
    optimizer: str,
    rows: int,
    steps_per_row: int,
    cores: int,
    count: int,
    vectors: int,
) -> TrainingMemory:
    """Return the memory of a policy without memory on vectors, which goes forward and backward in blocks of steps.

    A block has `vectors`: features and hidden vectors, of a critic too, and the gradient of one of them. Of each step the
    loss needs five numbers and the action.
    """
    steps = rows * steps_per_row
    threads = max(1, min(cores, rows // -(-MIN_FEEDFORWARD_STEPS_PER_THREAD // steps_per_row)))
    block = min(FEEDFORWARD_BLOCK, -(-rows // threads) * steps_per_row)
    action = prod(spec.action.shape) * FLOAT + (spec.action.mask_size if spec.action_masks else 0)
    return TrainingMemory(
        minibatch=steps * sum(_stored_input(part, False) for part in spec.observation.parts),
        activations=threads * block * vectors * hidden_size * FLOAT + steps * (5 * FLOAT + action),
        workspace=0,
        parameters=count * FLOAT,
        gradients=count * threads * FLOAT,
        optimizer=count * FLOAT * MOMENTS[optimizer],
    )


def _threads(
    cores: int, rows: int, steps_per_row: int, sequences: int, images: Sequence[tuple[int, ...]]
) -> tuple[int, int]:
    """Return the threads that share the rows of a gradient, and, if that is one, those that share `sequences` of a core."""
    if images:
        threads = image_row_threads(images, rows, steps_per_row, min(cores, rows))
    else:
        threads = max(1, min(cores, rows // -(-MIN_STEPS_PER_THREAD // steps_per_row)))
    return threads, max(1, min(cores, sequences // MIN_SEQUENCES_PER_THREAD)) if threads == 1 else 1


def _image_threads(cores: int, images: Sequence[tuple[int, ...]], steps: int) -> int:
    """Return the threads that share the images of a gradient whose rows they do not share."""
    return max(1, min(cores, max(steps // min_images_per_thread(image) for image in images)))


def _stored_input(part: Part, compiled_images: bool = False) -> int:
    """Bytes of one observation as its encoder stores it: bytes for tables and compiled images, else float32."""
    bytes_suffice = part.kind in ("grid", "tokens") or (part.kind == "pixels" and compiled_images)
    return part.nbytes if bytes_suffice else prod(part.shape) * FLOAT


def _stored_by_encoder(part: Part, hidden_size: int, width: int) -> int:
    """Bytes of a step that the encoder stores after its input.

    These are the outputs of convolutions, the last ones twice (in the layouts of two layers), or the sum over tokens.
    """
    if part.kind == "tokens":
        return hidden_size * width
    if part.kind != "pixels":
        return 0
    layers = convolutions(part.shape)
    return (sum(layer.outputs for layer in layers) + layers[-1].outputs) * FLOAT


def _vectors_of_core(core: str, width: int, tanh: bool, num_layers: int) -> int:
    """Bytes of a step per hidden unit: features, hidden state, gates and cell, and the gradients of the first two.

    With bfloat16 the features and the cell are stored in float32, too. Without a core there is one more layer, and
    in-place ReLUs need copies.
    """
    in_float32 = FLOAT if width < FLOAT else 0
    if core == "none":
        return {(FLOAT, False): 24, (FLOAT, True): 16, (2, False): 14, (2, True): 12}[width, tanh]
    if (
        core == "mingru"
    ):  # features, the gradient of the output; of each layer sums, hidden state, output (not of the last)
        return (1 + 5 * num_layers) * width + in_float32
    return 8 * width + in_float32 + (FLOAT if core == "lstm" else 0)


def _backward_of_images(image: tuple[int, ...]) -> tuple[int, int]:
    """Minimum and maximum bytes per step in the backward pass of the first convolution.

    The minimum is its output and the gradient of that. The maximum adds a copy of the output, or the image with its channels
    rounded up to eight, which is the layout of kernels for AVX2.
    """
    first = convolutions(image)[0].outputs * FLOAT
    return 2 * first, first + max(2 * first, first + _rounded_up(image))


def _backward_of_blocks(images: Sequence[tuple[int, ...]], steps: int, threads: int) -> tuple[int, int]:
    """Minimum and maximum bytes of the same for compiled images, besides what the forward pass stored.

    All steps have a gradient of the last convolution's output. For a block of images per thread there are these images in
    float32, that gradient in another layout, and that of the first convolution's output; at most also copies as above.
    """
    lowest = highest = 0
    for image in images:
        layers, block = convolutions(image), threads * min(image_block(image), -(-steps // threads))
        first, last = layers[0].outputs * FLOAT, layers[-1].outputs * FLOAT
        bare = steps * last + block * (prod(image) * FLOAT + first + last)
        lowest, highest = max(lowest, bare), max(highest, bare + block * (first + max(first, _rounded_up(image))))
    return lowest, highest


def _rounded_up(image: tuple[int, ...]) -> int:
    """Bytes of an image in float32 with its channels rounded up to eight."""
    channels = image[0] if len(image) == 3 else 1
    return -(-channels // 8) * 8 * prod(image[-2:]) * FLOAT


def _plain_lookups(parts: tuple[Part, ...], steps: int, hidden_size: int) -> tuple[int, int]:
    """Return the bytes of table lookups in plain torch: saved for the backward pass, and at most in addition.

    Cells of a grid become 64-bit indices, which the backward pass sorts; tokens are looked up for a block of observations
    at a time, each in some vectors.
    """
    cells = sum(prod(part.shape) for part in parts if part.kind == "grid")
    tokens = sum(part.shape[0] for part in parts if part.kind == "tokens")
    vectors = PLAIN_TOKEN_VECTORS * min(steps, PLAIN_TOKEN_BLOCK) * tokens * hidden_size * FLOAT
    return steps * cells * 8, steps * cells * 24 + vectors


def _gate_gradients(
    core: str, hidden_size: int, width: int, sequences: int, horizon: int, fast: bool
) -> tuple[int, int]:
    """Return the bytes of the gates' gradients of one block of steps and of the block before, which is freed after it.

    In bfloat16, and without `fast`, a step is plain torch, with intermediate vectors in float32, not all of them at once on
    processors without instructions for bfloat16: these are returned separately.
    """
    if core == "none":
        return 0, 0
    if (
        core == "mingru"
    ):  # of all steps of one layer at once: sums and inputs; in plain torch also gates and a scan's passes
        vectors = 4 if fast and width == FLOAT else MINGRU_PLAIN_VECTORS
        return vectors * width * sequences * horizon * hidden_size, 0
    if width == FLOAT and fast:
        # Whole rows in one call: gradients of the gates (of a GRU, of the sums from inputs and from hidden states), the
        # initial states, packed weights, and as many steps of packed states. If BLAS multiplies, nothing is packed, and the
        # estimate is too high by that.
        steps = min(horizon, max(1, LSTM_BLOCK // sequences)) * sequences
        gates = 4 if core == "lstm" else 6
        return (steps * (gates + 1) + 2 * GATES[core] * hidden_size + steps) * FLOAT * hidden_size, 0
    length = max(1, PLAIN_BLOCK // sequences)
    between = PLAIN_VECTORS * FLOAT
    return min(horizon, 2 * length) * 4 * width * sequences * hidden_size, between * sequences * hidden_size


def collecting_bytes(spec: EnvSpec | None, state_shape: tuple[int, ...], num_envs: int, agent_steps: int) -> int | None:
    """Bytes of collecting besides the rows: env arrays, recurrent states, and normalised advantages."""
    if spec is None:
        return None
    arrays = Buffers.layout(spec, num_envs).values()
    envs = sum(prod(shape) * dtype.itemsize for shape, dtype in arrays)
    return envs + num_envs * spec.num_agents * prod(state_shape) * FLOAT + agent_steps * FLOAT
