"""All arithmetic of a run, once, before it runs: `plan("metta").plan.gradient_updates == 32`."""

from millpond.planner.host import Host
from millpond.planner.make import Plan, Planned, plan, plan_loaded
from millpond.planner.mixture import MixturePlan
from millpond.planner.ppo import PPOPlan
from millpond.planner.reward import RewardPlan

__all__ = ["Host", "MixturePlan", "PPOPlan", "Plan", "Planned", "RewardPlan", "plan", "plan_loaded"]
