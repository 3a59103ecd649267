"""Warnings about runs that cannot learn or that diverge, made from their records."""

from millpond.trainers.common.health.kinds import mixture_checks, ppo_checks, reward_checks
from millpond.trainers.common.health.monitor import HealthMonitor, HealthSink

__all__ = ["HealthMonitor", "HealthSink", "mixture_checks", "ppo_checks", "reward_checks"]
