"""Updates of SAC in compiled code: critics, actor, temperature and targets, many updates in one call.

The plain version is `millpond.learners.sac.SAC`. All threads of an update run the same function. Half of them compute the first
critic with its target, the others the second: so its weights stay in the caches of their cores. The actor is shared by rows:
each thread computes some rows of the batch, and after that some rows of every weight's gradient and some of the optimiser's
numbers; in the same way threads share a critic. In the actor's gradient only the smaller critic of each row is computed
backwards.

B transitions   D numbers per action   I inputs   H hidden   U updates of a call
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.fast.adam import adam
from millpond.fast.barrier import meet
from millpond.fast.mlp import ZERO, Floats, MLPLayout, MLPMemory, matrix, mlp_backward, mlp_forward, weight_gradients
from millpond.fast.products import product
from millpond.fast.simd import WIDTH, load_eight, multiply_add_eight, multiply_eight, store_eight
from millpond.fast.simd_math import spread_eight, sum_eight, where_positive_eight

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
ONE, TWO, HALF = np.float32(1.0), np.float32(2.0), np.float32(0.5)
LOG_2, HALF_LOG_2_PI = np.float32(math.log(2.0)), np.float32(0.5 * math.log(2 * math.pi))
LARGEST = float(np.finfo(np.float64).max)
METRICS = ("q_loss", "q_value", "policy_loss", "entropy", "alpha")


class SACMemory(NamedTuple):
    """Memory of an update that all its threads see."""

    barrier: Integers
    group_barriers: Integers  # [2, ...] of the threads of each critic
    sums: Doubles  # [threads, 8] of each thread: losses, Q, log-probabilities
    inputs: Floats  # [B, I] of the critics: observation and action of the batch
    next_inputs: Floats  # [B, I]
    new_inputs: Floats  # [B, I] with the actor's action
    actor: MLPMemory
    other: MLPMemory  # actor at next observations
    first: MLPMemory  # critic, or its target
    second: MLPMemory  # critic, or its target
    values: Floats  # [2, B] of the targets, or of the critics at new actions
    difference: Floats  # [2, B] gradient of the critics' outputs
    log_prob: Floats  # [B]
    next_log_prob: Floats  # [B]
    action_gradient: Floats  # [B, D]
    output_gradient: Floats  # [B, 2 D] of the actor
    rows: Integers  # [2, B]


class SACBatches(NamedTuple):
    """Batches of all updates of a call, one after the other."""

    observation: Floats  # [U * B, S]
    next_observation: Floats  # [U * B, S]
    action: Floats  # [U * B, D]
    reward: Floats  # [U * B]
    discount: Floats  # [U * B]
    next_noise: Floats  # [U * B, D]
    noise: Floats  # [U * B, D]


class AdamState(NamedTuple):
    """Parameters of one optimiser, flat, and its steps in each update."""

    data: Floats
    grad: Floats
    first: Floats
    second: Floats
    rate: Floats  # [U]
    epsilon: Floats  # [U]


class SACSettings(NamedTuple):
    """Numbers that do not change."""

    centre: Floats  # [D] of the bounds of the actions
    reach: Floats  # [D]
    low: np.float32  # limits of the log standard deviation
    high: np.float32
    target_entropy: float
    tau: np.float32
    beta1: float
    beta2: float


@compiled_fast
def squash(
    settings: SACSettings, output: Floats, noise: Floats, begin: int, end: int, inputs: Floats, log_prob: Floats
) -> None:
    """Draw actions from the actor's outputs [B, 2 D] into the last columns of inputs [B, I]; see `SACActor.sample`."""
    size = len(settings.reach)
    at = inputs.shape[1] - size
    for row in range(begin, end):
        total = ZERO
        for d in range(size):
            log_deviation = min(max(output[row, size + d], settings.low), settings.high)
            before = output[row, d] + noise[row, d] * np.exp(log_deviation)
            double = -TWO * before
            softplus = max(double, ZERO) + np.log1p(np.exp(-abs(double)))
            total -= HALF * noise[row, d] * noise[row, d] + log_deviation + HALF_LOG_2_PI
            total -= TWO * (LOG_2 - before - softplus) + np.log(settings.reach[d])
            inputs[row, at + d] = settings.centre[d] + np.tanh(before) * settings.reach[d]
        log_prob[row] = total


@compiled_fast
def squash_backward(
    settings: SACSettings,
    output: Floats,
    noise: Floats,
    begin: int,
    end: int,
    action_gradient: Floats,
    log_prob_gradient: np.float32,
    out: Floats,
) -> None:
    """Compute the gradient of the actor's outputs [B, 2 D] from those of actions and log-probabilities."""
    size = len(settings.reach)
    for row in range(begin, end):
        for d in range(size):
            raw = output[row, size + d]
            deviation = np.exp(min(max(raw, settings.low), settings.high))
            tanh = np.tanh(output[row, d] + noise[row, d] * deviation)
            before = action_gradient[row, d] * settings.reach[d] * (ONE - tanh * tanh) + log_prob_gradient * TWO * tanh
            out[row, d] = before
            limited = raw < settings.low or raw > settings.high
            out[row, size + d] = ZERO if limited else before * noise[row, d] * deviation - log_prob_gradient


