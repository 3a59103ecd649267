"""Errors of a vector, and reports of workers that raised, died or hung."""

from __future__ import annotations

import signal
import traceback
from dataclasses import dataclass, field
from typing import Literal

from millpond.errors import MillpondError
from millpond.plurals import plural

FailureKind = Literal["raised", "died", "hung"]


class VectorError(MillpondError):
    """A vector cannot do what was requested."""


@dataclass(frozen=True)
class Failure:
    """Report of a command that failed."""

    kind: FailureKind
    doing: str  # "step", "reset", ...
    what: str  # one line: the exception, the signal or the timeout
    traceback: str = ""  # of the worker
    pid: int | None = None
    cause: BaseException | None = field(default=None, compare=False)  # if the worker runs in this process
    refusal: str = ""  # message of a MillpondError, which is shown alone

    @staticmethod
    def of(error: BaseException, doing: str) -> Failure:
        """Report an exception that a worker raised."""
        what = "".join(traceback.format_exception_only(error)).strip()
        refusal = str(error) if isinstance(error, MillpondError) else ""
        return Failure("raised", doing, what, "".join(traceback.format_exception(error)), refusal=refusal)


class WorkerError(MillpondError):
    """A worker raised, died or hung. The message and the attributes hold everything that helps to find the reason.

    `env` is the index of the env, or None if the env batch does not report it (see `ReportsProgress`); it is then one
    of first_env..last_env-1. `seed` and `env_steps` belong to `env`, or to `first_env`: the seed from which the env was
    started, and the steps that it has taken since. If the worker raised a `MillpondError`, this error has the same
    message, without a traceback, and the exit code is 2.
    """

    exit_code = 1  # the input was valid: a worker failed

    def __init__(
        self,
        failure: Failure,
        *,
        worker: int,
        is_trainer: bool = False,
        env: int | None,
        first_env: int,
        last_env: int,
        seed: int,
        env_steps: int,
        advice: str,
    ) -> None:
        self.kind = failure.kind
        self.doing = failure.doing
        self.traceback = failure.traceback
        self.worker = worker
        self.pid = failure.pid
        self.env = env
        self.first_env = first_env
        self.last_env = last_env
        self.seed = seed
        self.env_steps = env_steps
        process = f" (pid {failure.pid})" if failure.pid else ""
        who = "the trainer, with its share of the envs," if is_trainer else f"worker {worker}{process}"
        where = f"env {env}" if env is not None else f"one of the envs {first_env} to {last_env - 1}; env {first_env}"
        steps = plural(env_steps, "env step")
        if failure.refusal:
            self.exit_code = MillpondError.exit_code
            at = "" if failure.doing == "build" else f" ({failure.doing} of {where}: seed {seed}, after {steps})"
            super().__init__(f"{failure.refusal}{at}")
            return
        lines = [
            f"{who} {failure.kind} during {failure.doing}: {failure.what}",
            f"  {where}: seed {seed}, after {steps}",
            f"  {advice}",
        ]
        if failure.traceback:
            lines += ["the worker's traceback:", failure.traceback.rstrip()]
        super().__init__("\n".join(lines))


def describe_exit(code: int) -> str:
    """Describe how a process ended: `code` is its exit status, or minus the signal that killed it."""
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    hint = "; out of memory is a common reason (see `dmesg`)" if name == "SIGKILL" else ""
    return f"killed by signal {-code} ({name}){hint}"
