"""Q-networks on small images in compiled code: values, gradients, and many updates of DQN or PQN in one call.

The plain versions are `QNetwork`, `DQN` and `AgentGroup` of `millpond.learners`.
The network is a 3x3 convolution, LayerNorm over channels, ReLU; a linear layer, LayerNorm, ReLU; a linear layer.

All threads of an update run the same function. Each computes some rows of the batch from the observation to the gradient of
the linear layer's output, and after that some rows of its weights' gradient and some of the optimiser's numbers.

B transitions of a batch   U updates of a call   C channels   F filters   P places   H hidden   A actions
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.adam import adam, clip_coefficient, sum_of_squares
from millpond.fast.barrier import meet
from millpond.fast.packed_gemm import transpose
from millpond.fast.products import product, product_transposed, transposed_columns
from millpond.fast.simd import WIDTH, add_eight, load_eight, multiply_add_eight, multiply_eight, store_eight
from millpond.fast.simd_math import spread_eight, sum_eight
from millpond.fast.small_images import (
    SIDE,
    add_partial_sums,
    add_weight_gradient,
    convolve,
    filters_last,
    list_pixels,
    margin,
    normalize_groups,
    normalize_groups_backward,
    normalize_places,
    normalize_places_backward,
    with_padding,
    without_padding,
)

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
ZERO, ONE, HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
LARGEST = float(np.finfo(np.float64).max)
METRICS = ("q_loss", "q_value", "grad_norm")


class QLayout(NamedTuple):
    """Sizes of a network, and where each parameter begins in its flat parameters."""

    channels: int
    height: int
    width: int
    filters: int
    hidden: int
    actions: int
    bias: int
    convolution: int
    convolution_bias: int
    gain: int
    shift: int
    linear: int
    hidden_gain: int
    hidden_shift: int
    output: int
    output_bias: int


class QWeights(NamedTuple):
    """Parameters of one network: views of its flat parameters, and the convolution's weights with filters last."""

    filters: Floats  # [C * 9 * F]
    filter_bias: Floats  # [F]
    gain: Floats  # [F]
    shift: Floats  # [F]
    linear: Floats  # [H, F * P]
    bias: Floats  # [H]
    hidden_gain: Floats  # [H]
    hidden_shift: Floats  # [H]
    output: Floats  # [A * H]
    output_bias: Floats  # [A]


class QActivations(NamedTuple):
    """Numbers of a batch that the gradient needs. Threads write different rows."""

    normal: Floats  # [B, F * P] after LayerNorm over channels, without gain and shift
    deviation: Floats  # [B, P]
    inputs: Floats  # [B, F * P] of the linear layer
    hidden: Floats  # [B, H] after LayerNorm, without gain and shift
    hidden_deviation: Floats  # [B, 1]
    active: Floats  # [B, H] inputs of the last layer
    q: Floats  # [B, A]


class QGradients(NamedTuple):
    """Gradients of one thread's rows of a batch, of all parameters but the linear layer's weights."""

    filters: Floats
    filter_bias: Floats
    gain: Floats
    shift: Floats
    bias: Floats
    hidden_gain: Floats
    hidden_shift: Floats
    output: Floats
    output_bias: Floats


@compiled_fast
def weights_of(flat: Floats, layout: QLayout) -> QWeights:
    """View flat parameters as those of a network."""
    places = (layout.height - SIDE + 1) * (layout.width - SIDE + 1)
    f, h, inputs, taps = layout.filters, layout.hidden, layout.filters * places, layout.channels * SIDE * SIDE
    filters = np.empty(taps * f, np.float32)
    filters_last(flat[layout.convolution : layout.convolution + taps * f], f, filters)
    return QWeights(
        filters,
        flat[layout.convolution_bias : layout.convolution_bias + f],
        flat[layout.gain : layout.gain + f],
        flat[layout.shift : layout.shift + f],
        flat[layout.linear : layout.linear + h * inputs].reshape(h, inputs),
        flat[layout.bias : layout.bias + h],
        flat[layout.hidden_gain : layout.hidden_gain + h],
        flat[layout.hidden_shift : layout.hidden_shift + h],
        flat[layout.output : layout.output + layout.actions * h],
        flat[layout.output_bias : layout.output_bias + layout.actions],
    )


