"""The board's page in a real browser. Skipped where there is none; all but one test are slow."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.board import append, board, make_run, record_at
from tests.support.browser import browser, messages, require_browser, wait
from tests.support.ppo_runs import SMALL

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")

HOSTILE = "<img src=x onerror=document.title='owned'>"
CURVES = (
    "document.querySelector('.curves .js-plotly-plot')?.data"
    "?.filter((each) => each.mode?.startsWith('lines') && each.name) ?? []"
)


@pytest.fixture
def page() -> Iterator[Any]:
    require_browser()
    with browser() as driver:
        yield driver


def violations(driver: Any) -> list[str]:
    """Return the errors of the page, without a style element of Plotly that the policy refuses and that nothing needs."""
    return [text for text in messages(driver) if not ("plotly.js" in text and "Applying inline style" in text)]


def test_curves_appear_and_hostile_names_do_nothing(tmp_path: Path, page: Any) -> None:
    folder = make_run(tmp_path, "pond-1", top=2.0)
    append(folder, [{**record_at(100), HOSTILE: 1.0}])
    append(make_run(tmp_path, "pond-2", state="running"), [])
    (tmp_path / HOSTILE.replace("/", "")).mkdir()
    for name, text in (("config.yaml", f'env: {{id: "{HOSTILE}"}}\n'), ("host.json", "{}"), ("metrics.jsonl", "")):
        (tmp_path / HOSTILE / name).write_text(text)
    append(tmp_path / HOSTILE, [record_at(number, top=5.0) for number in range(30)])
    (tmp_path / HOSTILE / "board.json").write_text('{"tags": ["<script>document.title=1</script>"], "note": ""}')
    with board(tmp_path) as served:
        page.get(served.address)
        wait(page, f"({CURVES}).length === 2")  # of the environment that trains
        page.execute_script(
            "const select = document.querySelector('select[aria-label=environment]'); select.value = '';"
            "select.dispatchEvent(new Event('change'))"
        )
        wait(page, f"({CURVES}).length === 3")
        assert page.execute_script("return document.querySelectorAll('tr[data-run]').length") == 3
        assert HOSTILE in page.execute_script("return document.querySelector('.list').textContent")
        assert page.execute_script("return document.querySelectorAll('img, .list script').length") == 0
        assert page.title == "Millpond board"
        assert page.execute_script("return document.querySelector('.answer').textContent").startswith("best of")
        assert violations(page) == []


@pytest.mark.slow
def test_running_training_updates_without_reloading(tmp_path: Path, page: Any) -> None:
    folder = make_run(tmp_path, "live", records=10, state="running")
    with board(tmp_path) as served:
        page.get(served.address)
        wait(page, f"({CURVES})[0]?.x.length === 10")
        page.execute_script("window.still_here = true")
        append(folder, [record_at(number) for number in range(10, 25)])
        wait(page, f"({CURVES})[0]?.x.length === 25")
        make_run(tmp_path, "newer")
        wait(page, "document.querySelectorAll('tr[data-run]').length === 2")
        assert page.execute_script("return window.still_here")
        assert violations(page) == []


@pytest.mark.slow
def test_runs_are_overlaid_averaged_and_compared(tmp_path: Path, page: Any) -> None:
    for seed in (1, 2, 3):
        make_run(tmp_path, f"a-{seed}", seed=seed, top=1 + seed)
    make_run(tmp_path, "b", rate=0.25)
    with board(tmp_path) as served:
        page.get(served.address)
        wait(page, f"({CURVES}).length === 4")
        wait(page, "document.querySelector('.differences').textContent.includes('ppo.learning_rate')")
        page.execute_script("document.querySelectorAll('.curves input[type=checkbox]')[1].click()")
        names = wait(page, f"(({CURVES}).length === 2) && ({CURVES}).map((each) => each.name)")
        assert sorted(names) == ["a-3 (3 seeds)", "b"]
        page.execute_script(
            "const select = document.querySelector('select[aria-label=metric]'); select.value = 'entropy';"
            "select.dispatchEvent(new Event('change'))"
        )
        wait(page, "document.querySelector('.curves .js-plotly-plot').layout.yaxis.title.text === 'entropy'")
        page.execute_script("document.querySelector('tr[data-run=b] .pick').click()")
        wait(page, f"({CURVES}).length === 1")
        assert violations(page) == []


@pytest.mark.slow
def test_episode_plays_step_by_step_tags_are_saved_and_a_real_run_is_stopped(tmp_path: Path, page: Any) -> None:
    settings = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in SMALL.items()]
    settings += [
        f"run_dir={tmp_path}",
        "trainer.total_iterations=100000",
        "eval.interval=1000000",
        "checkpoint.interval=50",
    ]
    command = [sys.executable, "-m", "millpond", "train", "grid", *settings, "--run", "real"]
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while not list((tmp_path / "real" / "checkpoints").glob("0*")):
            assert training.poll() is None, training.communicate()[0]
            time.sleep(0.2)
        with board(tmp_path) as served:
            page.get(f"{served.address}#/run/real")
            wait(page, "document.querySelector('.multiples .js-plotly-plot')")
            page.execute_script(
                "const [tags] = document.querySelectorAll('.labels input'); tags.value = 'good, <b>bold</b>';"
                "document.querySelector('.labels button').click()"
            )
            wait(page, "document.querySelector('.labels .quiet').textContent === 'saved'")
            assert '"<b>bold</b>"' in (tmp_path / "real" / "board.json").read_text()
            page.execute_script("document.querySelector('.episode input[type=checkbox]').click()")
            page.execute_script("document.querySelector('.play-episode').click()")
            wait(page, "document.querySelector('.stage canvas')", seconds=200)
            first = page.execute_script(
                "return [document.querySelector('.stage canvas').toDataURL(), document.querySelector('.step').textContent]"
            )
            for _ in range(5):
                page.execute_script("document.querySelector('.forward').click()")
            later = page.execute_script(
                "return [document.querySelector('.stage canvas').toDataURL(), document.querySelector('.step').textContent]"
            )
            assert first[1].startswith("step 1 of 20")
            assert later[1].startswith("step 6 of 20")
            assert first[0] != later[0]
            page.execute_script(
                "[...document.querySelectorAll('.run-top button')].find((each) => each.textContent.includes('stop')).click()"
            )
            assert training.wait(120) == 0
            wait(page, "document.querySelector('.run-top .state').textContent === 'stopped'")
            assert violations(page) == []
        assert "requested by the file" in training.communicate()[0]
    finally:
        training.kill()
        training.wait()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_page_is_not_wider_than_the_window(tmp_path: Path, width: int) -> None:
    require_browser()
    make_run(tmp_path, "a-run-with-quite-a-long-name-that-does-not-end-soon")
    make_run(tmp_path, "b", state="failed")
    with browser(width, 844) as page, board(tmp_path) as served:
        for address in (served.address, f"{served.address}#/run/b"):
            page.get(address)
            wait(page, "document.querySelector('.js-plotly-plot')")
            assert page.execute_script("return document.documentElement.scrollWidth") <= width
