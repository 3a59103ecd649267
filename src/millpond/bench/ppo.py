"""The bench of PPO: real iterations with their bare arithmetic in between, then every stage of an iteration alone.

E envs   A agents   T horizon   R rows
"""

from __future__ import annotations

import contextlib
import copy
import io
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from millpond.bench.arithmetic import Network, ReadyBatch, make_ready_batches, plain_networks
from millpond.bench.measure import (
    FORWARD_AND_BACKWARD,
    Effort,
    Limits,
    Progress,
    RandomActions,
    RandomSteps,
    Spread,
    Stage,
    count_flops,
    measure_lake,
    median_seconds,
)
from millpond.bench.products import BetweenRounds, Products, Repeated
from millpond.bench.run import Arithmetic, Bench, Iteration, KindBench, Measurement, PlannedWork, Unit
from millpond.config import Loaded
from millpond.config.env_options import env_options
from millpond.envs.env_batch import Buffers
from millpond.envs.registry import EnvBatchFactory
from millpond.formatting import plural
from millpond.loop import LevelEnd, Loop
from millpond.planner import PPOPlan, plan_loaded
from millpond.record import Timer
from millpond.record.jsonlines import Record, read_records
from millpond.rollout.sampling import Draw
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.advantages import INPUTS, estimate_advantages
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import Updater, train_minibatch

MEASURED_STEPS = 1_500_000  # agent steps of all real iterations, approximately
MIN_ITERATIONS, MAX_ITERATIONS = 3, 10  # real iterations
MAX_LANES = 128  # of the observations that are appended to the lake
MAX_ENVS_ALONE = 512  # making thousands of maps takes long
STORED_BEFORE = ("observation", "action", "action_mask", "alive", "log_prob", "value")
STORED_AFTER = ("reward", "terminated", "truncated")
RECORDED = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
SIZES = (
    "num_envs", "num_agents", "agent_steps", "env_steps", "segments", "bptt_horizon", "minibatch_size",
    "gradient_updates", "update_epochs",
)  # fmt: skip

Pair = tuple[float, float]  # seconds of inference, of training
Stages = dict[str, Stage]  # measured so far, by name


