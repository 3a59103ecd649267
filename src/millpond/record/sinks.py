"""Curves for TensorBoard, written in its record format without TensorFlow, and for Weights & Biases, online or offline."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from millpond.record.jsonlines import Record, RecordError
from millpond.record.recorder import Axis

EVENT_FILES = "events.out.tfevents.*"


class TensorBoard:
    """One event per record, at the axis of the run.

    A resumed run writes its curves again from `metrics.jsonl` and removes the older event files, so that no point is
    duplicated or missing, even if a kill damaged an event file. Wall time is that of the run's clock, so TensorBoard's
    relative axis leaves out pauses between resumes.
    """

    remote = False

    def __init__(self, folder: Path, axis: Axis) -> None:
        self.folder = folder
        self.axis = axis
        self._file: BinaryIO | None = None
        self._writer: Any = None
        self._clock_began: float | None = None

    def open(self, previous: Iterable[Record]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.folder.mkdir(parents=True, exist_ok=True)
        older = list(self.folder.glob(EVENT_FILES))
        name = EVENT_FILES.replace("*", f"{time.time_ns() / 1e9:017.6f}.{socket.gethostname()}.{os.getpid()}")
        self._file = (self.folder / name).open("wb")
        self._writer = RecordWriter(self._file)
        self._put(file_version="brain.Event:2", wall_time=time.time())
        for record in previous:
            self._add(record)
        self._file.flush()
        for path in older:
            path.unlink()

    def write(self, record: Record, number: int) -> None:
        assert self._file is not None
        self._add(record)
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, record: Record) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._clock_began is None:
            self._clock_began = time.time() - record["seconds"]
        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.items() if name != self.axis]
        self._put(
            step=int(record[self.axis]),
            wall_time=self._clock_began + record["seconds"],
            summary=Summary(value=values),
        )

    def _put(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(**fields).SerializeToString())


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
