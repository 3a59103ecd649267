"""Counts of a whole run on the emulated device. Run by test_emulated.py in a process of its own."""

from __future__ import annotations

from millpond.bench.emulated import count_run, show_run


def test_counts_of_a_run_name_its_phases_and_lines() -> None:
    run = count_run("reward-online")
    assert set(run.entered) >= {"train", "act", "test"}
    assert run.entered["train"] == 1
    assert run.per_entry("train")["launch"] > 10
    assert sum(run.counts.of("launch", phase) for phase in run.entered) <= run.counts.of("launch")
    text = "\n".join(show_run(run))
    assert "reward-online, preset debug, on the emulated device" in text
    assert "learners/sac.py:" in text