def ppo_settings(loaded: Loaded, effort: Effort) -> dict[str, Any]:
    """Return overrides for a few iterations, of which the first is a warm-up."""
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, PPOPlan)
    count = effort.iterations or min(MAX_ITERATIONS, max(MIN_ITERATIONS, MEASURED_STEPS // plan.agent_steps))
    return {"trainer.total_iterations": count + 1, "trainer.total_timesteps": (count + 1) * plan.batch_size}


def measure_ppo(
    requested: Loaded, timed: Loaded, limits: Limits | None, effort: Effort, folder: Path, progress: Progress
) -> Measurement:
    """Measure a few iterations at the sizes of the requested recipe."""
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = PPOTrainer(timed, start_run(timed, "bench"))
    try:
        iteration, network, ready = run_iterations(trainer, effort, progress)
        stages = []
        if limits is not None:
            subject = PPOSubject(trainer, network, ready, limits, effort, iteration.phases)
            progress("the lake")
            lake = measure_lake(trainer.vector.spec, observations_of(trainer), limits, effort, folder)
            stages = [*measure_stages(subject, progress), *lake]
    finally:
        trainer.close()
    return Measurement(
        iteration,
        tuple(stages),
        precision=trainer.recipe.trainer.precision,
        vector=f"{trainer.vector.backend} x {trainer.vector.num_workers}",
        sizes={name: getattr(trainer.share, name) for name in SIZES},
    )


def observations_of(trainer: PPOTrainer) -> npt.NDArray[Any]:
    """Return real observations from rows that a run has filled: [T, lanes, *observation]."""
    plan, rows = trainer.share, trainer.rows
    flat = rows["observation"][: plan.segments].transpose(1, 2).flatten(0, 1)[:MAX_LANES]
    return flat.transpose(0, 1).cpu().numpy()


def ppo_for_plans(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
    """Return the sizes and seconds that plans estimate from."""
    phases, sizes = bench.iteration.phases, bench.sizes
    passes = sizes["gradient_updates"] * sizes["minibatch_size"] / (sizes["segments"] * sizes["bptt_horizon"])
    return (
        {**{name: sizes[name] for name in ("num_envs", "minibatch_size", "agent_steps")}, "update_epochs": passes},
        {
            "collect": phases["collect"] + phases["advantage"],
            "train": phases["train"],
            "other": phases["other"],
        },
    )


@dataclass
class BetweenIterations:
    """Measures all networks at the end of each iteration, so that both run in the same minutes."""

    trainer: PPOTrainer
    networks: dict[str, Network]
    progress: Progress
    ready: list[ReadyBatch]
    pairs: dict[str, list[Pair]]  # by name of a network
    products: BetweenRounds
    seconds: list[float]  # of the measurements after each iteration

    def __call__(self, ended: LevelEnd) -> None:
        began = time.monotonic()
        if not self.ready:
            self.ready.extend(make_ready_batches(self.trainer))
        for name, network in self.networks.items():
            self.progress(f"arithmetic: {name}")
            self.pairs[name].append(network.seconds(self.ready))
        self.products(ended)
        self.progress("an iteration")
        self.seconds.append(time.monotonic() - began)


def run_iterations(
    trainer: PPOTrainer, effort: Effort, progress: Progress
) -> tuple[Iteration, Network, list[ReadyBatch]]:
    """Train all iterations of the trainer's plan; the first is a warm-up and does not count."""
    bare_network = Network.of_trainer(trainer, effort)
    plain = plain_networks(trainer, effort)
    networks = {"bare": bare_network, **plain}
    ready: list[ReadyBatch] = []
    products = BetweenRounds(lambda: ppo_products(trainer, bare_network, ready[0]), progress)
    between = BetweenIterations(trainer, networks, progress, ready, {name: [] for name in networks}, products, [])
    trainer.loop.at_end("iteration", between)
    progress("an iteration, to warm up")
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    records = list(read_records(trainer.run.metrics_path))
    times = [
        _times(before, after, spent)
        for before, after, spent in zip(records, records[1:], between.seconds, strict=False)
    ]
    real = [sum(seconds for name, seconds in one.items() if "/" not in name) for one in times]
    pairs = {name: measured[1:] for name, measured in between.pairs.items()}
    bare = [sum(pair) for pair in pairs["bare"]]
    return (
        Iteration(
            seconds=Spread.of(real),
            phases={name: median(one.get(name, 0.0) for one in times) for name in times[0]},
            products=products.summary(),
            bare=_arithmetic(pairs["bare"]),
            ratio=Spread.of([iteration / alone for iteration, alone in zip(real, bare, strict=True)]),
            references={name: _arithmetic(pairs[name]) for name in plain},
            reference_ratios={
                name: Spread.of([mine / sum(pair) for mine, pair in zip(bare, pairs[name], strict=True)])
                for name in plain
            },
        ),
        bare_network,
        ready,
    )


def ppo_products(trainer: PPOTrainer, network: Network, ready: ReadyBatch) -> list[Repeated]:
    """Return the products of an iteration: acting on all agent steps, and all updates."""
    plan, effort = trainer.share, network.effort
    updater = Updater(copy.deepcopy(network.policy), device=trainer.device, autocast=network.autocast)
    sequences = -(-len(ready.minibatch.reset) // plan.accumulated_parts)
    micro_batch = ready.minibatch.some(slice(0, sequences))
    acting = Products.of(lambda: network.act_plainly(ready))
    training = Products.of(lambda: updater.backward_of([micro_batch], network.coefficients, ready.valid_steps))
    calls = plan.agent_steps / (plan.envs_per_group * plan.num_agents)
    return [
        Repeated("collect", acting, calls, effort.calls),
        Repeated("train", training, plan.gradient_updates * plan.accumulated_parts, effort.updates),
    ]


def _times(before: Record, after: Record, between: float) -> dict[str, float]:
    """Return seconds by phase of the iteration of record `after`, without evaluation and the measurements in between."""
    phases = {
        name.removeprefix("time/"): seconds
        for name, seconds in after.items()
        if name.startswith("time/") and not name.startswith("time/evaluate")
    }
    whole = after["seconds"] - before["seconds"] - between - after.get("time/evaluate", 0.0)
    inner = sum(seconds for name, seconds in phases.items() if name.startswith("collect/"))
    outer = sum(seconds for name, seconds in phases.items() if "/" not in name)
    return {**phases, "collect/rest": phases["collect"] - inner, "other": max(0.0, whole - outer)}


def _arithmetic(pairs: list[Pair]) -> Arithmetic:
    return Arithmetic(Spread.of([pair[0] for pair in pairs]), Spread.of([pair[1] for pair in pairs]))


@dataclass(frozen=True)
class PPOSubject:
    """Trainer, network and data that stages are measured with, after a real run has filled the rows."""

    trainer: PPOTrainer
    network: Network
    ready: list[ReadyBatch]
    limits: Limits
    effort: Effort
    phases: dict[str, float]  # of a real iteration

    def in_run(self, *names: str) -> float:
        """Return the seconds of phases within a real iteration."""
        return sum(self.phases.get(name, 0.0) for name in names)


def measure_stages(subject: PPOSubject, progress: Progress) -> tuple[Stage, ...]:
    """Return the stages in the order of an iteration. Storing is measured last, since it overwrites rows that others need."""
    stages: dict[str, Stage] = {}
    for measure in (_env, _vector, _inference, _advantage, _training, _loop, _storing):
        progress(measure.__name__.strip("_"))
        stage = measure(subject, stages)
        stages[stage.name] = stage
    order = ("world", "vector", "inference", "storing", "advantage", "training", "loop")
    return tuple(stages[name] for name in order)


def _env(subject: PPOSubject, before: Stages) -> Stage:
    """Step one env batch in this thread, with random actions."""
    trainer, plan = subject.trainer, subject.trainer.share
    env_id, options = env_options(trainer.recipe.env, stacked=True)
    spec, envs = trainer.vector.spec, min(plan.num_envs, MAX_ENVS_ALONE)
    env_batch = EnvBatchFactory(env_id, options)(envs, Buffers.allocate(spec, envs), 0)
    try:
        env_batch.reset(np.arange(envs, dtype=np.uint64))
        write_actions = RandomActions(spec.action)

        def steps() -> None:
            for _ in range(8):
                write_actions(env_batch.buffers.action, env_batch.buffers.action_mask)
                env_batch.step(0, envs)
            env_batch.episodes()

        seconds = median_seconds(steps, subject.effort.repeats) * plan.env_steps / (8 * envs)
    finally:
        env_batch.close()
    written = plan.env_steps * _outcome_bytes(env_batch.buffers, envs)
    return Stage("world", seconds, plan.env_steps, "env steps", "memory", written / subject.limits.memory)


def _vector(subject: PPOSubject, before: Stages) -> Stage:
    """Step all envs through recv and send, with random actions. The limit is the env batch on all workers at once."""
    vector, plan, effort = subject.trainer.vector, subject.trainer.share, subject.effort
    times = max(1, effort.calls // vector.groups // 4)
    step = RandomSteps([vector])
    seconds = median_seconds(lambda: step(times), effort.repeats)
    step.end_round()
    workers = max(1, min(vector.num_workers, torch.get_num_threads()))
    return Stage(
        "vector",
        seconds / (times * plan.num_envs) * plan.env_steps,
        plan.env_steps,
        "env steps",
        f"environment x {workers}",
        before["world"].alone / workers,
        subject.in_run("collect/step"),
    )


def _inference(subject: PPOSubject, before: Stages) -> Stage:
    plan, network = subject.trainer.share, subject.network
    seconds = median([network.acting_seconds(subject.ready) for _ in range(subject.effort.repeats + 1)][1:])
    return _products(subject, "inference", seconds, plan.agent_steps, 1, subject.in_run("collect/infer"))


def _training(subject: PPOSubject, before: Stages) -> Stage:
    """Run `train_minibatch` as a run does, with sampling and gathering of rows."""
    trainer, plan, network = subject.trainer, subject.trainer.share, subject.network
    advantages = estimate_advantages(trainer.rows, trainer.share.segments, trainer.estimator)
    rng, ones = np.random.default_rng(0), np.ones(plan.minibatch_segments, np.float32)
    updates = max(1, min(subject.effort.updates, plan.gradient_updates) // 2)

    def train() -> None:
        for _ in range(updates):
            train_minibatch(
                network.updater,
                network.optimizer,
                trainer.rows,
                advantages,
                Draw(rng.permutation(plan.segments)[: plan.minibatch_segments], ones),
                network.coefficients,
                micro_batch_rows=plan.minibatch_segments // plan.accumulated_parts,
                device=trainer.device,
            )

    seconds = median_seconds(train, subject.effort.repeats) / updates * plan.gradient_updates
    steps = round(plan.agent_steps * plan.passes_over_data)
    return _products(subject, "training", seconds, steps, FORWARD_AND_BACKWARD, subject.in_run("train"))


def _products(subject: PPOSubject, name: str, seconds: float, steps: int, times: int, in_run: float) -> Stage:
    """Return a stage bound by matrix products. Table lookups, gates and losses are not counted."""
    plan, precision = subject.trainer.share, subject.trainer.recipe.trainer.precision
    forward = count_flops(lambda: subject.network.act_plainly(subject.ready[0])) / (
        plan.envs_per_group * plan.num_agents
    )
    at_best = forward * times * steps / subject.limits.products(precision)
    return Stage(name, seconds, steps, "agent steps", precision, at_best, in_run)


def _advantage(subject: PPOSubject, before: Stages) -> Stage:
    trainer, plan = subject.trainer, subject.trainer.share
    seconds = median_seconds(
        lambda: estimate_advantages(trainer.rows, trainer.share.segments, trainer.estimator), subject.effort.repeats
    )
    moved = sum(trainer.rows[name][: plan.segments].nbytes for name in (*INPUTS, "advantage"))
    at_best = moved / subject.limits.memory
    return Stage("advantage", seconds, plan.agent_steps, "agent steps", "memory", at_best, subject.in_run("advantage"))


def _storing(subject: PPOSubject, before: Stages) -> Stage:
    """Write one group's batch into the rows, at every step of a round."""
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
        "storing", seconds, plan.agent_steps, "agent steps", "memory", at_best, subject.in_run("collect/store")
    )


def _loop(subject: PPOSubject, before: Stages) -> Stage:
    """Run the loop, its records and phases with empty bodies."""
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
    return Stage("loop", seconds, plan.gradient_updates, "updates", "", None, subject.in_run("other"))


def _outcome_bytes(buffers: Buffers, envs: int) -> float:
    """Return the bytes that a step of one env writes."""
    arrays = (buffers.observation, buffers.reward, buffers.terminated, buffers.truncated, buffers.alive)
    return sum(array.nbytes for array in arrays) / envs


def describe_ppo(sizes: dict[str, int], vector: str, precision: str) -> str:
    """Return the sizes of the measured run in a sentence."""
    return (
        f"{plural(sizes['num_envs'], 'env')} of {plural(sizes['num_agents'], 'agent')} ({vector}), "
        f"{plural(sizes['agent_steps'], 'agent step')} and {plural(sizes['gradient_updates'], 'update')} per iteration, "
        f"{precision}"
    )


def ppo_units(trainer: PPOTrainer) -> dict[str, Unit]:
    """Return the units that launches and copies are counted by."""
    steps = trainer.counters.env_steps // (trainer.share.envs_per_group * trainer.ranks.count)
    return {"group step": Unit("collect", steps), "update": Unit("train", trainer.counters.updates)}


def ppo_work(plan: PPOPlan) -> PlannedWork:
    """Return the work of an iteration of a plan."""
    parts = plan.accumulated_parts
    group_step = plan.envs_per_group * plan.num_agents, plan.env_steps / plan.envs_per_group
    update = plan.agent_steps_per_gradient / parts, plan.gradient_updates * parts
    return PlannedWork({"group step": group_step, "update": update}, plan.agent_steps)


BENCH = KindBench(
    work=ppo_work,
    level="iteration",
    phases={
        "collect/step": "waiting for envs",
        "collect/infer": "inference",
        "collect/store": "storing",
        "collect/rest": "rest of collecting",
        "advantage": "advantage",
        "train": "training",
        "other": "loop and records",
    },
    stages={
        "waiting for envs": "vector",
        "inference": "inference",
        "storing": "storing",
        "advantage": "advantage",
        "training": "training",
        "loop and records": "loop",
    },
    notes=(
        "Alone: one iteration's work, or one call for the lake. Share: of the iteration (for world, its time alone). "
        "Per second: env steps for the first two, updates for the loop, transitions for the lake, otherwise agent steps. "
        "In a run one group of envs steps while the policy computes actions for another, so the wait for envs may be "
        "shorter, and inference longer, than alone. Limits of products count matrix products only, not table lookups, "
        "gates and losses."
    ),
    settings=ppo_settings,
    measure=measure_ppo,
    for_plans=ppo_for_plans,
    describe=describe_ppo,
    size=("agent_steps", "agent step"),
    units=ppo_units,
    show_empty_phases=True,
)
