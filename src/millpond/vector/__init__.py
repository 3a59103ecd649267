"""Thousands of envs in groups that step in turn, inline, in threads or in worker processes. Imports no torch.

make         make_vector: start the workers, make the envs
measure      measure_backend: measure the environment, to choose its backend
choose       the backend that is fastest for measured times
vector       Vector: recv, send, save_state, load_state
scheduler    RoundRobin: receive and send slices of envs strictly in turn
fleet        Fleet: all envs and their workers; restarts envs that crashed
finite       FiniteCheck: find the env, agent and step of a number that is NaN or infinite
layout       which envs belong to which group, and which worker steps them; Batch, what recv returns
worker       commands of a worker, the loop of a worker process, and reports of failures
backends/    how workers run: pool (inline, threads), processes (forked), spawned
"""

from millpond.vector.finite import BadNumber, FiniteCheck, NonFiniteEnvError
from millpond.vector.fleet import env_seed, env_seeds
from millpond.vector.layout import Batch, VectorError
from millpond.vector.make import BackendChoice, choose_backend, make_vector
from millpond.vector.measure import measure_backend
from millpond.vector.scheduler import RoundRobin
from millpond.vector.vector import Vector, group_name
from millpond.vector.worker import MakeEnvBatch, ReportsProgress, WorkerError

__all__ = [
    "BackendChoice",
    "BadNumber",
    "Batch",
    "FiniteCheck",
    "MakeEnvBatch",
    "NonFiniteEnvError",
    "ReportsProgress",
    "RoundRobin",
    "Vector",
    "VectorError",
    "WorkerError",
    "choose_backend",
    "env_seed",
    "env_seeds",
    "group_name",
    "make_vector",
    "measure_backend",
]