@compiled_fast
def forward(
    sgemm: int,
    layout: QLayout,
    weights: QWeights,
    frames: Array,
    index: Integers,
    scale: np.float32,
    begin: int,
    end: int,
    keep: bool,
    out: QActivations,
) -> None:
    """Compute Q of the observations frames[index[begin:end]] into the rows begin:end.

    Not to `keep` what only the gradient needs leaves more of the cache to the rest.
    """
    if end <= begin:
        return
    filters, hidden = layout.filters, layout.hidden
    places, height, width, pixels = out.deviation.shape[1], layout.height, layout.width, frames.shape[1]
    convolved, values = np.empty(places * filters, np.float32), np.empty(pixels + 1, np.float32)
    where = np.empty(pixels + 1, np.int64)
    padded = np.zeros((margin(width) + height * width) * filters, np.float32)
    scratch = np.empty(places * filters, np.float32)
    for row in range(begin, end):
        normal = out.normal[row] if keep else scratch
        count = list_pixels(frames[index[row]], scale, where, values)
        convolve(where, values, count, height, width, weights.filters, weights.filter_bias, padded)
        without_padding(padded, height, width, filters, convolved)
        transpose(convolved, places, filters, normal)
        normalize_places(normal, places, weights.gain, weights.shift, out.deviation[row], out.inputs[row])
    product_transposed(sgemm, out.inputs[begin:end], weights.linear, False, out.hidden[begin:end])
    for row in range(begin, end):
        values, active_row = out.hidden[row], out.active[row]
        for k in range(0, hidden, WIDTH):
            store_eight(add_eight(load_eight(values, k), load_eight(weights.bias, k)), values, k)
        normalize_groups(
            values, hidden, weights.hidden_gain, weights.hidden_shift, out.hidden_deviation[row], active_row
        )
        for action in range(layout.actions):
            sums = spread_eight(ZERO)
            for k in range(0, hidden, WIDTH):
                sums = multiply_add_eight(
                    load_eight(active_row, k), load_eight(weights.output, action * hidden + k), sums
                )
            out.q[row, action] = sum_eight(sums) + weights.output_bias[action]


@compiled_fast
def q_values(
    sgemm: int, layout: QLayout, flat: Floats, frames: Array, scale: np.float32, begin: int, end: int, out: QActivations
) -> None:
    """Compute Q of frames[begin:end] from flat parameters: acting, in one call."""
    forward(sgemm, layout, weights_of(flat, layout), frames, np.arange(len(frames)), scale, begin, end, False, out)


@compiled_fast
def gradients_of(flat: Floats, layout: QLayout) -> QGradients:
    """View one thread's flat memory as gradients."""
    f, h = layout.filters, layout.hidden
    taps, outputs = layout.channels * SIDE * SIDE * f, layout.actions * h
    narrow = taps + 3 * f
    wide = narrow + 3 * h
    return QGradients(
        flat[:taps],
        flat[taps : taps + f],
        flat[taps + f : taps + 2 * f],
        flat[taps + 2 * f : narrow],
        flat[narrow : narrow + h],
        flat[narrow + h : narrow + 2 * h],
        flat[narrow + 2 * h : wide],
        flat[wide : wide + outputs],
        flat[wide + outputs : wide + outputs + layout.actions],
    )


