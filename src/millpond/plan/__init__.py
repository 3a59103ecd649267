"""All arithmetic of a run, once, before it runs: `plan("metta").plan.gradient_updates == 32`."""

from millpond.plan.host import Host
from millpond.plan.make import Plan, Planned, plan, plan_loaded
from millpond.plan.mixture import MixturePlan
from millpond.plan.ppo import PPOPlan
from millpond.plan.reward import RewardPlan

__all__ = ["Host", "MixturePlan", "PPOPlan", "Plan", "Planned", "RewardPlan", "plan", "plan_loaded"]
