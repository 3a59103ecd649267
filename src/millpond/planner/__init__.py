"""All arithmetic of a run, once, before it runs: `plan("metta").plan.gradient_updates == 32`."""

from millpond.planner.host import Host
from millpond.planner.kind import Plan
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.planned import Planned, plan, plan_loaded
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.reward.numbers import RewardPlan

__all__ = ["Host", "MixturePlan", "PPOPlan", "Plan", "Planned", "RewardPlan", "plan", "plan_loaded"]
