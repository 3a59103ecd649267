"""What the board refuses before anything else sees a request: other hosts, other sites, no token, large or strange requests.

A page of another site can make a browser send requests to 127.0.0.1. It cannot set the Host header of this server to its own
name (DNS rebinding is refused by that), read the answers (no CORS), or write: that needs an Origin of this server and a
header that other origins cannot send.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "millpond_board"
WRITE_HEADER = "x-millpond-board"  # a request of another origin with it is preceded by a question that is not answered
MAX_QUERY, MAX_BODY = 16_384, 32_768
MIN_TOKEN = 16
# Plotly sets style attributes; there are no inline scripts or style elements, and nothing comes from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


def is_loopback(host: str) -> bool:
    """True for an address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An ASGI middleware that answers what it refuses itself, and adds headers to every answer.

    `host` is the address that is listened on. On loopback the Host header must name loopback; elsewhere it must be an
    address, or a name of this machine, and a token is required.
    """

    def __init__(self, app: App, *, host: str, token: str | None) -> None:
        self._app, self._token = app, token
        self._loopback = is_loopback(host)
        self._names = {"localhost"} if self._loopback else {host, "localhost", socket.gethostname(), socket.getfqdn()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                names = {name.lower() for name, _ in given}
                message["headers"] = [*given, *(pair for pair in HEADERS if pair[0] not in names)]
            await send(message)

        headers = {name.lower(): value for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        if refused is not None:
            await _answer(send_with_headers, *refused)
        elif self._brings_token(scope):
            cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send_with_headers, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
        elif scope["method"] == "POST":
            body = await _read_body(receive)
            if body is None:
                await _answer(send_with_headers, 413, f"a request has at most {MAX_BODY:,} bytes")
                return
            await self._app(scope, _replay(body), send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        method, host = scope["method"], headers.get(b"host", b"").decode("latin-1")
        hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
        if len(hosts) != 1 or not self._is_own(host):
            return 421, "this board is not served under that host name"
        if method not in ("GET", "HEAD", "POST"):
            return 405, "GET, HEAD and POST alone"
        if len(scope["query_string"]) > MAX_QUERY:
            return 414, f"a query has at most {MAX_QUERY:,} characters"
        site = headers.get(b"sec-fetch-site", b"none")
        opens_page = scope["path"] == "/" and method == "GET"
        if site not in (b"same-origin", b"none") and not opens_page:
            return 403, "requests of other sites are refused"
        if self._token is not None and not self._is_allowed(scope, headers):
            return 401, "open the address that the board printed, with its token"
        if method == "POST":
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin != f"{scope.get('scheme', 'http')}://{host}" or WRITE_HEADER.encode() not in headers:
                return 403, "only the page of this board may write"
            if not headers.get(b"content-type", b"").startswith(b"application/json"):
                return 415, "send JSON"
        return None

    def _is_own(self, host: str) -> bool:
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        if port and not port.isdigit():
            return False
        name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback if self._loopback else True

    def _brings_token(self, scope: Scope) -> bool:
        return self._token is not None and scope["path"] == "/" and b"token=" in scope["query_string"]

    def _is_allowed(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        given = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
        if self._brings_token(scope):
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        elif not given:
            try:
                cookie = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(COOKIE)
            except CookieError:
                return False
            given = cookie.value if cookie is not None else ""
        return hmac.compare_digest(given.encode("utf-8"), (self._token or "").encode("utf-8"))


async def _answer(send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = json.dumps({"error": text}).encode() if text else b""
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is too large."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""  # the client is gone
        body += bytes(message.get("body", b""))
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body"):
            return body


def _replay(body: bytes) -> Receive:
    sent = False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
