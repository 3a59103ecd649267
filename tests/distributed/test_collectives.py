"""Messages between ranks: one per minibatch, whatever the number of tensors, and the device of a rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from millpond.config.mixture import DQNConfig
from millpond.distributed import Place, Ranks
from millpond.envs.registry import describe
from millpond.learners import DQN, build_q_network
from millpond.losses import Coefficients, mean_and_variance
from millpond.policies import build_policy
from millpond.replay.pond import PondBatch
from millpond.rollout.sampling import Draw
from millpond.trainers.common.envs import rank_device
from millpond.trainers.ppo.advantages import Estimator, estimate_advantages
from millpond.trainers.ppo.update import Updater, train_minibatch
from tests.support.rank_processes import run_ranks
from tests.support.rows_of_ranks import HIDDEN, ROWS, spec, stored_rows


class Counted:
    """A sum over ranks that counts its calls and the numbers that it sends."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.sizes = ranks, list[int]()

    def __call__(self, tensor: torch.Tensor) -> None:
        assert self.ranks.all_reduce is not None
        self.ranks.all_reduce(tensor)
        self.sizes.append(tensor.numel())


def ppo_messages(ranks: Ranks, normalize: Any) -> tuple[list[int], int, list[float]]:
    """Train three minibatches; return the sizes of all messages, the policy's parameters, and the metrics of the last."""
    share = ROWS // ranks.count
    rows = stored_rows(ranks.rank * share, share)
    torch.manual_seed(0)
    policy = build_policy(spec().observation, spec().action, core="lstm", hidden_size=HIDDEN)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    updater = Updater(policy, device=torch.device("cpu"))
    advantages = estimate_advantages(rows, share, Estimator(0.9, 0.8, normalize=normalize), ranks.all_reduce)
    counted = Counted(ranks)
    for _ in range(3):
        draw = Draw(np.arange(share), np.ones(share, np.float32))
        step = train_minibatch(
            updater,
            optimizer,
            rows,
            advantages,
            draw,
            Coefficients(clip_coef=0.2, vf_clip_coef=0.2, vf_coef=0.5, ent_coef=0.01, max_grad_norm=0.5),
            micro_batch_rows=share,
            device=torch.device("cpu"),
            all_reduce=counted,
        )
    numbers = [float(value) for value in step.metrics.values()]
    return (
        counted.sizes,
        sum(parameter.numel() for parameter in policy.parameters()),
        [*numbers, float(step.agent_steps)],
    )


@pytest.mark.parametrize(("normalize", "messages"), [("iteration", 1), ("minibatch", 2)])
def test_ppo_sends_one_message_per_minibatch_and_one_more_to_normalise_within_it(normalize: str, messages: int) -> None:
    (sizes, parameters, metrics), (others, _, other_metrics) = run_ranks(2, ppo_messages, normalize)
    assert sizes == others
    assert len(sizes) == 3 * messages
    assert max(sizes) > parameters  # gradients, metrics and valid steps together
    assert metrics == other_metrics


def dqn_messages(ranks: Ranks) -> list[int]:
    torch.manual_seed(0)
    env = describe("gymnasium:CartPole-v1", {})
    dqn = DQN(build_q_network(env.observation, env.action, hidden_size=8), DQNConfig(batch_size=4))
    numbers = torch.full((2,), float(ranks.rank))
    batch = PondBatch(
        torch.rand(2, 4), torch.rand(2, 4), torch.zeros(2, dtype=torch.int64), numbers, numbers > 9, numbers > 9, numbers,
        numbers.int(), {},
    )  # fmt: skip
    counted = Counted(ranks)
    for _ in range(4):
        dqn.update(batch, parts=2, all_reduce=counted)
    return counted.sizes


def test_dqn_sends_one_message_per_update() -> None:
    sizes, others = run_ranks(2, dqn_messages)
    assert len(sizes) == 4
    assert sizes == others


def moments(ranks: Ranks) -> tuple[int, float, float]:
    values = torch.tensor([1e4 + 1.0, 1e4 + 3.0, 7.0]) if ranks.first else torch.tensor([1e4 + 5.0, 1e4 + 7.0, 9.0])
    counted = Counted(ranks)
    mean, variance = mean_and_variance(values, torch.tensor([True, True, False]), counted)
    return len(counted.sizes), float(mean), float(variance)


def test_mean_and_variance_over_ranks_take_one_message() -> None:
    for found in run_ranks(2, moments):
        assert found == (1, 10_004.0, pytest.approx(5.0, rel=1e-4))


def test_each_rank_has_the_gpu_of_its_number_on_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    place = Place(rank=5, count=8, local_rank=1, local_count=2)
    assert rank_device("cuda", place) == torch.device("cuda", 1)
    assert chosen == [1]
    assert rank_device("cpu", place) == torch.device("cpu")
