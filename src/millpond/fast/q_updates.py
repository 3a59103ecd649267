"""Many updates of DQN or PQN on small images in one call of compiled code.

The plain versions are `DQN` and `AgentGroup` of `millpond.learners`. All threads of an update run the same function. Each
computes some rows of the batch from the observation to the gradient of the linear layer's output (`q_network`), and after
that some rows of its weights' gradient and some of the optimiser's numbers.

B transitions of a batch   U updates of a call   F filters   P places   H hidden   A actions
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.adam import adam, clip_coefficient, sum_of_squares
from millpond.fast.barrier import meet
from millpond.fast.products import transposed_columns
from millpond.fast.q_network import (
    ZERO,
    Array,
    Floats,
    Integers,
    QActivations,
    QLayout,
    backward,
    forward,
    gradients_of,
    put_gradients,
    weights_of,
)
from millpond.fast.simd import WIDTH

ONE, HALF = np.float32(1.0), np.float32(0.5)
LARGEST = float(np.finfo(np.float64).max)
METRICS = ("q_loss", "q_value", "grad_norm")


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
