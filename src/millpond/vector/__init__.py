"""Thousands of envs in groups that step in turn, inline, in threads or in worker processes. Imports no torch."""

from millpond.vector.batch import Batch
from millpond.vector.failures import VectorError, WorkerError
from millpond.vector.fleet import env_seed, env_seeds
from millpond.vector.make import Choice, choose, make_vector
from millpond.vector.scheduler import Turns
from millpond.vector.vector import Vector, group_name
from millpond.vector.worker import EnvBatchFactory, Watched

__all__ = [
    "Batch",
    "Choice",
    "EnvBatchFactory",
    "Turns",
    "Vector",
    "VectorError",
    "Watched",
    "WorkerError",
    "choose",
    "env_seed",
    "env_seeds",
    "group_name",
    "make_vector",
]
