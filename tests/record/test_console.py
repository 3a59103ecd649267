import io

import pytest
from rich.console import Console as Terminal

from millpond.loop import Loop
from millpond.record import Console, Counters, Recorder, Timer, cycle_rows


def train(path, terminal, *, rhythm=0.0, cycles=3, warning="", table=False, **options):
    loop, counters, timer = Loop(epoch=2, cycle=cycles, iteration=None, batch=2), Counters(), Timer()
    console = Console(loop, counters, timer, "updates", seconds_between_lines=rhythm, terminal=terminal, **options)
    recorder = Recorder(path, counters, [console])

    def at_cycle(ended):
        record = recorder.write({**ended.means(), **timer.take()})
        if table:
            console.table(cycle_rows(ended.address, loop.sizes, record))
        if warning:
            console.warn("loss", warning)

    loop.at_end("cycle", at_cycle)
    recorder.begin()
    for at in loop.run():
        with timer("train"):
            counters.updates += 1
            loop.record("R_loss", 1.0 / counters.updates)
        if at["iteration"] == 1:
            loop.end("iteration")
    recorder.close()


def test_short_lines_without_a_terminal(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert len(lines) == 6  # one per record
    assert "\x1b" not in text.getvalue()
    assert lines[1].split("  ")[:3] == [" 17%", "R_loss 0.1586", "8 updates"]
    assert lines[1].split("  ")[3].endswith("/s")
    assert lines[1].endswith(" left")
    assert all(len(line) < 80 for line in lines)


def test_verbose_lines_have_everything(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text, width=80), verbose=True, table=True)
    lines = [line for line in text.getvalue().splitlines() if line[0] not in "|+"]
    assert len(lines) == 6  # however long: nothing is wrapped
    assert lines[1].startswith("epoch 0/2 (")
    assert "cycle 1/3 (" in lines[1]
    assert "iteration 1/? (? left)" in lines[1]
    assert "8 updates, " in lines[1]
    assert lines[1].endswith("R_loss 0.15863 ↓")
    assert text.getvalue().count("TimeCost(sec)/train") == 6


def test_verbose_means_lines_on_a_terminal_too(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text, force_terminal=True, width=120), verbose=True)
    assert "━" not in text.getvalue()
    assert text.getvalue().count(" updates, ") == 6


def test_lines_are_printed_at_intervals(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text), rhythm=3600.0, cycles=20)
    assert len(text.getvalue().splitlines()) == 1


def test_values_between_records_are_shown_once():
    text = io.StringIO()
    loop, counters = Loop(cycle=2, batch=2), Counters()
    console = Console(loop, counters, Timer(), "updates", seconds_between_lines=0.0, terminal=Terminal(file=text))
    console.open([])
    console.measure({"R_loss": 3.0})
    console.measure({"R_loss": 1.0})
    console.write({**counters.as_dict(), "R_loss": 2.0}, 0)
    console.write({**counters.as_dict(), "R_loss": 2.5}, 1)
    assert [line.split("  ")[2] for line in text.getvalue().splitlines()] == [
        "R_loss 3",
        "R_loss 1",
        "R_loss 1",  # the record is the mean of what was shown
        "R_loss 2.5",
    ]


def test_live_display_ends_with_a_short_line_and_the_warnings(tmp_path):
    text = io.StringIO()
    terminal = Terminal(file=text, force_terminal=True, width=100, height=20)
    train(
        tmp_path / "metrics.jsonl", terminal, title="mill · reward", warning="after 4 updates: it is high", table=True
    )
    shown = text.getvalue()
    assert "\x1b[" in shown
    assert "mill · reward" in shown
    assert shown.count("TimeCost(sec)/train") == 6  # the tables stay above the display
    *_, line, warning = shown.rstrip().splitlines()
    assert "100%  R_loss 0.04455  24 updates" in line
    assert warning == "warning: after 4 updates: it is high"  # once, though it was repeated
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is visible


def test_warnings_without_a_display_are_printed(tmp_path):
    text = io.StringIO()
    train(tmp_path / "metrics.jsonl", Terminal(file=text), rhythm=3600.0, cycles=1, warning="it is high")
    assert text.getvalue().splitlines()[1] == "warning: it is high"


def test_a_resized_terminal_is_cleared_before_the_display_is_drawn_again():
    text = io.StringIO()
    terminal = Terminal(file=text, force_terminal=True, width=100, height=20)
    console = Console(Loop(batch=2), Counters(), Timer(), "updates", terminal=terminal)
    console.open([])
    console.display()
    assert "\x1b[2J" not in text.getvalue()
    terminal.size = (60, 12)
    console.display()
    assert "\x1b[2J\x1b[H" in text.getvalue()
    console.close()


def test_output_above_the_display_keeps_colours_and_moves_no_cursor():
    text = io.StringIO()
    terminal = Terminal(file=text, force_terminal=True, width=100, height=20, color_system="standard")
    console = Console(Loop(batch=2), Counters(), Timer(), "updates", terminal=terminal)
    console._show_output("\x1b[31mred\x1b[0m\x1b[2J\x1b[5A \x9b2J\x07 [bold]")
    assert text.getvalue() == "\x1b[31mred\x1b[0m \\x9b2J\\x07 [bold]\n"


def test_a_terminal_that_has_gone_does_not_end_a_run_but_a_full_disk_does():
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    for is_terminal in (True, False):
        terminal = Terminal(file=Broken(), force_terminal=is_terminal)
        console = Console(Loop(batch=2), Counters(), Timer(), "updates", terminal=terminal, verbose=True)
        if is_terminal:
            console.say("unseen")
        else:
            with pytest.raises(OSError, match="Input"):
                console.say("lost")
