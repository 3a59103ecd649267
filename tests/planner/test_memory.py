"""The planned number of parameters is that of the policy, and the planned memory is what torch allocates."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from millpond import fast
from millpond.config import load
from millpond.envs.registry import describe
from millpond.envs.spec import EnvSpec
from millpond.fast.encoders import array_encoder
from millpond.fast.limits import compiles_encoder, image_block, min_images_per_thread
from millpond.losses import Coefficients
from millpond.planner import Host, PPOPlan, plan
from millpond.planner.memory import (
    PLAIN_BLOCK,
    PLAIN_TOKEN_BLOCK,
    parameters,
    training_memory,
)
from millpond.policies import build_policy, cores, count_parameters
from millpond.policies.encoders import tokens
from millpond.rollout.micro_batch import Advantages
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import Draw
from millpond.rollout.schema import row_fields, state_shape
from millpond.sizes import convolutions
from millpond.threads import threads_for, torch_threads
from millpond.trainers.common.envs import build_vector
from millpond.trainers.ppo.update import Updater, train_minibatch


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("grid", {}),
        ("mettagrid", {}),
        ("atari:gravitar", {}),
        ("atari:pong", {"stack_num": 4}),
        ("minatar:breakout", {}),
        ("gymnasium:CartPole-v1", {}),
        ("gymnasium:Pendulum-v1", {}),
    ],
)
def test_the_number_of_parameters_is_that_of_the_policy(env_id: str, options: dict[str, Any], core: Any) -> None:
    spec = describe(env_id, options)
    for separate in (False, True):
        policy = build_policy(spec.observation, spec.action, core=core, hidden_size=24, separate_critic=separate)
        assert parameters(spec, core, 24, separate) == count_parameters(policy)


def one_update(
    spec: EnvSpec, core: Any, hidden: int, precision: str, rows: int, horizon: int, plain: bool, critic: bool = False
) -> Any:
    """Return a call that trains one minibatch of random rows with a new updater."""
    agents, generator = spec.num_agents, torch.Generator().manual_seed(0)
    made = Rows(row_fields(spec, state_shape(core, hidden, critic)), rows, horizon, agents, agents, "cpu")
    seen = made["observation"]
    if seen.is_floating_point():
        seen.normal_(generator=generator)
    else:
        seen.copy_(torch.randint(0, 3, seen.shape, generator=generator, dtype=seen.dtype))
    made["alive"].fill_(True)
    policy = build_policy(spec.observation, spec.action, core=core, hidden_size=hidden, separate_critic=critic)
    advantage = torch.randn(rows, horizon, agents, generator=generator)
    bfloat16, optimizer = precision == "bfloat16", torch.optim.Adam(policy.parameters())
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=bfloat16)

    def update() -> None:
        compiled = None if plain else fast.updater(policy, autocast=bfloat16)
        train_minibatch(
            compiled or Updater(policy, device=torch.device("cpu"), autocast=autocast),
            optimizer,
            made,
            Advantages(advantage, advantage, np.zeros(rows), torch.zeros(()), made["alive"].sum(dim=(1, 2))),
            Draw(np.arange(rows), np.ones(rows, np.float32)),
            Coefficients(0.1, 0.1, 0.5, 0.01, 0.5),
            micro_batch_rows=rows,
            device=torch.device("cpu"),
        )

    return update


def most_at_once(work: Any) -> int:
    """Peak bytes of tensors during a call, beyond those before it.

    The profiler loses an event now and then, which lowers the peak that it shows: the highest of three counts.
    """
    work()
    peaks = []
    for _ in range(3):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            work()
        events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
        peaks.append(np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).max())
    return int(max(peaks))


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize(
    ("env_id", "options", "core", "precision", "rows", "horizon"),
    [
        ("grid", {}, "lstm", "float32", 32, 64),
        ("grid", {}, "gru", "float32", 32, 64),
        ("grid", {}, "mingru", "float32", 32, 64),
        ("grid", {}, "none", "float32", 32, 64),
        pytest.param("grid", {}, "lstm", "bfloat16", 32, 16, marks=pytest.mark.bfloat16),
        ("mettagrid", {}, "lstm", "float32", 32, 64),
        ("gymnasium:CartPole-v1", {}, "lstm", "float32", 64, 64),
        ("gymnasium:CartPole-v1", {}, "none", "float32", 64, 64),
        ("gymnasium:Pendulum-v1", {}, "none", "float32", 64, 64),
        ("minatar:breakout", {}, "gru", "float32", 32, 16),
        ("minatar:seaquest", {}, "lstm", "float32", 32, 16),
        ("atari:pong", {"stack_num": 4}, "lstm", "float32", 16, 16),
        ("atari:pong", {}, "none", "float32", 16, 16),
    ],
)
def test_a_training_step_takes_the_planned_memory(
    env_id: str, options: dict[str, Any], core: str, precision: str, rows: int, horizon: int, plain: bool
) -> None:
    spec = describe(env_id, options)
    planned = training_memory(spec, core, 128, "adam", precision, rows, horizon, spec.num_agents, fast=not plain)
    assert planned is not None
    with torch_threads(1):
        peak = most_at_once(one_update(spec, core, 128, precision, rows, horizon, plain))
    # Between minimum and maximum: not all gradients are in memory at the peak, and workspace depends on the processor's
    # instructions. The bounds are the same for all processors.
    beyond = peak - planned.minibatch - planned.activations
    assert -0.05 * peak <= beyond <= planned.workspace + planned.gradients + 0.05 * peak


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize(
    ("env_id", "core", "rows", "horizon"),
    [
        ("grid", "lstm", 32, 64),
        ("gymnasium:CartPole-v1", "lstm", 64, 64),
        ("gymnasium:CartPole-v1", "gru", 64, 64),
        ("gymnasium:CartPole-v1", "none", 64, 64),
        ("minatar:breakout", "gru", 32, 16),
        ("atari:pong", "none", 16, 16),
    ],
)
def test_a_training_step_with_a_separate_critic_takes_the_planned_memory(
    env_id: str, core: str, rows: int, horizon: int, plain: bool
) -> None:
    spec = describe(env_id, {})
    sizes = rows, horizon, spec.num_agents
    planned = training_memory(spec, core, 128, "adam", "float32", *sizes, fast=not plain, separate_critic=True)
    assert planned is not None
    with torch_threads(1):
        peak = most_at_once(one_update(spec, core, 128, "float32", rows, horizon, plain, critic=True))
    beyond = peak - planned.minibatch - planned.activations
    assert -0.05 * peak <= beyond <= planned.workspace + planned.gradients + 0.05 * peak


def test_threads_and_blocks_are_those_of_training() -> None:
    assert (PLAIN_BLOCK, PLAIN_TOKEN_BLOCK) == (cores.BLOCK, tokens.BLOCK)
    one, two = (plan("grid", ["trainer.minibatch_size=2048"], host=Host(cores, 10**12)).plan for cores in (1, 2))
    assert isinstance(one, PPOPlan)
    assert isinstance(two, PPOPlan)
    assert one.training is not None
    assert two.training is not None
    # 96 sequences: blocks of 4 steps of 6 x 128 float32; in two threads of 48 sequences, of 8 steps. Each packs weights.
    a_step, weights = 6 * 128 * 4, 2 * 4 * 128 * 128 * 4
    assert two.training.activations - one.training.activations == (2 * 8 * 48 - 4 * 96) * a_step + weights
    assert two.training.gradients == 2 * one.training.gradients == 2 * one.training.parameters


def test_compiled_encoders_allow_more_threads() -> None:
    """Two threads share 8 sequences of CartPole; with a grid encoder they share only the core's work.

    Blocks are 48 steps of 8 sequences, or all 64 of 4.
    """
    sizes = {"core": "lstm", "hidden_size": 64, "optimizer": "adam", "precision": "float32", "rows": 8, "horizon": 64}
    for env_id in ("gymnasium:CartPole-v1", "grid"):
        spec = describe(env_id, {})
        policy = build_policy(spec.observation, spec.action, hidden_size=64)
        updater = fast.updater(policy)
        assert updater is not None
        with torch_threads(2):
            few = len(updater.shares(8, 64, 1)) == 2
        assert few == (array_encoder(policy.encoder) is not None) == compiles_encoder(spec.observation)
        assert few == (env_id != "grid")
        one, two = (training_memory(spec, **sizes, agents_per_row=1, cores=cores) for cores in (1, 2))  # type: ignore[arg-type]
        assert one is not None
        assert two is not None
        a_piece_each = 0 if few else 8 * 64 * 64 * 4
        packed = 2 * 4 * 64 * 64 * 4
        assert two.activations - one.activations == a_piece_each + (2 * 64 * 4 - 48 * 8) * 6 * 64 * 4 + packed


@pytest.mark.parametrize(("rows", "row_shares", "image_shares"), [(2, 2, 1), (3, 1, 2), (1, 1, 2)])
def test_threads_share_rows_or_images_as_planned(rows: int, row_shares: int, image_shares: int) -> None:
    """Each thread has a set of gradients, of all parameters or of the encoder, and a block of images."""
    spec = describe("atari:pong", {"stack_num": 4})
    policy = build_policy(spec.observation, spec.action, core="none", hidden_size=64)
    updater = fast.updater(policy)
    assert updater is not None
    image = spec.observation.parts[0].shape
    with torch_threads(2):
        assert len(updater.shares(rows, 128, 1)) == row_shares
        assert row_shares > 1 or threads_for(rows * 128, min_images_per_thread(image)) == image_shares
    one, two = (
        training_memory(spec, "none", 64, "adam", "float32", rows, 128, agents_per_row=1, cores=cores)
        for cores in (1, 2)
    )
    assert one is not None
    assert two is not None
    of_encoder = sum(parameter.nbytes for parameter in policy.encoder.encoders.parameters())
    assert two.gradients - one.gradients == (row_shares - 1) * one.parameters + (image_shares - 1) * of_encoder
    layers = convolutions(image)
    a_block = image_block(image) * 4 * (4 * 84 * 84 + layers[0].outputs + layers[-1].outputs)
    assert two.activations - one.activations == a_block
    assert one.minibatch == two.minibatch == rows * 128 * 4 * 84 * 84  # bytes, not floats


def test_collecting_takes_the_planned_memory() -> None:
    numbers, recipe = plan("grid").plan, load("grid").recipe
    assert isinstance(numbers, PPOPlan)
    with build_vector(recipe.env, recipe.vector, num_envs=256, groups=2, num_workers=2, stacked=True) as vector:
        arrays = sum(array.nbytes for array in vars(vector._fleet.arena.buffers).values())
    states, advantages = 256 * 3 * 2 * 128 * 4, 16_384 * 3 * 4
    assert numbers.collecting_bytes == arrays + states + advantages
    assert numbers.memory_bytes == numbers.buffer_bytes + numbers.collecting_bytes + numbers.training.total  # type: ignore[union-attr]
