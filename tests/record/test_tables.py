from millpond.loop import Loop
from millpond.record import Counters, cycle_rows, show_table


def test_rows_of_the_cycle_table():
    loop, counters = Loop(epoch=2, cycle=1), Counters()
    record = {**counters.as_dict(), "R_loss": 0.15863, "time/train": 1.0}
    rows = cycle_rows(loop.address, loop.sizes, record)
    names = ["Epoch", "Cycle", "Episodes", "Timesteps", "TimeCost(sec)/train", "TimeCost(sec)/test", "R_loss"]
    assert list(rows) == names
    assert rows["Epoch"] == "0/2"
    assert len({len(line) for line in show_table(rows).splitlines()}) == 1


def test_table_has_a_frame():
    assert show_table({"a": "1"}) == "+---+---+\n| a | 1 |\n+---+---+"
