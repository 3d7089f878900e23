"""Hostile requests to the real web app and its API: no file is told of, no traceback, it stays alive."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from PIL import Image

from support import REPOSITORY

Request = tuple[str, bytes]  # its name, its bytes
SECRET = "a-secret-that-no-answer-may-hold"


def requests(port: int, secret: Path, upload: Path, random: int = 20) -> Iterator[Request]:
    """Names and bytes of requests; `secret`: a file that the user can read, and no page should."""
    host = f"127.0.0.1:{port}"

    def plain(line: str, *headers: str, body: bytes = b"") -> bytes:
        fields = [f"Host: {host}", *headers]
        if body:
            fields.append(f"Content-Length: {len(body)}")
        return "\r\n".join([line, *fields, "", ""]).encode("utf-8", "surrogateescape") + body

    for target in (
        "/",
        "/%00",
        "/gradio_api/proxy=%00",
        "/gradio_api/proxy=http://127.0.0.1:1/",
        "/gradio_api/proxy=file:///etc/passwd",
        f"/gradio_api/file={secret}",
        f"/file={secret}",
        f"/gradio_api/file=../{secret}",
        "/gradio_api/file=/dev/zero",
        "/gradio_api/file=/proc/self/environ",
        "/gradio_api/file=" + "a" * 5000,
        "/gradio_api/file=%ff%fe",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../../etc/passwd",
        "/assets/%00",
        "/svelte/%2e%2e/%2e%2e/x",
        "//evil.example/",
        "*",
        "/gradio_api/info",
        "/config",
        "/gradio_api/queue/data?session_hash=%00",
        "/gradio_api/heartbeat/%00?x",
        "/theme.css?v=%ff",
        "/gradio_api/component_server",
        "/gradio_api/deep_link?session_hash=../../x",
        "/monitoring/x",
        "/logout",
        "/manifest.json",
    ):
        for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE", "BREW"):
            yield f"{method} {target[:60]}", plain(f"{method} {target} HTTP/1.1", "Connection: close")
    for header in (
        "Origin: http://evil.example",
        "Origin: null",
        "Host: evil.example",
        "X-Forwarded-Host: evil.example",
        "Cookie: " + "a=b;" * 5000,
        "Content-Length: -1",
        "Content-Length: 99999999999",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
        "Range: bytes=0-1,0-1,-1",
        "Upgrade: websocket",
        "Sec-Fetch-Site: cross-site",
        "Accept-Encoding: " + "x," * 9000,
        "X-\x00: a",
        "A" * 90_000 + ": b",
    ):
        yield f"header {header[:40]!r}", plain("GET / HTTP/1.1", header, "Connection: close")
        yield (
            f"post with {header[:40]!r}",
            plain("POST /gradio_api/queue/join HTTP/1.1", header, "Connection: close", body=b"{}"),
        )
    values: list[object] = [
        None,
        1,
        "x",
        [],
        {},
        [[]],
        {"path": str(secret), "meta": {"_type": "gradio.FileData"}},
        {"path": "/dev/zero"},
        {"path": str(secret)},
        {"url": f"http://{host}/"},
        {"path": "\0"},
        {"path": ["a"]},
        {"path": str(upload)},
    ]
    for number, value in enumerate(values):
        for function in (0, 1, 2, 99, -1, "x", None):
            content = {"data": [value] * 6, "fn_index": function, "session_hash": "abc", "event_data": None}
            yield (
                f"join {number} {function}",
                plain(
                    "POST /gradio_api/queue/join HTTP/1.1",
                    "Content-Type: application/json",
                    "Connection: close",
                    body=json.dumps(content).encode(),
                ),
            )
    for text in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b'{"data": 1e999}', b'"' * 10_000):
        yield (
            f"body {text[:9]!r}",
            plain(
                "POST /gradio_api/queue/join HTTP/1.1",
                "Content-Type: application/json",
                "Connection: close",
                body=text,
            ),
        )
        yield (
            f"upload {text[:9]!r}",
            plain(
                "POST /gradio_api/upload HTTP/1.1",
                "Content-Type: multipart/form-data; boundary=x",
                "Connection: close",
                body=text,
            ),
        )
    for name in (
        "../../x.png",
        "/etc/x.png",
        "\0.png",
        "a" * 3000 + ".png",
        "x\r\nSet-Cookie: a=b.png",
        "CON",
        ".",
        "",
    ):
        part = f'Content-Disposition: form-data; name="files"; filename="{name}"'
        body = f"--x\r\n{part}\r\n\r\nrubbish\r\n--x--\r\n".encode()
        yield (
            f"upload named {name[:20]!r}",
            plain(
                "POST /gradio_api/upload HTTP/1.1",
                "Content-Type: multipart/form-data; boundary=x",
                "Connection: close",
                body=body,
            ),
        )
    sound = plain(
        "POST /gradio_api/queue/join HTTP/1.1",
        "Content-Type: application/json",
        "Connection: close",
        body=b'{"data": [], "fn_index": 0}',
    )
    rng = np.random.default_rng(0)
    for number in range(random):
        damaged = bytearray(sound)
        for place in rng.integers(0, len(sound), 1 + number % 6):
            damaged[place] = int(rng.integers(256))
        yield f"damaged {number}", bytes(damaged)
    yield "rubbish", rng.bytes(5000)
    yield "half a request", b"GET / HT"


@contextmanager
def running_app(work: Path, *options: str) -> Iterator[tuple[int, Path]]:
    """The real app in a process of its own: its port, and the file with all that it says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = work / "app.log"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TMPDIR": str(work)}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "coam", "app", "--port", str(port), "--device", "cpu", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 600
        while not is_alive(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the app did not start: {log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield port, log
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_alive(port: int) -> bool:
    answer, _ = ask(
        port, f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode(), 60
    )
    return answer.startswith(b"HTTP/1.1 200")


def ask(port: int, request: bytes, seconds: float) -> tuple[bytes, bool]:
    """What is answered within so many seconds, and whether the connection was ended by the other side."""
    end, answer = time.monotonic() + seconds, b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with suppress(OSError):
            connection.sendall(request)
        while time.monotonic() < end and len(answer) < 10_000_000:
            connection.settimeout(max(0.01, end - time.monotonic()))
            block = connection.recv(1 << 16)
            if not block:
                return answer, True
            answer += block
        return answer, False
    return answer, True


def attack_app(work: Path, every: int = 1, seconds: float = 8) -> dict[str, list[str]]:
    """Names of requests by what became of them, of which `DEFECTS` are defects."""
    secret = work / "secret.png"
    secret.write_text(SECRET)
    found: dict[str, list[str]] = {}
    with running_app(work) as (port, log):
        for name, request in list(requests(port, secret, work))[::every]:
            answer, ended = ask(port, request, seconds)
            status = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
            word = status[1].decode() if status else ("closed" if ended else "waits for more")
            if SECRET.encode() in answer or b"root:x:0" in answer:
                word = "secret"
            found.setdefault(word, []).append(name)
            if not is_alive(port):
                found.setdefault("dead", []).append(name)
        if "Traceback" in log.read_text(errors="replace"):
            found["traceback"] = [log.read_text(errors="replace")[-1500:]]
    return found


# ---- the API: every endpoint, one argument at a time

OPTIONS: tuple[object, ...] = (
    None, True, -1, 0, 1e308, float("inf"), float("nan"), "", "x" * 10_000, "\0", "../../x", [], [[1]], {},
    {"path": "/etc/passwd"}, {"__type__": "update"},
)  # fmt: skip


def hostile_photos(port: int, secret: Path, sound: Path) -> tuple[object, ...]:
    """What may stand where a photo is asked for; `sound`: a photo that was uploaded."""
    meta = {"meta": {"_type": "gradio.FileData"}}
    paths = [str(secret), "/dev/zero", "/proc/self/environ", "/etc/passwd", "\0", "", f"{sound}/../../x"]
    addresses = ["file:///etc/passwd", f"http://127.0.0.1:{port}/", "http://169.254.169.254/x.png", "data:,x"]
    return (
        None, 1, "x", [], {}, *({"path": path, **meta} for path in paths),
        *({"path": None, "url": url, **meta} for url in addresses),
        {"path": str(sound), "url": addresses[1], "orig_name": "../../x\0", **meta},
    )  # fmt: skip


def calls(port: int, secret: Path, sound: Path) -> Iterator[tuple[str, str, list[object]]]:
    """A name, an endpoint of the API and its arguments: sound ones, of which one is not."""
    told = json.loads(ask_for(port, "GET", "/gradio_api/info")[1])
    photo = {"path": str(sound), "meta": {"_type": "gradio.FileData"}}
    small = {"resolution": 320, "most": 64, "looks": "one look", "x": 10.0, "y": 10.0, "key": "x"}
    for endpoint, parts in told["named_endpoints"].items():
        wanted = parts["parameters"]
        arguments: list[object] = []
        for part in wanted:
            given = {"Image": photo, "File": [photo, photo]}.get(part["component"])
            arguments.append(given or small.get(part["parameter_name"], part.get("parameter_default")))
        for place, part in enumerate(wanted):
            is_photo = part["component"] in ("Image", "File")
            for number, value in enumerate(hostile_photos(port, secret, sound) if is_photo else OPTIONS):
                name = f"{endpoint} {part['parameter_name']} {number}"
                yield name, endpoint, [*arguments[:place], value, *arguments[place + 1 :]]
        for few in ([], [None] * 30, arguments[:1]):
            yield f"{endpoint} with {len(few)} arguments", endpoint, few


def ask_for(port: int, method: str, target: str, body: bytes = b"", kind: str = "") -> tuple[int, bytes]:
    """Status and body of an answer, read until the app ends it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, target, body, {"Content-Type": kind} if kind else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def uploaded(port: int, photo: Path) -> Path:
    """Where the app has put a photo that was uploaded."""
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = head + photo.read_bytes() + b"\r\n--x--\r\n"
    _, answer = ask_for(port, "POST", "/gradio_api/upload", body, "multipart/form-data; boundary=x")
    return Path(json.loads(answer)[0])


def attack_api(work: Path, every: int = 1) -> dict[str, list[str]]:
    """Names of calls by what became of them, of which `DEFECTS` are defects; `refused`: in one line."""
    secret, photo = work / "secret.png", work / "small.png"
    secret.write_text(SECRET)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)).save(photo)
    found: dict[str, list[str]] = {}
    with running_app(work, "--api") as (port, log):
        for name, endpoint, arguments in list(calls(port, secret, uploaded(port, photo)))[::every]:
            found.setdefault(_call(port, endpoint, arguments), []).append(name)
            if not is_alive(port):
                found.setdefault("dead", []).append(name)
        if "Traceback" in log.read_text(errors="replace"):
            found["traceback"] = [log.read_text(errors="replace")[-1500:]]
    return found


def _call(port: int, endpoint: str, arguments: list[object]) -> str:
    body = json.dumps({"data": arguments}).encode()
    status, answer = ask_for(port, "POST", f"/gradio_api/call{endpoint}", body, "application/json")
    if status != 200:
        return str(status)
    _, told = ask_for(port, "GET", f"/gradio_api/call{endpoint}/{json.loads(answer)['event_id']}")
    if SECRET.encode() in told or b"root:x:0" in told:
        return "secret"
    event, _, data = told.decode(errors="replace").strip().rpartition("event: ")[2].partition("\ndata: ")
    if event == "error":
        line = json.loads(data)
        line = line["error"] if line else ""
        return "several lines" if line and ("\n" in line or "Traceback" in line) else "refused"
    return event


DEFECTS = ("500", "502", "secret", "dead", "traceback", "several lines")
