"""The served app: loopback only, no file of the server, no other host, nothing loaded early."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("gradio")

from coam.app import create_app, running_app
from coam.app.engine import has_stylizer
from coam.errors import ConfigError


@pytest.fixture(scope="module")
def served():
    loaded: list[str] = []

    def loader(model, device):
        loaded.append(model)
        raise AssertionError("no test here needs a network")

    with running_app(matcher_loader=loader) as address:
        yield address, os.environ["GRADIO_TEMP_DIR"], loaded
    assert not Path(os.environ.get("GRADIO_TEMP_DIR", "/nonexistent")).exists()


def get(address: str, path: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(address + path, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def test_the_page_is_there_and_may_load_nothing_from_elsewhere(served):
    address, _, loaded = served
    assert address.startswith("http://127.0.0.1:")
    status, headers, body = get(address, "")
    assert status == 200
    policy = {name.lower(): value for name, value in headers.items()}["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert b"window.gradio_config" in body
    assert loaded == []  # nothing is loaded before it is used


def test_it_listens_on_loopback_only(served):
    port = int(served[0].rstrip("/").rsplit(":", 1)[1])
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect(("192.0.2.1", 9))  # sends nothing; only asks which address would be used
        own = probe.getsockname()[0]
    except OSError:
        pytest.skip("this machine has no other address")
    finally:
        probe.close()
    if own.startswith("127."):
        pytest.skip("this machine has no other address")
    with pytest.raises(OSError):
        socket.create_connection((own, port), timeout=3).close()


def upload(address: str, **headers: str) -> tuple[int, bytes]:
    """Send a small file as the page does."""
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n'
        b"Content-Type: text/plain\r\n\r\nhello\r\n--edge--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=edge"} | headers
    request = urllib.request.Request(address + "gradio_api/upload", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def files_in(folder: str) -> int:
    return sum(path.is_file() for path in Path(folder).rglob("*"))


def test_pages_of_other_sites_get_nothing(served):
    address, folder, _ = served
    before = files_in(folder)
    for headers in (
        {"Host": "evil.example"},  # a name that was made to resolve to 127.0.0.1
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        status, body = upload(address, **headers)
        assert status == 403, headers
        assert body.startswith(b"refused: ")
        assert body.count(b"\n") == 1
    assert files_in(folder) == before
    for path in ("", "config", "gradio_api/heartbeat/abc", "gradio_api/queue/data?session_hash=abc"):
        request = urllib.request.Request(address + path, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=20)


def test_the_own_page_and_programs_may_upload_also_through_a_forwarded_port(served):
    address, folder, _ = served
    before = files_in(folder)
    for headers in (
        {},
        {"Origin": address.rstrip("/")},
        {"Host": "localhost:8000", "Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"},
    ):
        assert upload(address, **headers)[0] == 200, headers
    assert files_in(folder) > before


def test_there_are_no_routes_that_keep_runs_elsewhere(served):
    config = json.loads(get(served[0], "config")[2])
    assert config.get("run_history", False) is False
    for path in ("runs", "run-history/buckets", "run-history/records"):
        assert get(served[0], "gradio_api/" + path)[0] == 404


def test_no_file_of_the_server_can_be_read(served):
    address, folder, _ = served
    secret = Path(folder).parent / "coam-test-secret.txt"
    secret.write_text("xyzzy")
    try:
        for path in (str(secret), "/etc/hostname", __file__, folder + "/../coam-test-secret.txt"):
            for route in ("gradio_api/file=", "file=", "gradio_api/file/", "file/"):
                status, _, body = get(address, route + path)
                assert status in (403, 404, 405), (route, path)
                assert b"xyzzy" not in body
    finally:
        secret.unlink()


def test_a_forged_upload_path_is_refused(served):
    address, _, loaded = served
    config = json.loads(get(address, "config")[2])
    # The Match button's function takes two photos, four settings and the picture's kind.
    number = next(d["id"] for d in config["dependencies"] if len(d["inputs"]) == 7 and len(d["outputs"]) == 4)
    photo = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}
    job = {
        "data": [photo, photo, "cdunet-lite1", 320, 64, "one look", "lines"],
        "fn_index": number,
        "session_hash": "forged",
    }
    request = urllib.request.Request(
        address + "gradio_api/queue/join", json.dumps(job).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
    events = get(address, "gradio_api/queue/data?session_hash=forged")[2].decode()
    final = next(json.loads(line[6:]) for line in events.splitlines() if "process_completed" in line)
    assert final["success"] is False
    hostname = Path("/etc/hostname").read_text().strip() if Path("/etc/hostname").exists() else "?"
    assert hostname not in json.dumps(final.get("output", {}).get("data", ""))
    assert loaded == []


def test_configuration_has_no_share_no_analytics_no_public_endpoint(served):
    config = json.loads(get(served[0], "config")[2])
    assert config["analytics_enabled"] is False
    assert not config.get("is_space")
    assert all(entry.get("api_visibility") == "private" for entry in config["dependencies"])
    labels = {c["props"].get("label") for c in config["components"]}
    assert {"Match", "Explain"} <= labels
    assert ("Stylize" in labels) == has_stylizer()
    for component in config["components"]:
        assert "share" not in (component["props"].get("buttons") or [])


def test_a_taken_port_is_one_clear_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"), running_app(port):
            pass


def test_create_app_starts_nothing():
    app = create_app(lambda model, device: pytest.fail("loaded"))
    assert app.is_running is False


def test_a_tab_whose_weights_are_absent_is_absent(monkeypatch):
    monkeypatch.setattr("coam.app.interface.has_stylizer", lambda: False)
    components = create_app(lambda model, device: pytest.fail("loaded")).config["components"]
    labels = {component["props"].get("label") for component in components}
    assert "Match" in labels
    assert "Stylize" not in labels


def test_import_is_light():
    code = "import sys, coam.app, coam.cli.app; print('gradio' in sys.modules, 'torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]


def test_the_command_refuses_bad_ports_and_has_no_share():
    from typer.testing import CliRunner

    from coam.cli import build_app

    runner = CliRunner()
    assert runner.invoke(build_app(), ["app", "--port", "80"]).exit_code == 2
    assert runner.invoke(build_app(), ["app", "--share"]).exit_code == 2
