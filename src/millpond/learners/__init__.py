"""Learners of action values: PQN agents side by side, DQN from replay, SAC for continuous actions."""

from millpond.learners.collection import Collection
from millpond.learners.collector import Epsilon, epsilon_greedy
from millpond.learners.dqn import DQN, TransitionBatch
from millpond.learners.pqn import AgentGroup
from millpond.learners.q_network import LearnerError, QNetwork, build_q_network
from millpond.learners.sac import SAC

__all__ = [
    "DQN",
    "SAC",
    "AgentGroup",
    "Collection",
    "Epsilon",
    "LearnerError",
    "QNetwork",
    "TransitionBatch",
    "build_q_network",
    "epsilon_greedy",
]
