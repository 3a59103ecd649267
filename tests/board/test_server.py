"""The board as a server: what it answers, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millpond.board import server as module
from millpond.board.server import BoardError, require_board, serve
from millpond.store import read_status
from tests.support.board import BoardProcess, append, board, make_run, record_at

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")

HOSTILE = "<img src=x onerror=alert(1)>"
TOKEN = "a-secret-of-this-test"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("board")
    (root / "secret.txt").write_text("the secret")
    folder = root / "runs"
    for number, seed in enumerate((1, 2, 3)):
        make_run(folder, f"pond-{number}", seed=seed, top=1 + number)
    make_run(folder, "other", rate=0.5)
    append(make_run(folder, "strange", records=3), [{**record_at(3), HOSTILE: 1.0}])
    make_run(folder, "live", state="running")
    (folder / "pond-0" / "report.html").write_text("<script>alert(1)</script>")
    (folder / "pond-1" / "report.html").symlink_to(root / "secret.txt")
    (folder / "pond-1" / "lake").symlink_to(root)
    (folder / HOSTILE).mkdir()
    for name in ("config.yaml", "host.json"):
        (folder / HOSTILE / name).write_text("{}")
    return folder


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[BoardProcess]:
    with board(place) as process:
        process.get("/api/runs")
        yield process


def test_list_curves_and_details(served: BoardProcess) -> None:
    runs = {run["id"]: run for run in served.get("/api/runs", since="0")["runs"]}
    assert {"pond-0", "pond-1", "pond-2", "other", "strange", "live", HOSTILE} == set(runs)
    curves = served.request("/api/curves?run=pond-0&run=other&axis=updates&metric=entropy").json()
    assert [curve["label"] for curve in curves["curves"]] == ["pond-0", "other"]
    assert curves["curves"][0]["y"][:2] == [1.0, 0.5]
    assert curves["curves"][0]["x"][:2] == [4.0, 8.0]
    seeds = served.request("/api/curves?run=pond-0&run=pond-1&run=pond-2&run=other&seeds=1").json()["curves"]
    assert [(curve["label"], len(curve["runs"])) for curve in seeds] == [("pond-0 (3 seeds)", 3), ("other", 1)]
    assert seeds[0]["interval"]
    details = served.get("/api/run", run="pond-0")
    assert details["phases"]["collect"] == pytest.approx(0.6)
    assert details["phases"]["other"] == pytest.approx(0.2)
    assert details["evaluations"][-1]["eval/episode_return_low"] == pytest.approx(record_at(99)["episode_return"] - 0.1)
    assert details["plan"] == {"iterations": 100}
    rows = served.request("/api/differences?run=pond-0&run=other").json()["rows"]
    assert rows == [{"key": "ppo.learning_rate", "values": ["0.001", "0.5"]}]
    assert served.get("/api/machine")["cores"] >= 1


def test_unchanged_answer_is_304_and_a_new_record_changes_it(served: BoardProcess, place: Path) -> None:
    first = served.request("/api/curves?run=live")
    again = served.request("/api/curves?run=live", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    append(place / "live", [record_at(100, top=50.0)])
    after = served.request("/api/curves?run=live", headers={"If-None-Match": first.headers["etag"]})
    assert after.status == 200
    assert after.json()["curves"][0]["last"] > 40


def test_page_and_its_parts_are_served_under_a_policy_without_inline_scripts(served: BoardProcess) -> None:
    page = served.request("/")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    assert "default-src 'none'" in policy
    assert b"<script>" not in page.body
    for part in ("main.js", "overview.js", "charts.js", "board.css", "plotly.css"):
        assert served.request(f"/static/{part}").status == 200
    assert served.request("/plotly.js").headers["content-length"] == str(module.plotly_script().stat().st_size)
    scripts = b"".join(
        served.request(f"/static/{part}").body for part in ("main.js", "overview.js", "run.js", "dom.js")
    )
    for forbidden in (b"innerHTML", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval("):
        assert forbidden not in scripts


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@evil.example", "10.0.0.1", "0.0.0.0"]
)  # fmt: skip
def test_other_host_headers_are_refused(served: BoardProcess, host: str) -> None:
    answer = served.request("/api/runs", headers={"Host": host})
    assert answer.status == 421
    assert b"pond-0" not in answer.body


@pytest.mark.parametrize("host", ["localhost:99", "127.0.0.1", "[::1]:80", "127.9.9.9"])
def test_loopback_host_headers_are_served(served: BoardProcess, host: str) -> None:
    assert served.request("/api/runs", headers={"Host": host}).status == 200


TRAVERSALS = """
/../secret.txt /..%2f..%2fsecret.txt /static/../../../secret.txt /static/..%2f..%2fsecret.txt /static/%2e%2e/secret.txt
/static//etc/passwd //etc/passwd /static/server.py /static/..%5c..%5csecret.txt /static/%00
/api/run?run=.. /api/run?run=../secret.txt /api/run?run=/etc /api/run?run=pond-0/../../secret.txt /api/run?run=pond-0%00
/api/report?run=pond-1 /api/report?run=../.. /api/curves?run=../../etc /api/sweep?sweep=../.. /api/sweep?sweep=/etc
/api/differences?run=.. /api/task?id=../../etc/passwd /api/all-curves?run=%2e%2e /api/run
""".split()  # noqa: SIM905


@pytest.mark.parametrize("path", TRAVERSALS)
def test_nothing_outside_the_folder_is_served(served: BoardProcess, path: str) -> None:
    answer = served.request(path)
    assert answer.status in (400, 404)
    assert b"the secret" not in answer.body
    assert b"root:" not in answer.body


def test_report_of_a_run_cannot_run_scripts(served: BoardProcess) -> None:
    answer = served.request("/api/report?run=pond-0")
    assert answer.status == 200
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")


def test_lake_that_is_a_link_out_of_the_folder_is_refused(served: BoardProcess) -> None:
    assert not served.get("/api/run", run="pond-1")["has_lake"]
    assert served.post("/api/lake", {"run": "pond-1"}).status == 404


def test_writes_of_the_page_are_accepted(served: BoardProcess, place: Path) -> None:
    assert served.post("/api/labels", {"run": "other", "tags": [HOSTILE], "note": "a\nb"}).status == 200
    assert json.loads((place / "other" / "board.json").read_text()) == {"tags": [HOSTILE], "note": "a\nb"}
    assert served.get("/api/run", run="other")["tags"] == [HOSTILE]
    assert served.post("/api/stop", {"run": "live"}).status == 200
    assert (place / "live" / "stop").exists()
    assert served.post("/api/stop", {"run": "other"}).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Content-Type": "text/plain"},
        {"Host": "evil.example"},
    ],
)
def test_writes_of_other_sites_are_refused(served: BoardProcess, place: Path, headers: dict[str, str]) -> None:
    answer = served.post("/api/labels", {"run": "pond-2", "tags": ["x"], "note": ""}, **headers)
    assert answer.status in (403, 415, 421)
    assert not (place / "pond-2" / "board.json").exists()


def test_write_without_the_header_of_the_page_is_refused(served: BoardProcess, place: Path) -> None:
    origin = {"Origin": served.address.rstrip("/"), "Content-Type": "application/json"}
    body = json.dumps({"run": "pond-2", "tags": ["x"], "note": ""}).encode()
    assert served.request("/api/labels", method="POST", headers=origin, body=body).status == 403
    assert served.request("/api/labels?run=pond-2&tags=x").status == 405  # GET
    assert not (place / "pond-2" / "board.json").exists()


def test_strange_requests_are_refused(served: BoardProcess) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert served.request("/api/runs", method=method).status == 405
    assert served.request("/api/runs?" + "a" * 20_000).status == 414
    assert served.post("/api/labels", {"run": "pond-2", "note": "x" * 40_000}).status == 413
    for values in ([], "text", None, {"run": ["pond-2"]}, {"run": {"a": 1}}, {}):
        assert served.post("/api/labels", values).status in (400, 404)
    assert served.post("/api/episode", {"run": "pond-2", "seed": "1; rm -rf /"}).status == 400
    assert served.request("/api/curves?run=pond-0&axis=__class__").status == 400
    assert served.request("/api/runs?since=-1").status == 200
    many = "&".join(["run=pond-0"] * 500)
    assert len(served.request(f"/api/curves?{many}").json()["curves"]) == 1


def test_requests_of_other_sites_get_nothing(served: BoardProcess) -> None:
    answer = served.request("/api/runs", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 403
    allowed = served.request("/", headers={"Sec-Fetch-Site": "cross-site"})  # a link to the board
    assert allowed.status == 200
    assert "access-control-allow-origin" not in {name.lower() for name in allowed.headers}


def test_thousands_of_requests_leave_it_small_and_working(served: BoardProcess) -> None:
    """The slow test below sends ten thousand."""
    hammer(served, 1_000)


@pytest.mark.slow
def test_ten_thousand_requests_leave_it_small_and_working(served: BoardProcess) -> None:
    hammer(served, 10_000)


def hammer(served: BoardProcess, count: int) -> None:
    paths = [
        *TRAVERSALS,
        "/",
        "/api/runs?since=0",
        "/api/curves?run=pond-0&run=other",
        "/api/run?run=pond-0",
        "/api/machine",
        "/plotly.js",
    ]

    def ask(number: int) -> int:
        try:
            return served.request(paths[number % len(paths)]).status
        except OSError:  # more connections than it accepts
            return 0

    for path in paths:
        served.request(path)
    before = served.resident_mib() if sys.platform == "linux" else 0
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(ask, range(count)))
    assert statuses.count(200) > count // 8
    assert not any(status >= 500 and status != 503 for status in statuses)
    assert served.get("/api/runs", since="0")["runs"]
    if sys.platform == "linux":
        assert served.resident_mib() < before + 60


def test_token_is_required_where_there_is_one(place: Path) -> None:
    with board(place, "--token", TOKEN) as served:
        assert served.address.endswith(f"/?token={TOKEN}")
        assert served.request("/api/runs").status == 401
        assert served.request("/").status == 401
        assert served.request("/?token=wrong").status == 401
        assert served.request("/api/runs", headers={"Authorization": "Bearer wrong"}).status == 401
        assert served.request("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
        opened = served.request(f"/?token={TOKEN}")
        assert (opened.status, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert served.request("/api/runs", headers={"Cookie": cookie.split(";")[0]}).status == 200


def test_other_addresses_need_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(BoardError, match="needs --token"):
            serve(tmp_path, host=host, port=0, token=None, ready=print)
    for token in ("short", "has a space in it, and is long", "x" * 20 + ";"):
        with pytest.raises(BoardError, match="--token must have"):
            serve(tmp_path, host="0.0.0.0", port=0, token=token, ready=print)


def test_folder_that_does_not_exist_and_port_that_is_taken_are_errors(served: BoardProcess, tmp_path: Path) -> None:
    port = served.address.rsplit(":", 1)[1].rstrip("/")
    for arguments, words in (
        (["missing"], "there is no folder"),
        ([".", "--port", port], "Address already in use; --port 0"),
    ):
        command = [sys.executable, "-m", "millpond", "board", *arguments, "--no-open"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "plotly" else object())
    with pytest.raises(BoardError, match=r"extra 'board' \(plotly not installed\): .*pip install 'millpond\[board\]'"):
        require_board()


def test_board_imports_no_torch(place: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from millpond.board.server import Board, make_app\n"
        f"board = Board(Path({str(place)!r})); make_app(board); board.runs({{}})\n"
        "board.details({'run': ['pond-0']})\n"
        "assert not {'torch', 'numba', 'matplotlib', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_running_run_stays_running(place: Path) -> None:
    assert read_status(place / "live").state == "running"  # nothing above has changed a state
