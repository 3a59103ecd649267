"""The real trackio, in a database of the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millpond.record import RecordError
from millpond.record.sinks import Trackio

SCRIPT = """
import sys
from pathlib import Path
from millpond.record import Counters, Recorder, Trackio, video_path

folder = Path(sys.argv[1])

def sink():
    return Trackio("pond", "k3x9abcd", "updates", project="test", config={"seed": 1}, videos=folder / "videos")

def write(recorder, numbers, offset=0.0):
    for number in numbers:
        counters.updates = number * 50
        recorder.write({"R_loss": number / 4 + offset, **({"eval/episode_return": 1.0} if number == 2 else {})})

(folder / "videos").mkdir()
from PIL import Image
frames = [Image.new("RGB", (8, 6), (40 * k, 0, 0)) for k in range(4)]
frames[0].save(video_path(folder / "videos", 100), save_all=True, append_images=frames[1:])
counters = Counters()
recorder = Recorder(folder / "metrics.jsonl", counters, [sink()])
write(recorder, range(3))
state = recorder.state_dict()
write(recorder, range(3, 6), offset=50.0)
recorder.close()
resumed = Recorder(folder / "metrics.jsonl", counters, [sink()])
resumed.load_state_dict(state)
write(resumed, range(3, 5))
resumed.close()

import trackio
(run,) = trackio.Api().runs("test")
assert run.name == "pond-k3x9ab", run.name
from trackio.sqlite_storage import SQLiteStorage
rows = SQLiteStorage.get_logs("test", run.name)
print([(row["step"], row["R_loss"]) for row in rows])
files = folder.glob("trackio/media/**/*.gif")
print([row["step"] for row in rows if "eval/episode" in row], sorted(path.suffix for path in files))
"""


def test_resumed_run_is_one_curve_with_its_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, videos = [
        line for line in done.stdout.splitlines() if line.startswith("[")
    ]  # trackio says goodbye after them
    assert rows == "[(0, 0.0), (50, 0.25), (100, 0.5), (150, 0.75), (200, 1.0)]"
    assert videos.startswith("[100] ['.gif'")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(RecordError, match=r"pip install 'millpond\[trackio\]'"):
        Trackio("pond", "k3x9", "updates")