@compiled_fast
def backward(
    sgemm: int,
    layout: QLayout,
    weights: QWeights,
    frames: Array,
    index: Integers,
    scale: np.float32,
    begin: int,
    end: int,
    kept: QActivations,
    action: Integers,
    difference: Floats,
    hidden_gradient: Floats,
    input_gradient: Floats,
    grads: QGradients,
) -> None:
    """Compute gradients of the rows begin:end from that of Q of their actions: `difference` [B].

    Writes the rows of hidden_gradient [B, H] before the linear layer's LayerNorm, and `grads`; input_gradient [B, F * P] is
    memory that is overwritten.
    """
    hidden, filters = layout.hidden, layout.filters
    if end <= begin:
        return
    for row in range(begin, end):
        chosen, gradient, active = action[row], hidden_gradient[row], kept.active[row]
        factor = spread_eight(difference[row])
        grads.output_bias[chosen] += difference[row]
        for k in range(0, hidden, WIDTH):
            at = chosen * hidden + k
            store_eight(multiply_eight(factor, load_eight(weights.output, at)), gradient, k)
            total = multiply_add_eight(factor, load_eight(active, k), load_eight(grads.output, at))
            store_eight(total, grads.output, at)
        normalize_groups_backward(
            gradient,
            kept.hidden[row],
            kept.hidden_deviation[row],
            hidden,
            weights.hidden_gain,
            weights.hidden_shift,
            grads.hidden_gain,
            grads.hidden_shift,
            grads.bias,
        )
    product(sgemm, hidden_gradient[begin:end], weights.linear, False, input_gradient[begin:end])
    places, height, width, pixels = kept.deviation.shape[1], layout.height, layout.width, frames.shape[1]
    gradient, partial = np.empty(places * filters, np.float32), np.zeros((3, filters * WIDTH), np.float32)
    where, values = np.empty(pixels + 1, np.int64), np.empty(pixels + 1, np.float32)
    padded = np.zeros((margin(width) + height * width) * filters, np.float32)
    for row in range(begin, end):
        normalize_places_backward(
            input_gradient[row],
            kept.normal[row],
            kept.deviation[row],
            places,
            weights.gain,
            weights.shift,
            partial[0],
            partial[1],
            partial[2],
        )
        transpose(input_gradient[row], filters, places, gradient)
        with_padding(gradient, height, width, filters, padded)
        count = list_pixels(frames[index[row]], scale, where, values)
        add_weight_gradient(where, values, count, height, width, padded, filters, grads.filters)
    add_partial_sums(partial[0], grads.gain)
    add_partial_sums(partial[1], grads.shift)
    add_partial_sums(partial[2], grads.filter_bias)


@compiled_fast
def put(values: Floats, first: bool, out: Floats) -> None:
    """Write values, or add them if they are not the `first`."""
    for k in range(len(values)):
        out[k] = values[k] if first else out[k] + values[k]


@compiled_fast
def put_gradients(layout: QLayout, grads: QGradients, first: bool, out: Floats) -> None:
    """Write one thread's gradients into flat ones, or add them."""
    put(grads.filter_bias, first, out[layout.convolution_bias :])
    put(grads.gain, first, out[layout.gain :])
    put(grads.shift, first, out[layout.shift :])
    put(grads.bias, first, out[layout.bias :])
    put(grads.hidden_gain, first, out[layout.hidden_gain :])
    put(grads.hidden_shift, first, out[layout.hidden_shift :])
    put(grads.output, first, out[layout.output :])
    put(grads.output_bias, first, out[layout.output_bias :])
    filters, taps = layout.filters, layout.channels * SIDE * SIDE
    for f in range(filters):
        for k in range(taps):
            at = layout.convolution + f * taps + k
            out[at] = grads.filters[k * filters + f] + (ZERO if first else out[at])


# -- updates


class QShared(NamedTuple):
    """Memory of an update that all its threads see."""

    barrier: Integers
    sums: npt.NDArray[np.float64]  # [threads, 8] loss, Q, squares of the gradient, of each thread
    partial: Floats  # [threads, all parameters but the linear layer's weights]
    difference: Floats  # [B] gradient of Q of the actions
    hidden_gradient: Floats  # [B, H]
    input_gradient: Floats  # [B, F * P]
    action: Integers  # [B]
    kept: QActivations
    other: QActivations  # of next observations


class FlatOptimizer(NamedTuple):
    """State of Adam, and what each update of a call does with it."""

    data: Floats  # [parameters]
    grad: Floats
    first: Floats
    second: Floats
    target: Floats  # empty: there is none
    beta1: float
    beta2: float
    max_norm: float
    rate: Floats  # [U]
    epsilon: Floats  # [U]; negative: this step is not divided by the deviation
    tau: Floats  # [U]: 0 leaves the target unchanged, 1 makes it a copy
    keep: Floats  # [U]: the parameters are multiplied by it first (weight decay)


@compiled_fast
def reduce_gradients(sgemm: int, layout: QLayout, thread: int, threads: int, shared: QShared, out: Floats) -> None:
    """Compute the flat gradient from what all threads know of their rows."""
    hidden, inputs = layout.hidden, shared.kept.inputs.shape[1]
    meet(shared.barrier, threads)
    begin, end = hidden * thread // threads, hidden * (thread + 1) // threads
    if end > begin:
        rows = out[layout.linear + begin * inputs : layout.linear + end * inputs].reshape(end - begin, inputs)
        transposed_columns(sgemm, shared.hidden_gradient, begin, end, shared.kept.inputs, rows)
    if thread == 0:
        for other in range(threads):
            put_gradients(layout, gradients_of(shared.partial[other], layout), other == 0, out)
    meet(shared.barrier, threads)


