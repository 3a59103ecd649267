"""Each stage of an iteration alone, on the trainer's own vector, rows and networks, after a real run has filled them.

E envs   A agents   T horizon   R rows
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from millpond.bench.bare import Network, Ready
from millpond.bench.choose import Chooser, RandomSteps
from millpond.bench.limits import Limits
from millpond.bench.operations import BACKWARD_TOO, operations
from millpond.bench.result import Stage
from millpond.bench.timing import Effort, median_seconds
from millpond.config.env_facts import env_options
from millpond.envs.env_batch import Buffers
from millpond.loop import Loop
from millpond.record import Timer
from millpond.rollout import Draw
from millpond.trainers.common.envs import EnvBatchFactory
from millpond.trainers.ppo.compiled_rows import RowsCall
from millpond.trainers.ppo.micro_batch import Estimate
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import INPUTS, estimate_advantages, train_minibatch

MAX_ENVS_ALONE = 512  # envs of the environment that is stepped alone: maps of thousands take their time to make
STORED_BEFORE = ("observation", "action", "action_mask", "alive", "log_prob", "value")
STORED_AFTER = ("reward", "terminated", "truncated")
Stages = dict[str, Stage]  # measured so far, by name
RECORDED = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


@dataclass(frozen=True)
class Subject:
    """What the stages are measured on."""

    trainer: PPOTrainer
    network: Network
    ready: list[Ready]
    limits: Limits
    effort: Effort
    phases: dict[str, float]  # of a real iteration

    def together(self, *names: str) -> float:
        return sum(self.phases.get(name, 0.0) for name in names)


def measure_stages(subject: Subject, watch: Callable[[str], object]) -> tuple[Stage, ...]:
    """In the order of an iteration. Storing is last to run, since it writes over the rows that others need."""
    stages: dict[str, Stage] = {}
    for measure in (_env, _vector, _inference, _advantage, _training, _loop, _storing):
        watch(measure.__name__.strip("_"))
        stage = measure(subject, stages)
        stages[stage.name] = stage
    order = ("world", "vector", "inference", "storing", "advantage", "training", "loop")
    return tuple(stages[name] for name in order)


def _env(subject: Subject, before: Stages) -> Stage:
    """One environment in this thread, with actions at random."""
    trainer, plan = subject.trainer, subject.trainer.share
    env_id, options = env_options(trainer.recipe.env, stacked=True)
    spec, envs = trainer.vector.spec, min(plan.num_envs, MAX_ENVS_ALONE)
    env_batch = EnvBatchFactory(env_id, options)(envs, Buffers.allocate(spec, envs), 0)
    try:
        env_batch.reset(np.arange(envs, dtype=np.uint64))
        choose = Chooser(spec.action)

        def steps() -> None:
            for _ in range(8):
                choose(env_batch.buffers.action, env_batch.buffers.action_mask)
                env_batch.step(0, envs)
            env_batch.episodes()

        seconds = median_seconds(steps, subject.effort.repeats) * plan.env_steps / (8 * envs)
    finally:
        env_batch.close()
    written = plan.env_steps * _outcome_bytes(env_batch.buffers, envs)
    return Stage("world", seconds, plan.env_steps, "env steps", "memory", written / subject.limits.memory)


def _vector(subject: Subject, before: Stages) -> Stage:
    """All envs behind recv and send, with actions at random; at best as fast as the environment on all its workers."""
    vector, plan, effort = subject.trainer.vector, subject.trainer.share, subject.effort
    times = max(1, effort.calls // vector.groups // 4)
    step = RandomSteps([vector])
    seconds = median_seconds(lambda: step(times), effort.repeats)
    step.rest()
    workers = max(1, min(vector.num_workers, torch.get_num_threads()))
    return Stage(
        "vector",
        seconds / (times * plan.num_envs) * plan.env_steps,
        plan.env_steps,
        "env steps",
        f"environment x {workers}",
        before["world"].alone / workers,
        subject.together("collect/step"),
    )


def _inference(subject: Subject, before: Stages) -> Stage:
    plan, network = subject.trainer.share, subject.network
    seconds = median([network.acting_seconds(subject.ready) for _ in range(subject.effort.repeats + 1)][1:])
    return _products(subject, "inference", seconds, plan.agent_steps, 1, subject.together("collect/infer"))


def _training(subject: Subject, before: Stages) -> Stage:
    """`train_minibatch` as a run calls it: rows are drawn and gathered too."""
    trainer, plan, network = subject.trainer, subject.trainer.share, subject.network
    estimate = _estimate(trainer)
    rng, ones = np.random.default_rng(0), np.ones(plan.minibatch_segments, np.float32)
    kept: dict[tuple[int, int], RowsCall] = {}
    updates = max(1, min(subject.effort.updates, plan.gradient_updates) // 2)

    def train() -> None:
        for _ in range(updates):
            train_minibatch(
                network.unroll,
                network.parameters,
                network.optimizer,
                trainer.rows,
                estimate,
                Draw(rng.permutation(plan.segments)[: plan.minibatch_segments], ones),
                network.coefficients,
                part_rows=plan.minibatch_segments // plan.accumulated_parts,
                device=trainer.device,
                kept=kept,
                autocast=network.autocast,
                in_parallel=not trainer.recipe.trainer.compile,
            )

    seconds = median_seconds(train, subject.effort.repeats) / updates * plan.gradient_updates
    steps = plan.agent_steps * plan.update_epochs
    return _products(subject, "training", seconds, steps, BACKWARD_TOO, subject.together("train"))


def _products(subject: Subject, name: str, seconds: float, steps: int, times: int, together: float) -> Stage:
    """A stage that is bound by products. Sums of table rows, gates and losses are not counted as operations."""
    plan, precision = subject.trainer.share, subject.trainer.recipe.trainer.precision
    forward = operations(lambda: subject.network.act(subject.ready[0])) / (plan.envs_per_group * plan.num_agents)
    at_best = forward * times * steps / subject.limits.products(precision)
    return Stage(name, seconds, steps, "agent steps", precision, at_best, together)


def _advantage(subject: Subject, before: Stages) -> Stage:
    trainer, plan = subject.trainer, subject.trainer.share
    seconds = median_seconds(lambda: _estimate(trainer), subject.effort.repeats)
    moved = sum(trainer.rows[name][: plan.segments].nbytes for name in (*INPUTS, "advantage"))
    at_best = moved / subject.limits.memory
    return Stage(
        "advantage", seconds, plan.agent_steps, "agent steps", "memory", at_best, subject.together("advantage")
    )


def _estimate(trainer: PPOTrainer) -> Estimate:
    ppo = trainer.recipe.ppo
    clips = (ppo.rho_clip, ppo.c_clip) if ppo.advantage == "vtrace" else (float("inf"), float("inf"))
    return estimate_advantages(
        trainer.rows,
        trainer.share.segments,
        gamma=ppo.gamma,
        lam=ppo.gae_lambda,
        rho_clip=clips[0],
        c_clip=clips[1],
        normalize=ppo.normalize_advantage,
        bootstrap_truncation=ppo.bootstrap_truncation,
    )


def _storing(subject: Subject, before: Stages) -> Stage:
    """One group's batch into the rows, at every time step of a round."""
    plan, rows = subject.trainer.share, subject.trainer.rows
    envs = min(plan.envs_per_group, plan.buffer_rows // rows.rows_per_env)
    agents = (envs, plan.num_agents)
    names = [name for name in (*STORED_BEFORE, *STORED_AFTER) if name in rows.fields]
    values = {
        name: rows[name][: envs * rows.rows_per_env, 0].reshape(*agents, *rows.fields[name].shape).cpu().numpy().copy()
        for name in names
    }
    steps = min(plan.bptt_horizon, subject.effort.calls)

    def store() -> None:
        for t in range(steps):
            for name in names:
                rows.write(name, 0, t, values[name])

    seconds = median_seconds(store, subject.effort.repeats) * plan.env_steps / (steps * envs)
    moved = sum(array.nbytes for array in values.values()) / envs * plan.env_steps
    at_best = moved / subject.limits.memory
    return Stage(
        "storing", seconds, plan.agent_steps, "agent steps", "memory", at_best, subject.together("collect/store")
    )


def _loop(subject: Subject, before: Stages) -> Stage:
    """Loop, records and phases around bodies that do nothing."""
    plan, value = subject.trainer.share, torch.tensor(0.5)

    def run() -> None:
        timer, loop = Timer(), Loop(iteration=1, update_epoch=plan.update_epochs, minibatch=plan.num_minibatches)
        loop.at_end("iteration", lambda ended: {**ended.means(), **timer.take()})
        for _ in loop.run():
            with timer("train"):
                pass
            for name in RECORDED:
                loop.record(name, value, weight=256)

    seconds = median_seconds(run, subject.effort.repeats)
    return Stage("loop", seconds, plan.gradient_updates, "updates", "", None, subject.together("other"))


def _outcome_bytes(buffers: Buffers, envs: int) -> float:
    """What a step of one env writes."""
    arrays = (buffers.observation, buffers.reward, buffers.terminated, buffers.truncated, buffers.alive)
    return sum(array.nbytes for array in arrays) / envs
