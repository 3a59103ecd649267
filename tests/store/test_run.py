"""Run folders, their state, the list of runs, and settings that a resume may change."""

import json
import os
import subprocess
import sys
import time

import pytest

from millpond.durable import FileLock
from millpond.loop import Address, Loop
from millpond.record import Counters, Recorder
from millpond.store import (
    Checkpoints,
    Parts,
    ResumeError,
    Run,
    RunError,
    check_changes,
    host_facts,
    list_runs,
    read_status,
    show_runs,
    training,
)
from millpond.store.host import git_commit
from millpond.store.status import Process, process_start, write_status


def start(root, name="pond", **options):
    return Run.start(root, name, config_yaml="seed: 1\n", plan={"num_envs": 4}, **options)


def test_folder_of_a_new_run(tmp_path):
    run = start(tmp_path / "runs")
    assert run.config_path.read_text() == "seed: 1\n"
    assert json.loads(run.plan_path.read_text()) == {"num_envs": 4}
    host = json.loads(run.host_path.read_text())
    assert host["command"] == sys.argv
    assert host["versions"]["torch"].startswith("2.")
    assert host["cores"] == os.cpu_count()
    assert "cpu" in host["devices"]
    assert read_status(run.folder).state == "running"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["pond"]
    assert run.run_id == Run.open(tmp_path / "runs", "pond").run_id


def test_existing_folder_is_refused_with_the_alternatives(tmp_path):
    run = start(tmp_path)
    with pytest.raises(RunError, match=r"pond already exists.*--resume pond.*--run NAME.*--overwrite"):
        start(tmp_path)
    with pytest.raises(RunError, match=rf"is running \(process {os.getpid()} on .*\) and cannot be overwritten"):
        start(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["pond"]
    write_status(run.folder, "stopped")
    run.close()
    run.metrics_path.write_text("{}\n")
    assert not start(tmp_path, overwrite=True).metrics_path.exists()


def test_overwrite_refuses_a_folder_that_is_not_a_run(tmp_path):
    (tmp_path / "pond").mkdir()
    (tmp_path / "pond" / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="is not a run folder"):
        start(tmp_path, overwrite=True)
    assert (tmp_path / "pond" / "thesis.txt").exists()


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "-x"])
def test_invalid_names_are_refused(tmp_path, name):
    with pytest.raises(RunError, match="is not a valid run name"):
        start(tmp_path, name)


def test_resume(tmp_path):
    run = start(tmp_path)
    with pytest.raises(RunError, match=r"run 'pond' is running .* and cannot be resumed; that is this process"):
        Run.resume(tmp_path, "pond")
    write_status(run.folder, "stopped")
    run.close()
    resumed = Run.resume(tmp_path, str(run.folder))  # by its folder
    assert resumed.resumed
    assert resumed.run_id == run.run_id
    assert len(json.loads(resumed.host_path.read_text())["resumes"]) == 1
    with pytest.raises(RunError, match=r"no run 'lake' in .*; existing runs: pond"):
        Run.resume(tmp_path, "lake")
    with pytest.raises(RunError, match="there are no runs yet"):
        Run.resume(tmp_path / "empty", "lake")


def edit_state(run, **process):
    state = json.loads((run.folder / "state.json").read_text())
    (run.folder / "state.json").write_text(json.dumps({**state, "process": {**state["process"], **process}}))


def test_process_in_another_container_that_let_go_of_the_lock_has_ended(tmp_path):
    """A container has its own host name and process ids; the lock is that of the kernel, which it shares."""
    run = start(tmp_path)
    run.close()
    edit_state(run, host="container")
    (run.folder / "lock").write_text(f"{os.getpid()} container 1.0\n")
    Run.resume(tmp_path, "pond").close()


@pytest.mark.parametrize("verb", ["resumed", "overwritten"])
@pytest.mark.parametrize("process", [{"started": "boot 1", "host": "far"}, {"host": "container"}])
def test_process_elsewhere_that_may_be_alive_is_refused_with_the_way_on(tmp_path, process, verb):
    """The locks of another machine may not reach here, and the lock does not name the other container's process."""
    run = start(tmp_path)
    run.close()
    edit_state(run, **process)
    for _ in range(2):  # being refused does not make the next attempt succeed
        with pytest.raises(RunError, match=rf"on {process['host']}, since .* cannot be {verb}.*delete .*state\.json"):
            Run.resume(tmp_path, "pond") if verb == "resumed" else start(tmp_path, overwrite=True)
    (run.folder / "state.json").unlink()
    Run.resume(tmp_path, "pond") if verb == "resumed" else start(tmp_path, overwrite=True)


def test_run_that_is_being_created_is_not_created_twice(tmp_path):
    (tmp_path / ".creating-pond").mkdir()
    lock = FileLock(tmp_path / ".creating-pond" / "lock")
    with pytest.raises(RunError, match=r"run 'pond' is running .* and cannot be started again"):
        start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".creating-pond"]
    lock.release()
    start(tmp_path)


