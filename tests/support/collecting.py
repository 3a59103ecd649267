"""A plan and a collector for tests of collection."""

from __future__ import annotations

from typing import Any

import torch

from millpond import fast
from millpond.config import load
from millpond.planner import PPOPlan, plan_loaded
from millpond.policies import Policy, build_policy
from millpond.rollout.collector import Collector
from millpond.rollout.rows import Rows
from millpond.rollout.schema import STATES, row_fields, state_shape
from millpond.vector import Vector

HIDDEN = 16  # in whole panels: weights are packed for a collection


def planned(**settings: Any) -> PPOPlan:
    dotted = {"trainer.num_workers": 1, "policy.hidden_size": HIDDEN, "env.grid.width": 60, "env.grid.height": 60}
    plan = plan_loaded(load("metta", {**dotted, **settings})).plan
    assert isinstance(plan, PPOPlan)
    return plan


def open_collector(
    plan: PPOPlan, vector: Vector, core: str = "lstm", *, puffer: bool = False, baseline: bool = False
) -> tuple[Collector, Policy]:
    """Return a collector as a run has it, with the fast actor, and its policy. `puffer`: states as in PufferLib;
    `baseline`: rows have room for the mean rewards that rewards are centred by."""
    torch.manual_seed(0)
    policy = build_policy(vector.spec.observation, vector.spec.action, core=core, hidden_size=HIDDEN)
    rows = Rows(
        row_fields(vector.spec, state_shape(core, HIDDEN), baseline=baseline),
        plan.buffer_rows,
        plan.bptt_horizon,
        plan.num_agents,
        plan.num_agents if plan.batch_unit == "env_steps" else 1,
        "cpu",
        resets_state=not puffer,
    )
    states, actor = STATES[core], fast.actor(policy)
    assert actor is not None
    collector = Collector(
        vector,
        rows,
        actor,
        num_rows=plan.segments,
        state_shape=(states, HIDDEN if states else 0),
        device="cpu",
        generator=torch.Generator().manual_seed(1),
        zero_state=puffer,
    )
    return collector, policy
