"""Reports with the board's charts."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millpond.board.interactive import curves_of, make_interactive
from millpond.cli.app import app
from millpond.report import read_facts, write_report
from tests.support.board import append, make_run, record_at
from tests.support.browser import browser, messages, require_browser, wait

pytest.importorskip("plotly")
pytest.importorskip("starlette")

HOSTILE = "</script><script>document.title='owned'</script>"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = make_run(tmp_path, "pond")
    append(folder, [{**record_at(100), HOSTILE: 1.0}, {**record_at(101), HOSTILE: 2.0}])
    path = write_report(folder)
    make_interactive(read_facts(folder), path)
    return path


def test_policy_allows_the_scripts_of_the_page_by_their_hashes_alone(page: Path) -> None:
    text = page.read_text()
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    hashes = re.findall(r"sha256-([A-Za-z0-9+/=]+)", policy)
    assert [b64encode(sha256(script.encode()).digest()).decode() for script in scripts] == hashes
    assert len(hashes) == 2
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.replace("&#x27;", "'").split("script-src")[1].split(";")[0]
    assert HOSTILE not in text


def test_data_of_the_page_are_those_of_the_static_charts(tmp_path: Path) -> None:
    charts = curves_of(read_facts(make_run(tmp_path, "pond")))
    evaluations, training = charts["return"]["curves"]
    assert evaluations["interval"]
    assert evaluations["y"][0] == record_at(9)["eval/episode_return"]
    assert training["x"] == [100.0 * (number + 1) for number in range(100)]
    assert {"entropy", "episode_return"} <= charts.keys()


def test_report_command_writes_live_charts_unless_told_not_to(tmp_path: Path) -> None:
    page = make_run(tmp_path, "pond") / "report.html"
    for options, live in (([], True), (["--static"], False), (["--interactive"], True)):
        done = CliRunner().invoke(app, ["report", "pond", "--run-dir", str(tmp_path), *options])
        assert done.exit_code == 0, done.output
        assert ("<script>" in page.read_text()) == live, options


@pytest.mark.slow
def test_charts_of_the_page_are_live_and_hostile_names_do_nothing(page: Path) -> None:
    require_browser()
    with browser() as driver:
        driver.get(page.as_uri())
        wait(driver, "document.querySelectorAll('figure .js-plotly-plot').length >= 3")
        assert driver.title == "pond: Millpond run"
        assert driver.execute_script("return document.querySelectorAll('figure svg.chart').length") == 0
        assert messages(driver) == []
