"""Records of all trainers: flat mappings of floats with every counter, written to many sinks.

May import `loop`; `store` may import this package.
"""

from millpond.record.capture import captured_output
from millpond.record.console import Console
from millpond.record.jsonlines import (
    HEADLINES,
    RETURNS,
    JsonLines,
    Record,
    RecordError,
    last_record,
    newest_headline,
    read_records,
)
from millpond.record.pace import Pace, show_seconds
from millpond.record.recorder import COUNTERS, Axis, Counters, Recorder, Sink
from millpond.record.sinks import TensorBoard, Trackio, WeightsAndBiases, video_path
from millpond.record.tables import cycle_rows, show_number, show_table
from millpond.record.timer import Timer

__all__ = [
    "COUNTERS",
    "HEADLINES",
    "RETURNS",
    "Axis",
    "Console",
    "Counters",
    "JsonLines",
    "Pace",
    "Record",
    "RecordError",
    "Recorder",
    "Sink",
    "TensorBoard",
    "Timer",
    "Trackio",
    "WeightsAndBiases",
    "captured_output",
    "cycle_rows",
    "last_record",
    "newest_headline",
    "read_records",
    "show_number",
    "show_seconds",
    "show_table",
    "video_path",
]
