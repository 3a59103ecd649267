"""Compiled loops of policies without memory on vectors: from stored rows to gradients, and from observations to actions.

    features = tanh(W numbers + b)      hidden = tanh(W features + b)      outputs = W hidden + b

A separate critic is a second network of the same kind. The plain version is `millpond.policies.policy.Policy` with
`core="none"`; `feedforward` calls these loops.

R rows  L = T * a steps of a row  b rows gathered  N = b * L steps  D numbers  H hidden
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.gather import check_row
from millpond.fast.heads import (
    HeadArrays,
    OutputGradients,
    TrainedSteps,
    ValueNumbers,
    draw_actions,
    loss_gradients,
    output_gradients,
)
from millpond.fast.layers import Layers, hidden_backward, layer_forward, output_backward, output_forward
from millpond.fast.ppo_loss import LossArguments

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
ZERO = np.float32(0.0)


class Scaling(NamedTuple):
    """Running statistics of a normalizer, in float32; empty arrays if there is none."""

    mean: Floats
    deviation: Floats
    clip: np.float32


class StoredSteps(NamedTuple):
    """Arrays of rows, each [R, L, ...]; `scaled` is the advantage as trained on. Some may be empty: see `TrainedSteps`."""

    numbers: Floats
    choice: npt.NDArray[np.int32]
    vector: Floats
    allowed: Flags
    alive: Flags
    log_prob: Floats
    value: Floats
    advantage: Floats
    scaled: Floats


class Workspace(NamedTuple):
    """Memory for a block of steps, each [K, H]; those of a critic are empty if there is none."""

    features: Floats
    hidden: Floats
    d_hidden: Floats
    critic_features: Floats
    critic_hidden: Floats


@compiled_fast
def scale_numbers(numbers: Floats, scaling: Scaling, out: Floats) -> None:
    """out [N, D] = numbers, normalised if there is a normalizer. Comparisons preserve a NaN."""
    for n in range(numbers.shape[0]):
        for k in range(numbers.shape[1]):
            x = numbers[n, k]
            if len(scaling.mean):
                x = (x - scaling.mean[k]) / scaling.deviation[k]
                x = scaling.clip if x > scaling.clip else -scaling.clip if x < -scaling.clip else x
            out[n, k] = x


@compiled_fast
def steps_gradients(
    sgemm: int,
    numbers: Floats,
    steps: TrainedSteps,
    layers: Layers,
    critic: Layers,
    head: HeadArrays,
    arguments: LossArguments,
    value_trains_core: bool,
    workspace: Workspace,
    gradients: Layers,
    critic_gradients: Layers,
    d_log_deviation: Floats,
) -> npt.NDArray[np.float64]:
    """numbers [N, D] -> the losses' means [5]; adds to `gradients`, `critic_gradients` and `d_log_deviation`."""
    means, block = np.zeros(5), len(workspace.hidden)
    masked = steps.allowed.shape[0] > 0
    of_output = OutputGradients(gradients.w_output, gradients.b_output, d_log_deviation)
    for start in range(0, len(numbers), block):
        stop = min(len(numbers), start + block)
        inputs, count = numbers[start:stop], stop - start
        features, hidden, d_hidden = (
            workspace.features[:count],
            workspace.hidden[:count],
            workspace.d_hidden[:count],
        )
        layer_forward(sgemm, inputs, layers.w_encoder, layers.b_encoder, features)
        layer_forward(sgemm, features, layers.w_core, layers.b_core, hidden)
        some = TrainedSteps(
            steps.choice[start:stop],
            steps.vector[start:stop],
            steps.allowed[start:stop] if masked else steps.allowed,
            steps.log_prob[start:stop],
            steps.advantage[start:stop],
            steps.value[start:stop],
            steps.target[start:stop],
            steps.weight[start:stop],
            steps.ratio[start:stop],
            steps.new_value[start:stop],
        )
        if len(critic.b_core):
            of_critic, last = workspace.critic_features[:count], workspace.critic_hidden[:count]
            layer_forward(sgemm, inputs, critic.w_encoder, critic.b_encoder, of_critic)
            layer_forward(sgemm, of_critic, critic.w_core, critic.b_core, last)
            out, value = output_forward(sgemm, hidden, layers), output_forward(sgemm, last, critic)
            means += loss_gradients(out, value.reshape(count), some, head, arguments, d_log_deviation)
            output_backward(sgemm, value, last, critic, critic_gradients, d_hidden)
            hidden_backward(sgemm, d_hidden, last, of_critic, inputs, critic, critic_gradients)
            output_backward(sgemm, out, hidden, layers, gradients, d_hidden)
        else:
            output = layers.w_output, layers.b_output
            means += output_gradients(
                sgemm, hidden, some, *output, head, arguments, value_trains_core, of_output, d_hidden
            )
        hidden_backward(sgemm, d_hidden, hidden, features, inputs, layers, gradients)
    return means


