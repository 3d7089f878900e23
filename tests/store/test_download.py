"""Files from the net: only the file that was meant, only over a safe way, and nothing left of another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from coam.errors import ConfigError, DataError
from coam.store.download import fetch

CONTENT = bytes(range(256)) * 9000  # more than two parts


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Elsewhere(BaseHTTPRequestHandler):
    """Sends everyone to a plain http address of another machine."""

    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://example.org/model.safetensors")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve(handler: object) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(CONTENT)
    yield from serve(partial(Quiet, directory=str(tmp_path / "served")))


@pytest.fixture
def elsewhere() -> Iterator[str]:
    yield from serve(Elsewhere)


def test_the_wanted_file_is_kept_and_not_fetched_twice(address: str, tmp_path: Path) -> None:
    wanted, seen = hashlib.sha256(CONTENT).hexdigest(), []
    target = fetch(f"{address}/file", tmp_path / "got", wanted.upper(), lambda *n: seen.append(n))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    seen.clear()
    fetch(f"{address}/file", tmp_path / "got", wanted, lambda *n: seen.append(n))
    assert not seen


def test_another_file_is_refused_and_what_was_there_stays(address: str, tmp_path: Path) -> None:
    target = tmp_path / "got"
    target.write_bytes(b"before")
    with pytest.raises(DataError, match="not the file that was meant"):
        fetch(f"{address}/file", target, "0" * 64)
    assert target.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["got", "served"]


@pytest.mark.parametrize(
    "url", ["http://example.org/a", "file:///etc/passwd", "ftp://127.0.0.1/a", "https://", "nonsense"]
)
def test_other_ways_than_https_are_refused_unasked(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="over https only"):
        fetch(url, tmp_path / "got", "0" * 64)


def test_a_redirect_to_an_unsafe_address_is_refused(elsewhere: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"example\.org"):
        fetch(f"{elsewhere}/file", tmp_path / "got", "0" * 64)


def test_what_is_not_there_and_a_wrong_checksum_are_one_line(address: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be fetched"):
        fetch(f"{address}/nowhere", tmp_path / "got", "0" * 64)
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        fetch(f"{address}/file", tmp_path / "got", "abc")