@compiled_fast
def apply_gradient(
    thread: int, threads: int, shared: QShared, optimizer: FlatOptimizer, update: int, metrics: npt.NDArray[np.float64]
) -> bool:
    """Clip, update the parameters and the target, and store the metrics [3]; return True if all of these are finite."""
    size = len(optimizer.data)
    begin, end = size * thread // threads // WIDTH * WIDTH, size * (thread + 1) // threads // WIDTH * WIDTH
    if thread == threads - 1:
        end = size
    shared.sums[thread, 2] = sum_of_squares(optimizer.grad, begin, end)
    meet(shared.barrier, threads)
    loss, q, squares = 0.0, 0.0, 0.0
    for other in range(threads):
        loss += shared.sums[other, 0]
        q += shared.sums[other, 1]
        squares += shared.sums[other, 2]
    coefficient = clip_coefficient(squares, optimizer.max_norm)
    epsilon, tau, keep = optimizer.epsilon[update], optimizer.tau[update], optimizer.keep[update]
    if keep != ONE:
        for k in range(begin, end):
            optimizer.data[k] *= keep
    adam(
        optimizer.data,
        optimizer.grad,
        optimizer.first,
        optimizer.second,
        optimizer.target if tau > ZERO else optimizer.target[:0],
        begin,
        end,
        coefficient,
        optimizer.beta1,
        optimizer.beta2,
        optimizer.rate[update],
        epsilon,
        epsilon >= ZERO,
        tau,
    )
    if thread == 0:
        metrics[0], metrics[1], metrics[2] = loss, q, np.sqrt(squares)
    meet(shared.barrier, threads)
    return abs(loss + q + squares) <= LARGEST  # compiled like this file, np.isfinite is always true


class DQNBatches(NamedTuple):
    """Batches of all updates of a call, one after the other."""

    frames: Array  # [U * B, pixels]
    next_frames: Array  # [U * B, pixels]; [0, pixels] if the rewards are whole returns
    action: Integers  # [U * B]
    reward: Floats  # [U * B]
    discount: Floats  # [U * B]
    next_allowed: npt.NDArray[np.bool_]  # [U * B, A]; [0, A] if there are no masks


@compiled_fast
def best_of(q: Floats, allowed: npt.NDArray[np.bool_], row: int) -> int:
    """Return the action with the largest Q that allowed[row] has, the first of equal ones; of all if it has none."""
    best = -1
    if len(allowed) > 0:
        for action in range(len(q)):
            if allowed[row, action] and (best < 0 or q[action] > q[best]):
                best = action
    if best >= 0:
        return best
    best = 0
    for action in range(1, len(q)):
        if q[action] > q[best]:
            best = action
    return best


@compiled_fast
def dqn_gradient(
    sgemm: int,
    layout: QLayout,
    thread: int,
    threads: int,
    shared: QShared,
    online: Floats,
    target: Floats,
    batches: DQNBatches,
    scale: np.float32,
    batch: int,
    update: int,
    double: bool,
    huber: bool,
    parts: int,
    grad: Floats,
) -> None:
    """Compute the gradient of one update, and this thread's share of loss and Q; see `DQN.update`."""
    begin, end = batch * thread // threads, batch * (thread + 1) // threads
    start = batch * update
    index = np.arange(start, start + batch)
    kept, other = shared.kept, shared.other
    mine, theirs = weights_of(online, layout), weights_of(target, layout)
    bootstraps = len(batches.next_frames) > 0
    if double and bootstraps:
        forward(sgemm, layout, mine, batches.next_frames, index, scale, begin, end, False, other)
        for row in range(begin, end):
            shared.action[row] = best_of(other.q[row], batches.next_allowed, start + row)
    if bootstraps:
        forward(sgemm, layout, theirs, batches.next_frames, index, scale, begin, end, False, other)
    forward(sgemm, layout, mine, batches.frames, index, scale, begin, end, True, kept)
    share = ONE / np.float32(batch * parts)
    loss, total = 0.0, 0.0
    for row in range(begin, end):
        at = start + row
        future = batches.reward[at]
        if bootstraps:
            best = shared.action[row] if double else best_of(other.q[row], batches.next_allowed, at)
            future += batches.discount[at] * other.q[row, best]
        q = kept.q[row, batches.action[at]]
        difference, size = q - future, abs(q - future)
        linear = huber and size > ONE
        loss += np.float64((size - HALF if linear else HALF * difference * difference) * share)
        total += np.float64(q * share)
        shared.difference[row] = (np.sign(difference) if linear else difference) * share
    shared.sums[thread, 0], shared.sums[thread, 1] = loss, total
    for row in range(begin, end):
        shared.action[row] = batches.action[start + row]
    partial = shared.partial[thread]
    partial[:] = ZERO
    backward(
        sgemm,
        layout,
        mine,
        batches.frames,
        index,
        scale,
        begin,
        end,
        kept,
        shared.action,
        shared.difference,
        shared.hidden_gradient,
        shared.input_gradient,
        gradients_of(partial, layout),
    )
    reduce_gradients(sgemm, layout, thread, threads, shared, grad)