@compiled_fast
def actions_backward(
    sgemm: int,
    layout: MLPLayout,
    flat: Floats,
    memory: MLPMemory,
    rows: Integers,
    upstream: np.float32,
    begin: int,
    action_gradient: Floats,
) -> None:
    """Compute the gradients of actions at some rows of a critic, each with the same gradient of its output.

    memory.gradient1 and gradient2 from row `begin` on are overwritten.
    """
    hidden, size, count = layout.hidden, action_gradient.shape[1], len(rows)
    if count == 0:
        return
    weight3, factor = flat[layout.weight3 : layout.weight3 + hidden], spread_eight(upstream)
    for place in range(count):
        line, active = memory.gradient2[begin + place], memory.hidden2[rows[place]]
        for k in range(0, hidden, WIDTH):
            each = multiply_eight(factor, load_eight(weight3, k))
            store_eight(where_positive_eight(load_eight(active, k), each), line, k)
    weight2 = matrix(flat, layout.weight2, hidden, hidden)
    end = begin + count
    product(sgemm, memory.gradient2[begin:end], weight2, False, memory.gradient1[begin:end])
    weight1, first = matrix(flat, layout.weight1, hidden, layout.inputs), layout.inputs - size
    columns = np.empty((size, hidden), np.float32)
    for d in range(size):
        for k in range(hidden):
            columns[d, k] = weight1[k, first + d]
    for place in range(count):
        line, active = memory.gradient1[begin + place], memory.hidden1[rows[place]]
        for d in range(size):
            column, sums = columns[d], spread_eight(ZERO)
            for k in range(0, hidden, WIDTH):
                each = where_positive_eight(load_eight(active, k), load_eight(line, k))
                sums = multiply_add_eight(each, load_eight(column, k), sums)
            action_gradient[rows[place], d] = sum_eight(sums)


@compiled_fast
def step(
    settings: SACSettings,
    state: AdamState,
    update: int,
    target: Floats,
    first: int,
    last: int,
    thread: int,
    threads: int,
) -> None:
    """Update this thread's part of the parameters first:last, and of their target if it is not empty."""
    size = (last - first) // WIDTH
    begin, end = first + size * thread // threads * WIDTH, first + size * (thread + 1) // threads * WIDTH
    if thread == threads - 1:
        end = last
    adam(
        state.data,
        state.grad,
        state.first,
        state.second,
        target,
        begin,
        end,
        ONE,
        settings.beta1,
        settings.beta2,
        state.rate[update],
        state.epsilon[update],
        True,
        settings.tau,
    )


@compiled_fast
def put_inputs(observation: Floats, start: int, begin: int, end: int, out: Floats) -> None:
    """Copy observations into the first columns of the critics' inputs."""
    for row in range(begin, end):
        for k in range(observation.shape[1]):
            out[row, k] = observation[start + row, k]


