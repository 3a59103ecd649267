"""Run folders for the board, written in a moment, and the board itself in a process of its own."""

from __future__ import annotations

import http.client
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from millpond.store import Run
from millpond.store.status import State, write_status

CONFIG = "kind: ppo\nseed: {seed}\nenv:\n  id: grid\nppo:\n  learning_rate: {rate}\n"


def record_at(number: int, top: float = 1.0) -> dict[str, float]:
    """Return a record of a run whose return rises to `top`."""
    record: dict[str, float] = {
        "updates": 4 * (number + 1), "agent_steps": 100 * (number + 1), "env_steps": 100 * (number + 1),
        "frames": 100 * (number + 1), "episodes": number, "seconds": 0.5 * (number + 1),
        "episode_return": top * (1 - math.exp(-number / 20)), "entropy": 1 / (number + 1),
        "time/collect": 0.3, "time/collect/infer": 0.1, "time/train": 0.1,
    }  # fmt: skip
    if number % 10 == 9:
        value = record["episode_return"]
        record |= {
            "eval/episode_return": value, "eval/episode_return_low": value - 0.1, "eval/episode_return_high": value + 0.1,
        }  # fmt: skip
    return record


def make_run(
    root: Path,
    name: str,
    *,
    records: int = 100,
    seed: int = 1,
    rate: float = 1e-3,
    top: float = 1.0,
    state: State = "finished",
) -> Path:
    """Write a run folder with records, and return it."""
    run = Run.start(root, name, config_yaml=CONFIG.format(seed=seed, rate=rate), plan={"iterations": 100})
    append(run.folder, [record_at(number, top) for number in range(records)])
    write_status(run.folder, state)
    run.close()
    return run.folder


def append(folder: Path, records: list[dict[str, Any]]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


@dataclass
class Answer:
    """Status, headers and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class BoardProcess:
    """A board in a process of its own."""

    address: str
    process: subprocess.Popen[str]

    def request(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """Send one request, exactly as it is written."""
        at = urlsplit(self.address)
        connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host="Host" in (headers or {}))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: str) -> Any:
        pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        answer = self.request(f"{path}?{pairs}")
        assert answer.status == 200, answer.body
        return answer.json()

    def post(self, path: str, values: Any, **headers: str) -> Answer:
        """Send a write as the page does."""
        origin = self.address.split("?")[0].rstrip("/")
        given = {"Origin": origin, "X-Millpond-Board": "1", "Content-Type": "application/json", **headers}
        return self.request(path, method="POST", headers=given, body=json.dumps(values).encode())

    def resident_mib(self) -> float:
        """Return the memory of the process (Linux)."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 / 2**20


@contextmanager
def board(folder: Path, *arguments: str) -> Iterator[BoardProcess]:
    """Serve a folder on a free port."""
    command = [sys.executable, "-m", "millpond", "board", str(folder), "--port", "0", "--no-open", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), process.stderr.read()
        yield BoardProcess(address, process)
    finally:
        process.terminate()
        process.communicate(timeout=30)