@compiled_fast
def train_dqn(
    sgemm: int,
    layout: QLayout,
    thread: int,
    threads: int,
    shared: QShared,
    batches: DQNBatches,
    scale: np.float32,
    batch: int,
    double: bool,
    huber: bool,
    optimizer: FlatOptimizer,
    target: Floats,
    metrics: npt.NDArray[np.float64],
) -> int:
    """Run one update for each row of metrics [U, 3]; return how many were done: none after one that is not finite."""
    for update in range(len(metrics)):
        dqn_gradient(
            sgemm,
            layout,
            thread,
            threads,
            shared,
            optimizer.data,
            target,
            batches,
            scale,
            batch,
            update,
            double,
            huber,
            1,
            optimizer.grad,
        )
        if not apply_gradient(thread, threads, shared, optimizer, update, metrics[update]):
            return update + 1
    return len(metrics)


class PQNCollection(NamedTuple):
    """One agent's collection, and the places in it that each update of a call learns from."""

    frames: Array  # [T * E, pixels]
    action: npt.NDArray[np.int32]  # [T * E]
    goal: Floats  # [T * E]
    lost: npt.NDArray[np.bool_]  # [T * E]
    places: Integers  # [U * B]


@compiled_fast
def train_pqn(
    sgemm: int,
    layout: QLayout,
    thread: int,
    threads: int,
    shared: QShared,
    collected: PQNCollection,
    scale: np.float32,
    batch: int,
    optimizer: FlatOptimizer,
    metrics: npt.NDArray[np.float64],
) -> int:
    """Run one update for each row of metrics [U, 3]; see `AgentGroup.learn`."""
    begin, end = batch * thread // threads, batch * (thread + 1) // threads
    partial = shared.partial[thread]
    for update in range(len(metrics)):
        weights = weights_of(optimizer.data, layout)
        places = collected.places[update * batch : (update + 1) * batch]
        forward(sgemm, layout, weights, collected.frames, places, scale, begin, end, True, shared.kept)
        valid = 0
        for row in range(batch):
            valid += not collected.lost[places[row]]
        share = ONE / np.float32(max(valid, 1))
        loss, total = 0.0, 0.0
        for row in range(begin, end):
            at = places[row]
            shared.action[row] = collected.action[at]
            q = shared.kept.q[row, shared.action[row]]
            total += np.float64(q / np.float32(batch))
            difference = ZERO if collected.lost[at] else q - collected.goal[at]
            loss += np.float64(HALF * difference * difference * share)
            shared.difference[row] = difference * share
        shared.sums[thread, 0], shared.sums[thread, 1] = loss, total
        partial[:] = ZERO
        backward(
            sgemm,
            layout,
            weights,
            collected.frames,
            places,
            scale,
            begin,
            end,
            shared.kept,
            shared.action,
            shared.difference,
            shared.hidden_gradient,
            shared.input_gradient,
            gradients_of(partial, layout),
        )
        reduce_gradients(sgemm, layout, thread, threads, shared, optimizer.grad)
        if not apply_gradient(thread, threads, shared, optimizer, update, metrics[update]):
            return update + 1
    return len(metrics)