@compiled_fast
def train_sac(
    sgemm: int,
    actor: MLPLayout,
    critic: MLPLayout,
    thread: int,
    threads: int,
    memory: SACMemory,
    batches: SACBatches,
    batch: int,
    policy: AdamState,
    critics: AdamState,
    alpha: AdamState,
    targets: Floats,
    settings: SACSettings,
    metrics: Doubles,
) -> int:
    """Run one update for each row of metrics [U, 5]; return how many were done: none after one that is not finite."""
    begin, end = batch * thread // threads, batch * (thread + 1) // threads
    share, half, none = ONE / np.float32(batch), len(critics.data) // 2, targets[:0]
    size, seen = len(settings.reach), batches.observation.shape[1]
    sums = memory.sums[thread]
    # The critics of this thread, its place among the threads of each, and the rows that it computes of them
    first_critic, last_critic = (0, 2) if threads == 1 else (thread % 2, thread % 2 + 1)
    place, members = (0, 1) if threads == 1 else (thread // 2, (threads + 1 - thread % 2) // 2)
    low, high = batch * place // members, batch * (place + 1) // members
    group = memory.group_barriers[first_critic]
    for update in range(len(metrics)):
        start, temperature = update * batch, np.exp(alpha.data[0])
        sums[:] = 0.0
        now, then = batches.observation[start : start + batch], batches.next_observation[start : start + batch]
        noise, next_noise = batches.noise[start : start + batch], batches.next_noise[start : start + batch]
        # actions
        mlp_forward(sgemm, actor, policy.data, then, begin, end, memory.other)
        put_inputs(then, 0, begin, end, memory.next_inputs)
        squash(settings, memory.other.output, next_noise, begin, end, memory.next_inputs, memory.next_log_prob)
        mlp_forward(sgemm, actor, policy.data, now, begin, end, memory.actor)
        put_inputs(now, 0, begin, end, memory.new_inputs)
        squash(settings, memory.actor.output, noise, begin, end, memory.new_inputs, memory.log_prob)
        put_inputs(now, 0, begin, end, memory.inputs)
        for row in range(begin, end):
            for d in range(size):
                memory.inputs[row, seen + d] = batches.action[start + row, d]
        meet(memory.barrier, threads)
        # critics
        for k in range(first_critic, last_critic):
            network = memory.first if k == 0 else memory.second
            mlp_forward(sgemm, critic, targets[k * half : (k + 1) * half], memory.next_inputs, low, high, network)
            for row in range(low, high):
                memory.values[k, row] = network.output[row, 0]
        meet(memory.barrier, threads)
        for k in range(first_critic, last_critic):
            network = memory.first if k == 0 else memory.second
            flat = critics.data[k * half : (k + 1) * half]
            mlp_forward(sgemm, critic, flat, memory.inputs, low, high, network)
            for row in range(low, high):
                future = min(memory.values[0, row], memory.values[1, row]) - temperature * memory.next_log_prob[row]
                target = batches.reward[start + row] + batches.discount[start + row] * future
                difference = network.output[row, 0] - target
                sums[0] += np.float64(difference * difference)
                sums[1] += np.float64(network.output[row, 0])
                memory.difference[k, row] = TWO * difference * share
            mlp_backward(sgemm, critic, flat, memory.difference[k].reshape(batch, 1), low, high, network)
        meet(group, members)
        for k in range(first_critic, last_critic):
            network, upstream = memory.first if k == 0 else memory.second, memory.difference[k].reshape(batch, 1)
            grad = critics.grad[k * half : (k + 1) * half]
            weight_gradients(sgemm, critic, memory.inputs, network, upstream, place, members, grad)
        meet(group, members)
        for k in range(first_critic, last_critic):
            step(settings, critics, update, targets, k * half, (k + 1) * half, place, members)
        meet(memory.barrier, threads)  # the values of the targets have been read by all
        # actor
        for k in range(first_critic, last_critic):
            network = memory.first if k == 0 else memory.second
            mlp_forward(sgemm, critic, critics.data[k * half : (k + 1) * half], memory.new_inputs, low, high, network)
            for row in range(low, high):
                memory.values[k, row] = network.output[row, 0]
        meet(memory.barrier, threads)
        for k in range(first_critic, last_critic):
            count, rows = 0, memory.rows[k, low:high]
            for row in range(low, high):
                if (memory.values[1, row] < memory.values[0, row]) == (k == 1):
                    rows[count] = row
                    count += 1
            flat, network = critics.data[k * half : (k + 1) * half], memory.first if k == 0 else memory.second
            actions_backward(sgemm, critic, flat, network, rows[:count], -share, low, memory.action_gradient)
        meet(memory.barrier, threads)
        for row in range(begin, end):
            smaller = min(memory.values[0, row], memory.values[1, row])
            sums[2] += np.float64(temperature * memory.log_prob[row] - smaller)
            sums[3] += np.float64(memory.log_prob[row])
        squash_backward(
            settings,
            memory.actor.output,
            noise,
            begin,
            end,
            memory.action_gradient,
            temperature * share,
            memory.output_gradient,
        )
        mlp_backward(sgemm, actor, policy.data, memory.output_gradient, begin, end, memory.actor)
        meet(memory.barrier, threads)
        weight_gradients(sgemm, actor, now, memory.actor, memory.output_gradient, thread, threads, policy.grad)
        loss, q, actor_loss, log_prob = 0.0, 0.0, 0.0, 0.0
        for other_thread in range(threads):
            loss += memory.sums[other_thread, 0] / batch
            q += memory.sums[other_thread, 1] / (2 * batch)
            actor_loss += memory.sums[other_thread, 2] / batch
            log_prob += memory.sums[other_thread, 3] / batch
        meet(memory.barrier, threads)
        step(settings, policy, update, none, 0, len(policy.data), thread, threads)
        if thread == 0:
            alpha.grad[0] = np.float32(-(log_prob + settings.target_entropy))
            step(settings, alpha, update, none, 0, 1, 0, 1)
            row_of = metrics[update]
            row_of[0], row_of[1], row_of[2], row_of[3], row_of[4] = loss, q, actor_loss, -log_prob, temperature
        meet(memory.barrier, threads)
        if not abs(loss + q + actor_loss + log_prob) <= LARGEST:
            return update + 1
    return len(metrics)
