"""What is told of a worker that raised, died or hung."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Literal

from millpond.errors import MillpondError
from millpond.plurals import plural

CrashKind = Literal["raised", "died", "hung"]


class VectorError(MillpondError):
    """A vector was asked for something that it cannot do."""

    @staticmethod
    def cannot_load(reason: str) -> VectorError:
        return VectorError(
            f"a worker process cannot load make_env_batch; it must be importable from a fresh interpreter:\n{reason}"
        )

    @staticmethod
    def starts_too_slowly(seconds: float) -> VectorError:
        return VectorError(f"workers did not start within {seconds:g} s: importing what make_env_batch needs hangs")

    @staticmethod
    def did_not_start(worker: int, how_it_ended: str) -> VectorError:
        return VectorError(f"worker {worker} did not start: it {how_it_ended}")


@dataclass(frozen=True)
class Failure:
    """How a command ended, where it did not end well."""

    kind: CrashKind
    doing: str  # "step", "reset", ...
    what: str  # one line: the exception, the signal, how long nothing was heard
    traceback: str = ""  # of the worker
    pid: int | None = None
    cause: BaseException | None = field(default=None, compare=False)  # where the worker shares our memory
    refusal: str = ""  # the message of a MillpondError, which says all that the user needs

    @staticmethod
    def of(error: BaseException, doing: str) -> Failure:
        what = "".join(traceback.format_exception_only(error)).strip()
        refusal = str(error) if isinstance(error, MillpondError) else ""
        return Failure("raised", doing, what, "".join(traceback.format_exception(error)), refusal=refusal)


class WorkerError(MillpondError):
    """A worker raised, died or hung. Everything that helps to find the reason is in the message and as attributes.

    `env` is the index of the env, or None where the environment does not tell (see `Watched`); it is then one of
    first_env..last_env-1. `seed` and `env_steps` are those of `env`, or of `first_env`: the seed from which the env
    was started, and the steps which it had taken since. Where the worker refused its input with a `MillpondError`, that
    error's message is this one's, without a traceback, and the exit code is 2.
    """

    exit_code = 1  # the input was right: a worker failed

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
