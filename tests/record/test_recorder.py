import json

import pytest

from millpond.record import COUNTERS, Counters, Recorder, RecordError, last_record, read_records


def recorded(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(recorder, counters, updates):
    for number in updates:
        counters.updates = number
        recorder.write({"R_loss": number / 10})


def test_every_record_carries_every_counter(tmp_path):
    counters = Counters()
    recorder = Recorder(tmp_path / "metrics.jsonl", counters)
    counters.agent_steps += 12
    written = recorder.write({"R_loss": 0.5})
    recorder.close()
    assert recorded(tmp_path / "metrics.jsonl") == [written]
    assert list(written) == [*COUNTERS, "R_loss"]
    assert (written["agent_steps"], written["updates"], written["R_loss"]) == (12, 0, 0.5)
    assert written["seconds"] >= 0.0


@pytest.mark.parametrize("torn", [b"", b'{"updates": 9', b'{"updates": 9}\n{"upd'])
def test_resumed_run_has_no_duplicate_or_missing_records(tmp_path, torn):
    path, counters = tmp_path / "metrics.jsonl", Counters()
    recorder = Recorder(path, counters)
    write(recorder, counters, [0, 1, 2])
    state = recorder.state_dict()
    saved = counters.state_dict()
    write(recorder, counters, [3, 4])
    with path.open("ab") as file:
        file.write(torn)

    counters = Counters()
    counters.load_state_dict(saved)
    assert counters.seconds >= saved["seconds"]
    resumed = Recorder(path, counters)
    resumed.load_state_dict(state)
    write(resumed, counters, [3, 4, 5])
    resumed.close()
    assert [record["updates"] for record in recorded(path)] == [0, 1, 2, 3, 4, 5]
    seconds = [record["seconds"] for record in recorded(path)]
    assert seconds == sorted(seconds)


def test_run_without_a_checkpoint_starts_with_an_empty_file(tmp_path):
    path, counters = tmp_path / "metrics.jsonl", Counters()
    write(Recorder(path, counters), counters, [0, 1, 2])
    again = Recorder(path, counters)
    write(again, counters, [0])
    again.close()
    assert [record["updates"] for record in recorded(path)] == [0]


@pytest.mark.parametrize("ask", [True, False])
def test_resumed_run_truncates_its_file_without_a_new_record(tmp_path, ask):
    path, counters = tmp_path / "metrics.jsonl", Counters()
    write(Recorder(path, counters), counters, [0, 1, 2])
    resumed = Recorder(path, counters)
    resumed.load_state_dict({"records": 1})
    if ask:
        assert resumed.state_dict() == {"records": 1}
    else:
        resumed.begin()
    assert len(recorded(path)) == 1


def test_missing_records_are_warned_about(tmp_path):
    resumed = Recorder(tmp_path / "metrics.jsonl", Counters())
    resumed.load_state_dict({"records": 5})
    with pytest.warns(UserWarning, match="has 0 whole records, the checkpoint had 5; the curve has a gap"):
        resumed.write({})


def test_counters_and_non_finite_values_are_refused_as_metrics(tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", Counters())
    with pytest.raises(RecordError, match="'updates' is a counter"):
        recorder.write({"updates": 3})
    with pytest.raises(RecordError, match="entropy = nan at 0 updates"):
        recorder.write({"entropy": float("nan")})
    recorder.write({})
    with pytest.raises(RecordError, match="before its first record"):
        recorder.load_state_dict({"records": 0})


def test_unfinished_line_is_not_read_and_damaged_line_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(read_records(path)) == []
    assert last_record(path) is None
    path.write_text('{"updates": 1}\n{"updates": 2}\n{"upd')
    assert list(read_records(path)) == [{"updates": 1}, {"updates": 2}]
    assert last_record(path) == {"updates": 2}
    assert last_record(path, tail=8) == {"updates": 2}
    path.write_text('{"updates": 1}\nnonsense\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl line 2 is not a record: b'nonsense"):
        list(read_records(path))


class Failing:
    """A remote sink whose server fails from the third record on."""

    def __init__(self, remote):
        self.remote = remote
        self.attempts = 0

    def open(self, previous):
        pass

    def write(self, record, number):
        self.attempts += 1
        if number >= 2:
            raise ConnectionError("no route to host")

    def close(self):
        raise AssertionError("a failed sink is not used again")


def test_failing_remote_sink_warns_once(tmp_path):
    counters, sink = Counters(), Failing(remote=True)
    recorder = Recorder(tmp_path / "metrics.jsonl", counters, [sink])
    with pytest.warns(UserWarning, match="Failing failed and is off for the rest of this run: no route") as warned:
        write(recorder, counters, range(6))
    recorder.close()
    assert (len(warned), sink.attempts, len(recorded(tmp_path / "metrics.jsonl"))) == (1, 3, 6)


def test_failing_local_sink_stops_the_run(tmp_path):
    counters = Counters()
    recorder = Recorder(tmp_path / "metrics.jsonl", counters, [Failing(remote=False)])
    with pytest.raises(ConnectionError):
        write(recorder, counters, range(6))
