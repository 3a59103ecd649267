"""Plans: all arithmetic of a run, before it runs. `plan("metta").plan.gradient_updates == 32`.

Each kind of recipe has a folder with its numbers, advice and text (`ppo`, `mixture`, `reward`); `kind` is their interface.
`planned` puts a plan together and shows it, `compare` shows several side by side. `estimate` has the machine and times,
`memory` bytes.
"""

from millpond.planner.estimate import Host
from millpond.planner.kind import Plan
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.planned import Planned, plan, plan_loaded
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.reward.numbers import RewardPlan

__all__ = ["Host", "MixturePlan", "PPOPlan", "Plan", "Planned", "RewardPlan", "plan", "plan_loaded"]
