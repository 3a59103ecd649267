import io

from rich.console import Console as Terminal

from millpond.loop import Loop
from millpond.record import Console, Counters, Pace, Recorder, Timer, cycle_rows, show_seconds, show_table


def train(path, terminal, *, table=False, rhythm=0.0, cycles=3):
    loop, counters, timer = Loop(epoch=2, cycle=cycles, iteration=None, batch=2), Counters(), Timer()
    console = Console(loop, counters, timer, "updates", seconds_between_lines=rhythm, terminal=terminal)
    recorder = Recorder(path, counters, [console])

    def at_cycle(ended):
        record = recorder.write({**ended.means(), **timer.take()})
        if table:
            console.table(cycle_rows(ended.address, loop.sizes, record))

    loop.at_end("cycle", at_cycle)
    recorder.begin()
    for at in loop.run():
        with timer("train"):
            counters.updates += 1
            loop.record("R_loss", 1.0 / counters.updates)
        if at["iteration"] == 1:
            loop.end("iteration")
    recorder.close()


def test_plain_lines_without_a_terminal(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert len(lines) == 6  # one per record, however long: nothing is wrapped
    assert "\x1b" not in text.getvalue()
    assert lines[1].startswith("epoch 0/2 (")
    assert "cycle 1/3 (" in lines[1]
    assert "iteration 1/? (? left)" in lines[1]
    assert "8 updates, " in lines[1]
    assert lines[1].endswith("R_loss 0.15863 ↓")


def test_plain_lines_are_printed_at_intervals(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text), rhythm=3600.0, cycles=20)
    assert len(text.getvalue().splitlines()) == 1


def test_live_display_on_a_terminal(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text, force_terminal=True, width=120), table=True)
    shown = text.getvalue()
    assert "\x1b[" in shown
    assert "train" in shown
    assert "TimeCost(sec)/train" in shown
    assert shown.count("Epoch") == 6  # the tables stay above the display
    assert "epoch 2/2 (0s left)" in shown.rstrip().splitlines()[-1]


def test_rows_of_the_cycle_table(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text), table=True, rhythm=3600.0, cycles=1)
    table = text.getvalue().splitlines()[1:9]
    names = [line.split("|")[1].strip() for line in table if "|" in line]
    assert names == ["Epoch", "Cycle", "Episodes", "Timesteps", "TimeCost(sec)/train", "TimeCost(sec)/test", "R_loss"]
    assert table[1].split("|")[2].strip() == "0/2"
    assert len({len(line) for line in table}) == 1
    assert show_table({"a": "1"}) == "+---+---+\n| a | 1 |\n+---+---+"


def test_time_left_at_each_level():
    loop = Loop(epoch=4, cycle=None, batch=10)
    now = 100.0
    pace = Pace(loop, lambda: now)
    assert pace.seconds_left() == {"epoch": None, "cycle": None, "batch": None}
    for at in loop.run(until=25):
        now += 2.0
        if at["cycle"] == 1:
            loop.end("cycle")
    # In epoch 1, cycle 0, batch 5, after 50 s: 5 batches of 2 s are left. One epoch has ended in the 50 s, and how many
    # cycles this one will have is not known, so 3 epochs are left.
    assert pace.seconds_left() == {"epoch": 150.0, "cycle": None, "batch": 10.0}
    fixed = Loop(epoch=4, cycle=2, batch=10)
    pace = Pace(fixed, lambda: now)
    for _ in fixed.run(until=5):
        now += 2.0
    # 5 batches, then 1 cycle of 20 s, then 3 epochs of 40 s
    assert pace.seconds_left() == {"epoch": 150.0, "cycle": 30.0, "batch": 10.0}


def test_show_seconds():
    shown = [show_seconds(seconds) for seconds in (None, 8.4, 245, 9000, 3 * 86400 + 4 * 3600)]
    assert shown == ["?", "8s", "4m05s", "2h30m", "3d04h"]
