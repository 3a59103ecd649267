"""Curves for Weights & Biases, online or offline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from millpond.record.jsonlines import Record, RecordError
from millpond.record.recorder import Axis


class WeightsAndBiases:
    """One history row per record, plotted over the axis of the run.

    A row has the number of its record. A resumed run may send a row again; wandb warns and keeps the first, which is equal
    apart from times. `run_id` is unique to the run and stays the same over resumes.
    """

    remote = True

    def __init__(
        self,
        folder: Path,
        name: str,
        run_id: str,
        axis: Axis,
        *,
        project: str = "millpond",
        mode: Literal["online", "offline"] = "online",
        config: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        try:
            import wandb
        except ImportError:
            raise RecordError("log.wandb needs the wandb package: pip install 'millpond[wandb]'") from None
        self._wandb: Any = wandb
        self._arguments = {"dir": str(folder), "name": name, "id": run_id, "project": project, "mode": mode}
        self._config = dict(config or {})
        self._axis = axis
        self._timeout = timeout_seconds
        self._run: Any = None

    def open(self, previous: Iterable[Record]) -> None:
        settings = self._wandb.Settings(silent=True, console="off", init_timeout=self._timeout, x_disable_stats=True)
        self._run = self._wandb.init(**self._arguments, config=self._config, resume="allow", settings=settings)
        self._run.define_metric(self._axis)
        self._run.define_metric("*", step_metric=self._axis)

    def write(self, record: Record, number: int) -> None:
        self._run.log(record, step=number)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