def test_folder_that_cannot_be_locked_is_refused_by_its_path(tmp_path):
    run = start(tmp_path)
    run.close()
    (run.folder / "lock").unlink()
    (run.folder / "lock").mkdir()
    with pytest.raises(RunError, match=r"pond/lock cannot be locked \(not a regular file, so it is not opened\)"):
        Run.resume(tmp_path, "pond")


def test_leftovers_of_a_crashed_start_are_removed(tmp_path):
    (tmp_path / ".creating-pond").mkdir()
    (tmp_path / ".creating-pond" / "config.yaml").write_text("half")
    start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pond"]


def test_process_is_identified_by_its_start():
    this = Process.this()
    assert this.is_alive()
    assert not Process(this.pid, "another start", this.host).is_alive()
    assert Process(1 << 22, "", "another host").is_alive()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = Process(child.pid, process_start(child.pid), this.host)
    assert identity.is_alive()
    child.kill()
    while process_start(child.pid) is not None:  # a zombie until we wait for it, and not alive
        time.sleep(0.005)
    assert not identity.is_alive()
    child.communicate()


def test_run_whose_process_died_has_failed(tmp_path):
    code = """
import pathlib, sys
from millpond.store import Run
Run.start(pathlib.Path(sys.argv[1]), "pond", config_yaml="", plan={})
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert json.loads((tmp_path / "pond" / "state.json").read_text())["state"] == "running"
    status = read_status(tmp_path / "pond")
    assert status.state == "failed"
    assert f"its process {status.process.pid} died while the run was being set up" in status.note
    Run.resume(tmp_path, "pond")


def test_run_that_died_during_setup_does_not_block_its_name(tmp_path):
    run = start(tmp_path)
    run.close()
    first = run.run_id
    dead = {"pid": 1 << 22, "started": "before", "host": Process.this().host}
    state = json.loads((run.folder / "state.json").read_text())
    (run.folder / "state.json").write_text(json.dumps({**state, "process": dead}))
    again = start(tmp_path)
    assert read_status(again.folder).state == "running"
    assert again.run_id != first


def test_run_that_trained_and_died_keeps_its_name(tmp_path):
    run = start(tmp_path)
    with pytest.raises(ZeroDivisionError), training(run, Loop(epoch=1), Recorder(run.metrics_path, Counters())):
        raise ZeroDivisionError
    with pytest.raises(RunError, match="already exists"):
        start(tmp_path)


def test_abandoned_new_run_is_removed_and_a_resumed_one_keeps_the_reason(tmp_path):
    run = start(tmp_path)
    run.abandon(ValueError("no"))
    assert list(tmp_path.iterdir()) == []
    stopped = start(tmp_path)
    write_status(stopped.folder, "stopped")
    stopped.close()
    for error, state, note in (
        (RunError("no\nlines"), "failed", "could not be resumed: RunError: no"),
        (KeyboardInterrupt(), "stopped", "interrupted before it continued"),
    ):
        Run.resume(tmp_path, "pond").abandon(error)
        assert read_status(tmp_path / "pond").state == state
        assert f"\n  {note}" in show_runs(list_runs(tmp_path))


def run_loop(root, name, body, until=None):
    run, loop, counters = start(root, name), Loop(epoch=2, batch=3), Counters()
    recorder = Recorder(run.metrics_path, counters)
    checkpoints = Checkpoints(run.checkpoints_path)
    loop.on_save(lambda: checkpoints.save(counters.updates, Parts(values={"loop": loop, "recorder": recorder})))
    loop.at_end("epoch", lambda ended: recorder.write(ended.means()))
    with training(run, loop, recorder):
        for at in loop.run(until):
            counters.updates += 1
            body(loop, at)
    return run


def test_list_of_finished_stopped_and_failed_runs(tmp_path, capsys):
    run_loop(tmp_path, "done", lambda loop, at: loop.record("R_loss", 0.25))
    assert capsys.readouterr().out == ""
    run_loop(tmp_path, "enough", lambda loop, at: loop.stop("SIGTERM"))
    folder = tmp_path / "enough"
    assert capsys.readouterr().out == (
        f"stopped (SIGTERM) before epoch 0 batch 1; resume with: millpond train --resume {folder}\n"
    )
    with pytest.raises(ZeroDivisionError):
        run_loop(tmp_path, "broken", lambda loop, at: 1 / 0)
    start(tmp_path, "now")
    (tmp_path / "not-a-run").mkdir()

    rows = list_runs(tmp_path)
    assert [(row.name, row.state, row.checkpoint) for row in rows] == [
        ("done", "finished", 6),
        ("enough", "stopped", 1),
        ("broken", "failed", None),
        ("now", "running", None),
    ]
    assert rows[0].metrics == {"R_loss": 0.25}
    assert rows[0].counters["updates"] == 6
    assert rows[2].note == "ZeroDivisionError: division by zero"
    assert (rows[0].headline, rows[0].result) == ("R_loss", 0.25)
    (tmp_path / "done" / "warnings.jsonl").write_text('{"cause": "reward"}\n{"cause": "ratios"}\n{"cause": "reward"}\n')
    (tmp_path / "now" / "warnings.jsonl").write_text("nothing")
    warned = list_runs(tmp_path)
    assert [row.warnings for row in warned] == [("reward", "ratios"), (), (), ()]
    assert "warnings.jsonl line 1" in warned[3].note
    assert show_runs(warned).splitlines()[2] == "  2 warnings: reward, ratios"
    lines = show_runs(rows).splitlines()
    assert lines[0].split() == ["RUN", "RETURN", "BEST", "STEPS", "SPEED", "STATE", "AGE"]
    assert lines[1].split()[:5] == ["done", "0.25*", "-", "6", "upd"]
    assert (lines[2].split()[0], lines[3]) == ("enough", "  SIGTERM")
    assert lines[5] == "  ZeroDivisionError: division by zero"
    assert lines[-1] == "* R_loss, not a return"
    assert show_runs([]) == "no runs yet"


def test_list_of_runs_shows_the_newest_return_within_80_columns(tmp_path):
    """The newest record need not have the return; a name of any length and a long note must not break the table."""
    counters = {"updates": 9, "agent_steps": 15_728_640, "env_steps": 1, "frames": 1, "episodes": 1, "seconds": 100.0}
    lines = [{**counters, "policy_loss": 0.1, **found} for found in (
        {"eval/episode_return": -100.0}, {"eval/episode_return": -1234.5678}, {"episode_return": 3.0}, {"entropy": 1.0},
    )]  # fmt: skip
    for name, kept in (("evaluated", lines), ("a-name-that-is-much-longer-than-any-column-has-room-for", lines[2:])):
        run = start(tmp_path, name)
        run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in kept) + '{"eval/episode_return": 7')
        write_status(run.folder, "failed", "RuntimeError: " + "words " * 30)
    rows = {row.name: row for row in list_runs(tmp_path)}
    assert rows["evaluated"].result == -1234.5678
    shown = show_runs(list(rows.values())).splitlines()
    assert max(map(len, shown)) <= 80
    cells = [line.split()[:-1] if line.endswith("s") and "failed" in line else line.split() for line in shown]  # no age
    assert ["evaluated", "-1,235", "-", "15.73M", "157.3k/s", "failed"] in cells
    at = cells.index(["a-name-that-is-much-longer-than-any-column-has-room-for"])
    assert cells[at + 1] == ["3", "-", "15.73M", "157.3k/s", "failed"]


def test_unreadable_state_is_reported(tmp_path):
    run = start(tmp_path)
    (run.folder / "state.json").write_text("{")
    assert "state.json cannot be read" in list_runs(tmp_path)[0].note


def test_save_batch(tmp_path):
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import load_file

    path = start(tmp_path).save_batch(Address(("epoch", "batch"), (3, 12)), {"rows": np.arange(4), "loss": 0.5})
    assert path.relative_to(tmp_path).parts[1:] == ("non_finite", "batch.safetensors")
    with safe_open(path, "np") as file:
        assert file.metadata()["address"] == "epoch 3 batch 12"
    assert load_file(path)["rows"].tolist() == [0, 1, 2, 3]


def test_git_commit_is_that_of_the_source(tmp_path):
    assert git_commit(tmp_path) is None
    assert host_facts()["git"] is None or len(host_facts()["git"]["commit"]) == 40
    commands = [["init", "-q"], ["add", "file"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]]
    (tmp_path / "file").write_text("one")
    for command in commands:
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert git_commit(tmp_path)["changed"] is False
    (tmp_path / "file").write_text("two")
    assert git_commit(tmp_path)["changed"] is True


OLD = {"seed": 1, "trainer.gamma": 0.99, "trainer.total_iterations": 10, "log.wandb": False}


def test_lengths_and_logging_may_change():
    new = {**OLD, "trainer.total_iterations": 20, "log.tensorboard": True}
    changed = check_changes(OLD, new, lambda key: key.startswith("log.") or key == "trainer.total_iterations")
    assert changed == {"trainer.total_iterations": (10, 20), "log.tensorboard": (None, True)}
    assert check_changes(OLD, dict(OLD), set()) == {}


def test_other_changed_settings_are_refused_by_name():
    new = {**OLD, "trainer.gamma": 0.9, "seed": 2, "trainer.total_iterations": 20}
    del new["log.wandb"]
    with pytest.raises(ResumeError) as refused:
        check_changes(OLD, new, {"trainer.total_iterations"})
    lines = str(refused.value).splitlines()
    assert lines[1:4] == ["  log.wandb: False -> absent", "  seed: 1 -> 2", "  trainer.gamma: 0.99 -> 0.9"]
    assert "trainer.total_iterations" in lines[4]
