"""The real wandb, offline, read back from the file it writes."""

import json

import pytest
from PIL import Image

from millpond.record import Counters, Recorder, WeightsAndBiases, video_path

wandb = pytest.importorskip("wandb")


def rows_and_metrics(path):
    """The history rows and metric definitions in a .wandb file: LevelDB's log format of protobuf records."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), 7, b""
    rows, metrics = [], {}
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # a block's tail too short for a header
            position += 32768 - position % 32768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if kind == 0:
            break
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record.FromString(parts)
            parts = b""
            if record.HasField("history"):
                items = {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                rows.append(items | {"_step": record.history.step.num})
            if record.HasField("metric"):
                metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    return rows, metrics


def test_offline_rows_use_the_axis_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    counters = Counters()
    sink = WeightsAndBiases(tmp_path, "pond-run", "k3x9", "updates", mode="offline", config={"seed": 1})
    recorder = Recorder(tmp_path / "metrics.jsonl", counters, [sink])
    for number in range(4):
        counters.updates = number * 50
        recorder.write({"R_loss": 1 / (number + 1)})
    recorder.close()
    wandb.teardown()  # ends the process of wandb, which may still be writing
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-k3x9.wandb")
    rows, metrics = rows_and_metrics(file)
    assert [(row["_step"], row["updates"], row["R_loss"]) for row in rows] == [
        (n, n * 50, 1 / (n + 1)) for n in range(4)
    ]
    assert metrics["*"] == "updates"


def test_unreachable_server_does_not_stop_training(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    counters = Counters()
    sink = WeightsAndBiases(tmp_path, "pond-run", "k3x9", "updates", timeout_seconds=2.0)
    recorder = Recorder(tmp_path / "metrics.jsonl", counters, [sink])
    with pytest.warns(UserWarning, match="WeightsAndBiases failed and is off for the rest of this run"):
        recorder.write({"R_loss": 1.0})
    recorder.write({"R_loss": 2.0})
    recorder.close()
    wandb.teardown()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_video_of_an_evaluation_is_sent_with_its_record(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    videos = tmp_path / "videos"
    videos.mkdir()
    frames = [Image.new("RGB", (8, 6), (40 * k, 0, 0)) for k in range(4)]
    frames[0].save(video_path(videos, 50), save_all=True, append_images=frames[1:])
    counters = Counters()
    sink = WeightsAndBiases(tmp_path, "pond-run", "k3x9", "updates", mode="offline", videos=videos)
    recorder = Recorder(tmp_path / "metrics.jsonl", counters, [sink])
    for counters.updates in (0, 50):
        recorder.write({"eval/episode_return": 1.0})
    recorder.close()
    wandb.teardown()
    (sent,) = (tmp_path / "wandb").glob("offline-run-*/files/media/videos/eval/episode_*.gif")
    assert sent.read_bytes() == video_path(videos, 50).read_bytes()
