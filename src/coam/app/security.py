"""Security of the web app: content security policy, and a guard against CSRF, DNS rebinding and odd paths.

Listening on loopback keeps other machines out, but not other sites' pages: the browser on this machine sends
their requests. A page whose name was made to lead to 127.0.0.1 (DNS rebinding) shows in the Host header, and
one that posts here from elsewhere (cross-site request forgery) in the Origin header.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from coam.errors import printable

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_AUTHORITY = r"(?P<name>127\.0\.0\.1|localhost|\[::1\])(?::(?P<port>[0-9]{1,5}))?"
_HOST = re.compile(_AUTHORITY, re.IGNORECASE)
_ORIGIN = re.compile(r"(?P<scheme>https?)://" + _AUTHORITY, re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NAMED_ENDPOINT = re.compile(r"/(call|api)/|/run/(?!predict/?$)")
_MADE_UP = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
)  # what numbers and names that do not exist raise
_SAFE_METHODS = ("GET", "HEAD")
_LOG = logging.getLogger(__name__)
# What the page may load: itself. Gradio's page has inline script and style; 'self' covers its files.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "frame-src 'self' data: blob:",
        "frame-ancestors 'self'",
        "form-action 'self'",
        "base-uri 'self'",
    )
)


@asynccontextmanager
async def guarded(app: Any, api: bool = False) -> AsyncIterator[None]:
    """Lifespan of a Starlette app: puts both guards around everything, before the first request.

    api: whether endpoints may be called by their names. Middleware that is given to gradio ends up inside
    gradio's own, which answers preflight requests (OPTIONS) before anything that lies further in sees them.
    """
    app.middleware_stack = ContentSecurityPolicy(HostOriginGuard(OneLineErrors(app.middleware_stack), api))
    yield


class HostOriginGuard:
    """ASGI middleware: requests with a foreign Host or Origin, or an odd path, are answered with one line."""

    def __init__(self, app: Any, api: bool = False) -> None:
        """api: whether endpoints may be called by their names."""
        self.app, self.api = app, api

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        reason, status = None, 403
        if scope["type"] in ("http", "websocket"):
            reason = reason_to_refuse(scope)
            if reason is None and not is_plain_path(scope.get("path", ""), self.api):
                reason, status = "there is no such page", 404
        if reason is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})  # servers make it a 403
        else:
            for message in plain_answer(status, reason):
                await send(message)


class OneLineErrors:
    """ASGI middleware: a request that trips what lies inside leaves one line in the log, no traceback.

    gradio's own routes believe numbers and names of functions that a request makes up. What they stumble over
    then is the request's fault (400); everything else is ours, and Starlette has answered it with a bare 500.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        held: list[Any] = []  # an answer of 500, until it is known why

        async def send_or_hold(message: Any) -> None:
            if held or (message["type"] == "http.response.start" and message["status"] == 500):
                held.append(message)
            else:
                await send(message)

        try:
            await self.app(scope, receive, send_or_hold)
        except Exception as error:
            if scope["type"] != "http":
                raise
            where = f"{scope.get('method', '')} {printable(scope.get('path', ''))}"
            _LOG.warning("%s: failed (%s)", where, type(error).__name__)
            if held and isinstance(error, _MADE_UP):
                held = plain_answer(400, "the page makes no such request")
        for message in held:
            await send(message)


@contextmanager
def one_line_refusals() -> Iterator[None]:
    """Inside, values that gradio refuses before a job sees them leave one line in the log, no traceback.

    Errors of our own keep theirs: these are for us to mend.
    """
    queueing: Any = import_module("gradio.queueing")

    def print_exc() -> None:
        error = sys.exc_info()[1]
        steps = [frame for frame, _ in traceback.walk_tb(error.__traceback__ if error else None)]
        raised = [str(frame.f_globals.get("__name__")) for frame in steps]
        read = any(frame.f_code.co_name == "preprocess_data" for frame in steps)  # gradio's, on what was sent
        if read or (raised and raised[-1].startswith("gradio.")):
            _LOG.warning("a job was refused (%s)", type(error).__name__)
        else:
            traceback.print_exc()

    before, queueing.traceback = queueing.traceback, SimpleNamespace(print_exc=print_exc)
    try:
        yield
    finally:
        queueing.traceback = before


class ContentSecurityPolicy:
    """ASGI middleware: security headers on every answer; the page may ask no other host for anything."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"content-security-policy", _POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    # Not "no-referrer": with it browsers may hide the app's own origin from HostOriginGuard.
                    (b"referrer-policy", b"same-origin"),
                ]
            await send(message)

        await self.app(scope, receive, send_with_policy)


def plain_answer(status: int, words: str) -> list[dict[str, Any]]:
    """The messages of an answer of one line."""
    body = f"{words}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    start = {"type": "http.response.start", "status": status, "headers": headers}
    return [start, {"type": "http.response.body", "body": body}]


def reason_to_refuse(scope: Any) -> str | None:
    """Why this ASGI request (http or websocket) is not answered, in one line; None when it may pass.

    Origin is compared with Host and not with the port we listen on, so that a forwarded port
    (ssh -L 8000:127.0.0.1:7860, opened as localhost:8000) works.
    """
    hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
    host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if host is None:
        return "refused: open the app as 127.0.0.1 or localhost"
    # A websocket begins with GET but can then change things.
    reads = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
    if not (origins == ["null"] and reads) and not all(_is_same_origin(origin, host) for origin in origins):
        return "refused: the request comes from the page of another site"
    if _values(scope, b"sec-fetch-site") == ["cross-site"]:
        # Following a link to the app is all that other sites' pages may do.
        follows_link = reads and _values(scope, b"sec-fetch-mode") == ["navigate"]
        return None if follows_link else "refused: the request comes from the page of another site"
    return None


def is_plain_path(path: str, api: bool = False) -> bool:
    """Whether the app may be asked for this (decoded) path.

    Control characters are in no name of ours and trip what opens files. gradio's proxy of other hosts has no
    use here: the app asks no other host for anything. Without the HTTP API no endpoint is called by name;
    the page itself calls by number.
    """
    named = _NAMED_ENDPOINT.search(path) is not None
    return _CONTROL.search(path) is None and "/proxy=" not in path and (api or not named)


def _values(scope: Any, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _is_same_origin(origin: str, host: re.Match[str]) -> bool:
    """Whether the origin is the very name and port that the request asks for."""
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return False
    default = _DEFAULT_PORTS[found["scheme"].lower()]
    same_port = int(found["port"] or default) == int(host["port"] or default)
    return same_port and found["name"].lower() == host["name"].lower()
