"""Thousands of envs in groups that step in turn, inline, in threads or in worker processes. Imports no torch."""

from millpond.vector.batch import Batch
from millpond.vector.choose import Choice, choose
from millpond.vector.crash import VectorError, WorkerError
from millpond.vector.crew import EnvBatchFactory, Watched
from millpond.vector.make import make_vector
from millpond.vector.seeds import env_seed, env_seeds
from millpond.vector.turns import Turns
from millpond.vector.vector import Vector, group_name

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
