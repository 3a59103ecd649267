"""The addresses of the board, and serving them with uvicorn.

    GET  /                       the page; /static/NAME its parts, /plotly.js the charts
    GET  /api/runs?since=V       runs that changed after version V
    GET  /api/curves?run=...     curves of runs: metric, axis, seeds=1 for one per group
    GET  /api/differences, /api/run, /api/report, /api/sweep, /api/machine, /api/task
    POST /api/labels, /api/stop, /api/episode, /api/lake

Answers that the page asks for again and again have an ETag: 304 where nothing has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.board.catalog import Catalog, RunEntry
from millpond.board.curves import AXES, group_curve, run_curve
from millpond.board.details import LAKE, REPORT, differences, is_plain_file, run_details
from millpond.board.guard import MIN_TOKEN, Guard, is_loopback
from millpond.board.labels import LabelError, ask_to_stop, write_labels
from millpond.board.machine import MachineMeter
from millpond.board.sweeps import sweep_details
from millpond.board.tasks import BoardTasks
from millpond.envs.families import install_command
from millpond.errors import MillpondError
from millpond.formatting import plural, printable
from millpond.record import RETURNS
from millpond.safe_read import parse_json_object, read_regular

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

STATIC = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_CURVES = 40  # runs of one chart
MAX_REPORT = 1 << 26
# A report is a file of the run's folder, which a stranger may have written: nothing in it may run or load anything.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
CONNECTIONS, KEEP_ALIVE_SECONDS = 64, 15


class BoardError(MillpondError):
    """The board cannot be served as requested."""


class NotFound(MillpondError):
    """A run, sweep or task that is not in the list."""


def missing_packages() -> list[str]:
    """Return the packages of the extra `board` that are not installed."""
    return [name for name in ("starlette", "uvicorn", "plotly") if find_spec(name) is None]


def require_board() -> None:
    """Raise an error with the install command if a package of the extra is missing."""
    missing = missing_packages()
    if missing:
        raise BoardError(
            f"the board needs the extra 'board' ({', '.join(missing)} not installed): {install_command('board')}"
        )


@dataclass
class Board:
    """The state behind the addresses."""

    root: Path
    catalog: Catalog = field(init=False)
    tasks: BoardTasks = field(default_factory=BoardTasks)
    machine: MachineMeter = field(init=False)

    def __post_init__(self) -> None:
        self.catalog = Catalog(self.root)
        self.machine = MachineMeter(self.root)

    def run(self, name: Any) -> RunEntry:
        entry = self.catalog.entry(name) if isinstance(name, str) else None
        if entry is None or entry.row is None:
            raise NotFound("there is no such run")
        return entry

    # -- GET

    def runs(self, query: Mapping[str, Any]) -> dict[str, Any]:
        self.catalog.refresh()
        since = query.get("since", "0")
        return {**self.catalog.changes(int(since) if since.isdigit() and len(since) < 18 else 0), "folder": self._name}

    @property
    def _name(self) -> str:
        return printable(str(self.root.resolve()))

    def curves(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return curves of one metric over one axis, and the names of all metrics of the runs."""
        self.catalog.refresh()
        entries = [self.run(name) for name in query["run"][:MAX_CURVES]]
        axis = query.get("axis", "agent_steps")
        if axis not in AXES:
            raise BoardError(f"axis {axis[:40]!r} is none of {', '.join(AXES)}")
        records = {entry.id: self.catalog.records(entry) for entry in entries}
        names = list(dict.fromkeys(name for each in records.values() for name in each.names()))
        metric = query.get("metric") or common_metric([each.names() for each in records.values()])
        groups: dict[str, list[RunEntry]] = {}
        for entry in entries:
            groups.setdefault(entry.group if query.get("seeds") == "1" else entry.id, []).append(entry)
        curves = []
        for members in groups.values():
            several = [records[entry.id] for entry in members]
            curve = run_curve(several[0], axis, metric) if len(several) == 1 else group_curve(several, axis, metric)
            label = printable(members[0].folder.name)
            if len(members) > 1:
                label += f" ({plural(len(members), 'seed')})"
            curves.append({"runs": [entry.id for entry in members], "label": label, **curve})
        return {"metric": metric, "metrics": names, "axis": axis, "axis_label": AXES[axis], "curves": curves}

    def small_curves(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return the curves of all metrics of one run, for its page."""
        records = self.catalog.records(self.run(query["run"][0]))
        axis = query.get("axis", "agent_steps")
        axis = axis if axis in AXES else "updates"
        names = [name for name in records.names() if not name.startswith("time/") and name not in AXES]
        return {"axis": axis, "curves": {name: run_curve(records, axis, name) for name in names[:120]}}

    def differences(self, query: Mapping[str, Any]) -> dict[str, Any]:
        entries = [self.run(name) for name in query["run"][:MAX_CURVES]]
        return {"runs": [entry.id for entry in entries], "rows": differences(entries)}

    def details(self, query: Mapping[str, Any]) -> dict[str, Any]:
        self.catalog.refresh()
        return run_details(self.catalog, self.run(query["run"][0]))

    def sweep(self, query: Mapping[str, Any]) -> dict[str, Any]:
        self.catalog.refresh()
        name = query.get("sweep", "")
        path = self.catalog.sweep(name)
        if path is None:
            raise NotFound("there is no such sweep")
        runs = sorted(entry.id for entry in self.catalog.runs_of(name))
        return {"sweep": name, "runs": runs, **sweep_details(path)}

    def usage(self, query: Mapping[str, Any]) -> dict[str, Any]:
        return self.machine(self.catalog.processes())

    def task(self, query: Mapping[str, Any]) -> dict[str, Any]:
        task = self.tasks.get(query.get("id", ""))
        if task is None:
            raise NotFound("there is no such task")
        return {"id": task.id, "state": task.state, "result": task.result, "error": printable(task.error[-2000:])}

    def report(self, query: Mapping[str, Any]) -> bytes:
        path = self.run(query["run"][0]).folder / REPORT
        if not is_plain_file(self.catalog, path):
            raise NotFound("this run has no report yet")
        return read_regular(path, MAX_REPORT)

    # -- POST

    def labels(self, values: Mapping[str, Any]) -> dict[str, Any]:
        entry = self._writable(values)
        write_labels(entry.folder, values.get("tags", []), values.get("note", ""))
        self.catalog.scan_again()
        return {"written": True}

    def stop(self, values: Mapping[str, Any]) -> dict[str, Any]:
        ask_to_stop(self._writable(values).folder)
        self.catalog.scan_again()
        return {"requested": True}

    def episode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Start playing an episode with the newest checkpoint, or with the best."""
        entry, seed = self._writable(values), values.get("seed")
        assert entry.row is not None
        arguments = ["millpond.board.player", str(entry.folder.resolve())]
        arguments += ["--best"] if values.get("best") is True else []
        if seed is not None:
            if type(seed) is not int or not 0 <= seed < 1 << 31:
                raise LabelError("seed must be a whole number from 0 to 2,147,483,647")
            arguments += ["--seed", str(seed)]
        return {"id": self.tasks.start(arguments, key=f"{arguments} {entry.row.checkpoint}").id}

    def lake(self, values: Mapping[str, Any]) -> dict[str, Any]:
        entry = self._writable(values)
        folder = entry.folder / LAKE
        if not folder.is_dir() or not self.catalog.inside(folder):
            raise NotFound("this run has no lake")
        arguments = ["millpond", "lake", "info", str(folder.resolve()), "--json"]
        steps = entry.row.counters.get("env_steps") if entry.row is not None else None
        return {"id": self.tasks.start(arguments, key=f"{arguments} {steps}").id}

    def _writable(self, values: Mapping[str, Any]) -> RunEntry:
        """Return a run by name, if its folder is still where it was found."""
        entry = self.run(values.get("run"))
        if not self.catalog.inside(entry.folder):
            raise NotFound("there is no such run")
        return entry


def common_metric(names: list[list[str]]) -> str:
    """Return the metric that runs are shown in first: the return in training, evaluations, or a loss."""
    for metric in (RETURNS[1], RETURNS[0]):
        if names and all(metric in each for each in names):
            return metric
    seen = [name for each in names for name in each if name not in AXES and not name.startswith("time/")]
    return next((name for name in (RETURNS[1], RETURNS[0], "R_loss") if name in seen), seen[0] if seen else RETURNS[1])


def to_json(value: Any) -> bytes:
    """Return JSON in ASCII; what JSON does not have becomes text or null."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"), default=str).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def plotly_script() -> Path:
    """Return the file with Plotly's JavaScript, which its Python package brings."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise BoardError(f"plotly is not installed: {install_command('board')}")
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def make_app(board: Board, *, host: str = "127.0.0.1", token: str | None = None) -> Guard:
    """Return the ASGI application. `host` is the address that will be listened on."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import FileResponse, Response
    from starlette.routing import BaseRoute, Route

    static = files("millpond.board") / "static"
    parts = {part.name: part.read_bytes() for part in static.iterdir() if Path(part.name).suffix in STATIC}

    def part(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in parts:
            return Response(to_json({"error": "no such file"}), 404, media_type="application/json")
        return _tagged(request, parts[name], STATIC[Path(name).suffix])

    def plotly(request: Request) -> Response:
        return FileResponse(plotly_script(), media_type="text/javascript", headers={"cache-control": "max-age=86400"})

    def _tagged(request: Request, body: bytes, media_type: str) -> Response:
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=media_type, headers=headers)

    def answer(call: Callable[[], Any], request: Request) -> Response:
        try:
            return _tagged(request, to_json(call()), "application/json")
        except MillpondError as error:
            status = 404 if isinstance(error, NotFound) else 400
            return Response(to_json({"error": printable(str(error))}), status, media_type="application/json")

    def get(path: str, method: Callable[[Mapping[str, Any]], Any]) -> Route:
        def endpoint(request: Request) -> Response:
            query = {**request.query_params, "run": request.query_params.getlist("run") or [""]}
            return answer(lambda: method(query), request)

        return Route(path, endpoint, methods=["GET"], name=path)

    def post(path: str, method: Callable[[Mapping[str, Any]], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await request.body()
            return await run_in_threadpool(answer, lambda: method(parse_json_object(body, "the request")), request)

        return Route(path, endpoint, methods=["POST"], name=path)

    def report(request: Request) -> Response:
        try:
            body = board.report({"run": request.query_params.getlist("run") or [""]})
        except MillpondError as error:
            return Response(to_json({"error": printable(str(error))}), 404, media_type="application/json")
        return Response(body, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        board.tasks.close()

    routes: list[BaseRoute] = [
        Route("/", part, methods=["GET"]),
        Route("/static/{name}", part, methods=["GET"]),
        Route("/plotly.js", plotly, methods=["GET"]),
        Route("/api/report", report, methods=["GET"]),
        get("/api/runs", board.runs),
        get("/api/curves", board.curves),
        get("/api/all-curves", board.small_curves),
        get("/api/differences", board.differences),
        get("/api/run", board.details),
        get("/api/sweep", board.sweep),
        get("/api/machine", board.usage),
        get("/api/task", board.task),
        post("/api/labels", board.labels),
        post("/api/stop", board.stop),
        post("/api/episode", board.episode),
        post("/api/lake", board.lake),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), host=host, token=token)


def serve(root: Path, *, host: str, port: int, token: str | None, ready: Callable[[str], None]) -> None:
    """Serve a folder until Ctrl-C. `ready` is called with the address to open when the board listens."""
    require_board()
    if not root.is_dir():
        raise BoardError(f"there is no folder {str(root)!r}; name one with run folders: millpond board FOLDER")
    if not is_loopback(host) and token is None:
        raise BoardError(
            f"--host {host} lets other machines reach the board, so it needs --token: a secret of {MIN_TOKEN} characters or "
            "more. Without --host it is served to this machine alone; `ssh -L` then reaches it from another one"
        )
    if token is not None and not re.fullmatch(rf"[A-Za-z0-9_-]{{{MIN_TOKEN},}}", token):
        raise BoardError(f"--token must have {MIN_TOKEN} or more letters, digits, '-' and '_'")
    import uvicorn

    sock = _listen(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/"

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready(address + (f"?token={token}" if token is not None else ""))

    config = uvicorn.Config(
        make_app(Board(root), host=host, token=token),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        http="h11",
        loop="asyncio",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
    )
    Server(config).run(sockets=[sock])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; a port that is taken or an address that is not this machine's is an error."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family, backlog=128)
    except socket.gaierror as error:
        raise BoardError(f"--host {host} is no address: {error.strerror}") from None
    except OSError as error:
        free = "; --port 0 takes a free one" if port else ""
        raise BoardError(
            f"the board cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}{free}"
        ) from None