@compiled_fast
def gather_steps(
    rows: npt.NDArray[np.int64],
    weight: Floats,
    stored: StoredSteps,
    scaling: Scaling,
    numbers: Floats,
    out: TrainedSteps,
) -> None:
    """Gather the rows [b], which have importance weights [b], as steps in the order in which they are stored."""
    known, length = stored.advantage.shape  # the buffer may have more rows than have advantages
    masked = stored.allowed.shape[0] > 0
    for place in range(len(rows)):
        row = rows[place]
        check_row(row, known)
        first, last = place * length, (place + 1) * length
        scale_numbers(stored.numbers[row], scaling, numbers[first:last])
        out.choice[first:last] = stored.choice[row]
        out.vector[first:last] = stored.vector[row]
        if masked:
            out.allowed[first:last] = stored.allowed[row]
        out.log_prob[first:last] = stored.log_prob[row]
        out.advantage[first:last] = stored.scaled[row]
        out.value[first:last] = stored.value[row]
        for s in range(length):
            out.target[first + s] = stored.advantage[row, s] + stored.value[row, s]
        for s in range(length):
            out.weight[first + s] = weight[place] if stored.alive[row, s] else ZERO


@compiled_fast
def rows_gradients(
    sgemm: int,
    rows: npt.NDArray[np.int64],
    weight: Floats,
    stored: StoredSteps,
    scaling: Scaling,
    numbers: Floats,
    steps: TrainedSteps,
    layers: Layers,
    critic: Layers,
    head: HeadArrays,
    arguments: LossArguments,
    value_trains_core: bool,
    workspace: Workspace,
    gradients: Layers,
    critic_gradients: Layers,
    d_log_deviation: Floats,
) -> npt.NDArray[np.float64]:
    """`gather_steps` and `steps_gradients`; `numbers` and `steps` are memory for the gathered steps."""
    gather_steps(rows, weight, stored, scaling, numbers, steps)
    network = layers, critic, head, arguments, value_trains_core
    return steps_gradients(sgemm, numbers, steps, *network, workspace, gradients, critic_gradients, d_log_deviation)


@compiled_fast
def act_steps(
    sgemm: int,
    scaling: Scaling,
    layers: Layers,
    critic: Layers,
    scale: ValueNumbers,
    head: HeadArrays,
    drawn: bool,
    observation: Floats,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
    value: Floats,
) -> None:
    """observation [N, D] -> value [N]; and if actions are `drawn`, as by `draw_actions`, actions and log_prob [N]."""
    count, size = len(observation), len(layers.b_core)
    numbers = np.empty(observation.shape, np.float32)
    scale_numbers(observation, scaling, numbers)
    features, hidden = np.empty((count, size), np.float32), np.empty((count, size), np.float32)
    layer_forward(sgemm, numbers, layers.w_encoder, layers.b_encoder, features)
    layer_forward(sgemm, features, layers.w_core, layers.b_core, hidden)
    out = output_forward(sgemm, hidden, layers)
    last = out
    if len(critic.b_core):
        layer_forward(sgemm, numbers, critic.w_encoder, critic.b_encoder, features)
        layer_forward(sgemm, features, critic.w_core, critic.b_core, hidden)
        last = output_forward(sgemm, hidden, critic)
    for n in range(count):
        value[n] = scale.mean + scale.deviation * last[n, last.shape[1] - 1]
    if drawn:
        of_head = out if len(critic.b_core) else np.ascontiguousarray(out[:, : out.shape[1] - 1])
        draw_actions(of_head, head, allowed, draws, noise, choice, vector, log_prob)


@compiled_fast
def act_arrays(
    sgemm: int,
    mean: Floats,
    deviation: Floats,
    clip: np.float32,
    w_encoder: Floats,
    b_encoder: Floats,
    w_core: Floats,
    b_core: Floats,
    w_output: Floats,
    b_output: Floats,
    critic_w_encoder: Floats,
    critic_b_encoder: Floats,
    critic_w_core: Floats,
    critic_b_core: Floats,
    critic_w_output: Floats,
    critic_b_output: Floats,
    value_mean: np.float32,
    value_deviation: np.float32,
    sizes: npt.NDArray[np.int64],
    log_deviation: Floats,
    centre: Floats,
    reach: Floats,
    drawn: bool,
    observation: Floats,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
    value: Floats,
) -> None:
    """`act_steps` with single arrays: numba recognises their types in less than half the time that it takes for tuples."""
    layers = Layers(w_encoder, b_encoder, w_core, b_core, w_output, b_output)
    critic_encoder, critic_core = (critic_w_encoder, critic_b_encoder), (critic_w_core, critic_b_core)
    critic = Layers(*critic_encoder, *critic_core, critic_w_output, critic_b_output)
    network = Scaling(mean, deviation, clip), layers, critic, ValueNumbers(value_mean, value_deviation)
    head = HeadArrays(sizes, log_deviation, centre, reach)
    act_steps(sgemm, *network, head, drawn, observation, allowed, draws, noise, choice, vector, log_prob, value)
