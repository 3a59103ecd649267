"""Curves and videos for TensorBoard, written in its format without TensorFlow, for Weights & Biases, and for trackio.

A video is a GIF that was written to a folder before the record of its evaluation, under the record's updates.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, BinaryIO, Literal

from millpond.record.jsonlines import RETURNS, Record, RecordError
from millpond.record.recorder import Axis

EVENT_FILES = "events.out.tfevents.*"
VIDEO = "eval/episode"  # name of the videos of evaluations


def video_path(folder: Path, updates: float) -> Path:
    """Return the file of the video of an evaluation."""
    return folder / f"{int(updates):012d}.gif"


def video_of(folder: Path | None, record: Record) -> Path | None:
    """Return the video that belongs to a record; None if it has no evaluation, or that has no video."""
    if folder is None or RETURNS[0] not in record:
        return None
    path = video_path(folder, record["updates"])
    return path if path.is_file() else None


class TensorBoard:
    """One event per record, at the axis of the run.

    A resumed run writes its curves again from `metrics.jsonl` and removes the older event files, so that no point is
    duplicated or missing, even if a kill damaged an event file. Wall time is that of the run's clock, so TensorBoard's
    relative axis leaves out pauses between resumes.
    """

    remote = False

    def __init__(self, folder: Path, axis: Axis, *, videos: Path | None = None) -> None:
        self.folder = folder
        self.axis = axis
        self._videos = videos
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
        video = video_of(self._videos, record)
        if video is not None:  # TensorBoard plays a GIF among its images
            data = video.read_bytes()
            width, height = (int.from_bytes(data[at : at + 2], "little") for at in (6, 8))
            image = Summary.Image(encoded_image_string=data, width=width, height=height, colorspace=3)
            values.append(Summary.Value(tag=VIDEO, image=image))
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
        videos: Path | None = None,
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
        self._videos = videos
        self._run: Any = None

    def open(self, previous: Iterable[Record]) -> None:
        settings = self._wandb.Settings(silent=True, console="off", init_timeout=self._timeout, x_disable_stats=True)
        self._run = self._wandb.init(**self._arguments, config=self._config, resume="allow", settings=settings)
        self._run.define_metric(self._axis)
        self._run.define_metric("*", step_metric=self._axis)

    def write(self, record: Record, number: int) -> None:
        video = video_of(self._videos, record)
        media = {} if video is None else {VIDEO: self._wandb.Video(str(video), format="gif")}
        self._run.log({**record, **media}, step=number)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


class Trackio:
    """One row per record at the axis of the run, in trackio's database on this machine.

    A resumed run is written again from `metrics.jsonl`, so that no point is duplicated or missing. Where trackio's own
    variables (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL) send it elsewhere, a resumed run continues there.
    """

    remote = True

    def __init__(
        self,
        name: str,
        run_id: str,
        axis: Axis,
        *,
        project: str = "millpond",
        config: Mapping[str, Any] | None = None,
        videos: Path | None = None,
    ) -> None:
        try:
            import trackio
        except ImportError:
            raise RecordError("log.trackio needs the trackio package: pip install 'millpond[trackio]'") from None
        self._trackio: Any = trackio
        self._name, self._project, self._axis = f"{name}-{run_id[:6]}", project, axis
        self._config, self._videos = dict(config or {}), videos
        self._run: Any = None

    def open(self, previous: Iterable[Record]) -> None:
        elsewhere = any(os.environ.get(name) for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"))
        with redirect_stdout(io.StringIO()):  # how to open its dashboard, which would break the display
            if not elsewhere:
                self._forget()
            self._run = self._trackio.init(
                project=self._project,
                name=self._name,
                config=self._config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        for record in () if elsewhere else previous:
            self._log(record)

    def write(self, record: Record, number: int) -> None:
        self._log(record)

    def close(self) -> None:
        if self._run is not None:
            with redirect_stdout(io.StringIO()):
                self._run.finish()
            self._run = None

    def _forget(self) -> None:
        """Delete what an earlier session of this run has written."""
        try:
            runs = list(self._trackio.Api().runs(self._project))
        except ValueError:
            return  # there is no such project yet
        for run in runs:
            if run.name == self._name:
                run.delete()

    def _log(self, record: Record) -> None:
        video = video_of(self._videos, record)
        media = {} if video is None else {VIDEO: self._trackio.Video(str(video))}
        self._run.log({**record, **media}, step=int(record[self._axis]))
