"""The guard against CSRF and DNS rebinding: which Host, Origin and Sec-Fetch headers pass."""

from __future__ import annotations

import asyncio

import pytest

from coam.app.security import HostOriginGuard, OneLineErrors, reason_to_refuse


def asked(host: str | None = "127.0.0.1:7860", *, kind: str = "http", method: str = "POST", **headers: str):
    """The ASGI scope of a request; header names are written with _ for -."""
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    if host is not None:
        pairs.append((b"host", host.encode("latin-1")))
    scope = {"type": kind, "headers": pairs, "path": "/gradio_api/upload"}
    return scope | ({"method": method} if kind == "http" else {})


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7860", "localhost", "localhost:8000", "LocalHost:80", "[::1]", "[::1]:7860"],
)
def test_loopback_names_pass_with_any_port(host, kind):
    assert reason_to_refuse(asked(host, kind=kind)) is None


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:7860",
        "localhost.evil.example",
        "127.0.0.1.evil.example:7860",
        "evil.example@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1:7860:7860",
        "127.0.0.1:port",
        "127.0.0.1:",
        "127.0.0.1\n",
        "127.0.0.1, evil.example",
        "127x0x0x1",
        "127.0.0.2",
        "0.0.0.0:7860",
        "192.168.1.5:7860",
        "::1",
        "[::1",
        "[::2]:7860",
        "localhöst",
    ],
)
def test_other_names_are_refused_even_for_reading(host, method):
    assert "127.0.0.1 or localhost" in reason_to_refuse(asked(host, method=method))
    assert reason_to_refuse(asked(host, kind="websocket")) is not None


def test_two_hosts_or_two_origins_are_refused():
    scope = asked("127.0.0.1:7860")
    scope["headers"].append((b"Host", b"evil.example"))
    assert reason_to_refuse(scope) is not None
    scope = asked("127.0.0.1:7860", origin="http://127.0.0.1:7860")
    assert reason_to_refuse(scope) is None
    scope["headers"].append((b"Origin", b"http://evil.example"))
    assert reason_to_refuse(scope) is not None


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:7860", "http://127.0.0.1:7860"),
        ("localhost:8000", "http://localhost:8000"),  # ssh -L 8000:127.0.0.1:7860
        ("LOCALHOST:8000", "HTTP://localhost:8000"),
        ("[::1]:7860", "http://[::1]:7860"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost:443"),
    ],
)
def test_the_apps_own_page_passes(host, origin, kind):
    assert reason_to_refuse(asked(host, kind=kind, origin=origin)) is None
    assert reason_to_refuse(asked(host, kind=kind, origin=origin, sec_fetch_site="same-origin")) is None


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "origin",
    [
        "",
        "http://evil.example",
        "http://evil.example:7860",
        "http://127.0.0.1",
        "http://127.0.0.1:3000",  # another server on this machine
        "http://127.0.0.1:7860.evil.example",
        "http://127.0.0.1:7860@evil.example",
        "http://127.0.0.1:7860/",
        "http://localhost:7860",
        "127.0.0.1:7860",
        "file://127.0.0.1:7860",
        "chrome-extension://127.0.0.1:7860",
        "http://127.0.0.1:7860 http://evil.example",
    ],
)
def test_other_pages_are_refused(origin, kind):
    assert "another site" in reason_to_refuse(asked("127.0.0.1:7860", kind=kind, origin=origin))
    assert reason_to_refuse(asked("127.0.0.1:7860", method="GET", origin=origin)) is not None


def test_a_hidden_origin_may_only_read():
    for method in ("GET", "HEAD"):
        assert reason_to_refuse(asked(method=method, origin="null")) is None
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert "another site" in reason_to_refuse(asked(method=method, origin="null"))
    assert "another site" in reason_to_refuse(asked(kind="websocket", origin="null"))


def test_other_sites_may_link_to_the_app_and_nothing_more():
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    picture = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}
    assert reason_to_refuse(asked(method="GET", **link)) is None
    assert "another site" in reason_to_refuse(asked(method="POST", **link))
    assert "another site" in reason_to_refuse(asked(method="GET", **picture))
    assert "another site" in reason_to_refuse(asked(kind="websocket", **link))
    assert reason_to_refuse(asked(method="GET", sec_fetch_site="none", sec_fetch_mode="navigate")) is None


def answered(scope) -> tuple[bool, list[dict]]:
    """Whether the app behind the middleware was reached, and what was sent."""
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope)

    async def receive():
        pytest.fail("the body of a refused request is not read")

    async def send(message):
        sent.append(message)

    asyncio.run(HostOriginGuard(app)(scope, receive, send))
    return reached == [scope], sent


def test_what_may_pass_reaches_the_app_unchanged():
    for scope in (asked(), asked(kind="websocket"), {"type": "lifespan"}):
        assert answered(scope) == (True, [])


def test_a_refused_request_gets_403_and_one_line():
    reached, (start, body) = answered(asked("evil.example"))
    assert not reached
    assert start["type"] == "http.response.start"
    assert start["status"] == 403
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert body["body"].decode().count("\n") == 1
    assert len(body["body"]) < 100
    assert "evil" not in body["body"].decode()


def test_a_refused_websocket_is_closed_before_it_opens():
    reached, sent = answered(asked(kind="websocket", origin="http://evil.example"))
    assert not reached
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_request_that_trips_the_framework_leaves_one_line_and_no_traceback(caplog):
    async def tripped(scope, receive, send):
        raise KeyError(99)

    asyncio.run(OneLineErrors(tripped)(asked() | {"path": "/gradio_api/\x1bqueue"}, None, None))
    assert [record.getMessage() for record in caplog.records] == [
        "POST /gradio_api/\\x1bqueue: failed (KeyError)"
    ]
    assert caplog.records[0].exc_info is None
    with pytest.raises(KeyError):  # a websocket has no answer that could stand for it
        asyncio.run(OneLineErrors(tripped)(asked(kind="websocket"), None, None))
