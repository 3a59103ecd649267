"""One record for all trainers: a flat mapping of floats with every counter, written to many sinks.

May import `loop`; `store` may import this package.
"""

from millpond.record.console import Console
from millpond.record.counters import COUNTERS, Axis, Counters
from millpond.record.errors import RecordError
from millpond.record.headline import HEADLINES, RETURNS, newest_headline
from millpond.record.jsonlines import JsonLines, Record, last_record, read_records
from millpond.record.pace import Pace, show_seconds
from millpond.record.recorder import Recorder, Sink
from millpond.record.table import cycle_rows, show_number, show_table
from millpond.record.tensorboard import TensorBoard
from millpond.record.timer import Timer
from millpond.record.weights_and_biases import WeightsAndBiases

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
    "WeightsAndBiases",
    "cycle_rows",
    "last_record",
    "newest_headline",
    "read_records",
    "show_number",
    "show_seconds",
    "show_table",
]
