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
from PIL import Image

pytest.importorskip("gradio")

from coam.app import create_app, running_app
from coam.app.engine import has_stylizer
from coam.errors import ConfigError


@pytest.fixture(scope="module")
def served(photos):
    """Address, folder, what was loaded. `photos` first: pytest's folder must not lie in the app's."""
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


def upload(address: str, content: bytes = b"hello", **headers: str) -> tuple[int, bytes]:
    """Send a small file as the page does."""
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n'
        b"Content-Type: text/plain\r\n\r\n" + content + b"\r\n--edge--\r\n"
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


def match_job(address: str, photo: dict[str, object], session: str) -> dict[str, object]:
    """Ask for a match of one file object with itself, as the Match button does; the last event."""
    config = json.loads(get(address, "config")[2])
    # The Match button's function takes two photos, four settings and the picture's kind.
    number = next(d["id"] for d in config["dependencies"] if len(d["inputs"]) == 7 and len(d["outputs"]) == 4)
    job = {
        "data": [photo, photo, "cdunet-lite1", 320, 64, "one look", "lines"],
        "fn_index": number,
        "session_hash": session,
    }
    request = urllib.request.Request(
        address + "gradio_api/queue/join", json.dumps(job).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
    events = get(address, f"gradio_api/queue/data?session_hash={session}")[2].decode()
    return next(json.loads(line[6:]) for line in events.splitlines() if "process_completed" in line)


def test_a_forged_upload_path_is_refused(served):
    address, _, loaded = served
    final = match_job(address, {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}, "forged")
    assert final["success"] is False
    hostname = Path("/etc/hostname").read_text().strip() if Path("/etc/hostname").exists() else "?"
    assert hostname not in json.dumps(final.get("output", {}).get("data", ""))
    assert loaded == []


@pytest.mark.parametrize("meta", [{}, {"meta": {"_type": "other"}}, {"meta": None}])
def test_a_file_object_without_the_frameworks_marker_reads_nothing(served, photos, tmp_path, meta):
    """gradio checks only what carries its marker: pictures, pipes and devices anywhere got through."""
    address, folder, loaded = served
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    inside = Path(folder) / "link.png"
    inside.unlink(missing_ok=True)
    inside.symlink_to(photos[0])
    answers = {}
    for number, path in enumerate(
        [photos[0], tmp_path / "gone.png", pipe, "/dev/zero", "/etc/hostname", tmp_path, inside,
         f"{folder}/../{photos[0].relative_to('/')}", f"{folder}/x/../link.png", folder, "", "a\0b"]
    ):  # fmt: skip
        final = match_job(address, {"path": str(path), **meta}, f"unmarked-{number}-{len(str(meta))}")
        answers[str(path)] = json.dumps(final["output"].get("data", final["success"]))
    assert len(set(answers.values())) == 1, answers  # which does not tell what exists
    assert loaded == []  # no photo was read, or the network would have been asked for


def test_a_refused_photo_does_not_take_the_guard_away(served, photos, tmp_path):
    """A refusal updates the photo's place, and gradio then makes that component anew for this visitor."""
    address, _, loaded = served
    Image.open(photos[0]).save(tmp_path / "outside.bmp")
    (tmp_path / "outside.txt").write_text("no picture")
    config = json.loads(get(address, "config")[2])
    places = {part["id"] for part in config["components"] if "photo-" in (part["props"].get("elem_id") or "")}
    previews = [d for d in config["dependencies"] if d["targets"] and d["targets"][0][0] in places]
    previews = [d["id"] for d in previews if d["targets"][0][1] == "input"]
    assert len(previews) == 2
    for preview in previews:
        assert "is no longer there" in asked_of(address, preview, [{"path": "/nonexistent"}], "refused")
    for name in ("outside.bmp", "outside.txt"):
        final = match_job(address, {"path": str(tmp_path / name)}, "refused")
        assert "is no longer there" in json.dumps(final["output"]), name
    assert loaded == []


def test_preflight_requests_meet_the_guard_first(served):
    asked = {"Access-Control-Request-Method": "POST"}
    for headers in (
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ):
        request = urllib.request.Request(
            served[0] + "gradio_api/upload", headers=headers | asked, method="OPTIONS"
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=20)
        assert caught.value.code == 403
        assert "access-control-allow-methods" not in {name.lower() for name in caught.value.headers}


@pytest.mark.parametrize(
    "path",
    ["gradio_api/proxy=%00", "gradio_api/proxy=http://a%00", "proxy=%00", "gradio_api/file=%00", "a%1b[2Jb"],
)
def test_control_characters_and_the_proxy_are_404_in_one_line(served, path, capfd):
    status, _, body = get(served[0], path)
    assert (status, body) == (404, b"there is no such page\n")
    assert "Traceback" not in capfd.readouterr().err


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


def test_every_control_has_a_line_that_explains_it(served):
    config = json.loads(get(served[0], "config")[2])
    kinds = ("dropdown", "slider", "radio", "checkbox", "number")
    controls = [c["props"] for c in config["components"] if c["type"] in kinds]
    assert len(controls) >= 15
    assert [c["label"] for c in controls if len(c.get("info") or "") < 10] == []


def test_a_taken_port_is_one_clear_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"), running_app(port):
            pass


def test_the_port_of_an_app_that_has_just_ended_can_be_taken_again():
    """Connections that its end has closed wait on the port for a minute (TIME_WAIT)."""
    with socket.create_server(("127.0.0.1", 0)) as ended:
        port = ended.getsockname()[1]
        browser = socket.create_connection(("127.0.0.1", port))
        ended.accept()[0].close()
        assert browser.recv(1) == b""
        browser.close()
    with socket.socket() as probe, pytest.raises(OSError, match="in use"):
        probe.bind(("127.0.0.1", port))
    with running_app(port, matcher_loader=lambda model, device: pytest.fail("loaded")) as address:
        assert get(address, "")[0] == 200
        assert address == f"http://127.0.0.1:{port}/"


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


def forged_inputs(config, dependency, path: str, marked: bool):
    """What a forger sends to an event: a path of the server wherever a file is taken, defaults elsewhere."""
    parts = {part["id"]: part for part in config["components"]}
    file = {"path": path} | ({"meta": {"_type": "gradio.FileData"}} if marked else {})
    data, files = [], 0
    for number in dependency["inputs"]:
        part = parts[number]
        if part["type"] in ("image", "file"):
            files += 1
            several = part["props"].get("file_count") == "multiple"
            data.append([file, file] if several else file)
        else:
            data.append(part["props"].get("value"))
    return data, files


def asked_of(address: str, number: int, data, session: str) -> str:
    """Everything that comes back for one event."""
    job = {"data": data, "fn_index": number, "session_hash": session, "event_data": {"index": [5, 5]}}
    body, kind = json.dumps(job).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(address + "gradio_api/queue/join", body, kind)
    try:
        with urllib.request.urlopen(request, timeout=60):
            pass
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return get(address, f"gradio_api/queue/data?session_hash={session}")[2].decode()


@pytest.mark.parametrize("marked", [True, False])
def test_no_event_of_any_tab_gives_a_file_of_the_server(served, photos, tmp_path, marked):
    """Previews, the swap, every tab's job, reconstruction and localization: whatever path a request names."""
    address, folder, loaded = served
    secret = tmp_path / "secret.txt"
    secret.write_text("xyzzy-plugh")
    before = {path for path in Path(folder).rglob("*") if path.is_file()}
    config = json.loads(get(address, "config")[2])
    tried = 0
    for dependency in config["dependencies"]:
        for k, path in enumerate((str(photos[0]), str(secret), f"{folder}/../{secret}")):
            data, files = forged_inputs(config, dependency, path, marked)
            if not files:
                continue
            tried += 1
            came = asked_of(address, dependency["id"], data, f"forged-{dependency['id']}-{k}-{marked}")
            assert "xyzzy" not in came
            assert "no network is needed" not in came
    assert tried >= 3 * 10
    assert loaded == []  # nothing was read that could have been looked at
    new = {path for path in Path(folder).rglob("*") if path.is_file()} - before
    assert [path for path in new if b"xyzzy" in path.read_bytes() or path.suffix == ".jpg"] == []


@pytest.mark.parametrize(
    "value",
    [1e308, "\0", "../../etc", {"path": "/etc/hostname"}],
    ids=["huge", "zero byte", "path", "file"],
)
def test_no_control_takes_a_value_that_the_page_would_not_send(served, photos, value, capfd):
    """Sliders and choices of every tab, one at a time, beside sound photos: nothing is begun."""
    address, _, loaded = served
    place = json.loads(upload(address, content=photos[0].read_bytes())[1])[0]
    photo = {"path": place, "meta": {"_type": "gradio.FileData"}}
    config = json.loads(get(address, "config")[2])
    parts = {part["id"]: part for part in config["components"]}
    tried = 0
    for dependency in config["dependencies"]:
        inputs = [parts[number] for number in dependency["inputs"]]
        if sum(part["type"] in ("image", "file") for part in inputs) == 0 or len(inputs) < 3:
            continue
        sound = [photo if p["type"] == "image" else p["props"].get("value") for p in inputs]
        sound = [[photo, photo] if p["type"] == "file" else v for p, v in zip(inputs, sound, strict=True)]
        for k, part in enumerate(inputs):
            if part["type"] not in ("dropdown", "slider", "radio"):
                continue
            tried += 1
            data = [*sound[:k], value, *sound[k + 1 :]]
            came = asked_of(address, dependency["id"], data, f"odd-{dependency['id']}-{k}-{len(str(value))}")
            assert "root:" not in came
            assert loaded == [], (dependency["id"], part["props"]["label"])
    assert tried >= 20
    assert "Traceback" not in capfd.readouterr().err


def test_a_function_that_does_not_exist_is_the_requests_fault(served):
    for number in (99, -1, "x", None):
        job = json.dumps({"data": [], "fn_index": number, "session_hash": "nobody"}).encode()
        request = urllib.request.Request(
            served[0] + "gradio_api/queue/join", job, {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=20)
        assert 400 <= caught.value.code < 500, number


def test_without_api_programs_get_no_endpoint(served):
    address = served[0]
    names = (
        "match",
        "warp",
        "register",
        "geometry",
        "explain",
        "compare",
        "stylize",
        "reconstruct",
        "localize",
    )
    for path in [f"gradio_api/{way}/{name}" for name in names for way in ("call", "call/v2", "run", "api")]:
        request = urllib.request.Request(
            address + path, b'{"data": []}', {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=20)
        assert (caught.value.code, caught.value.read()) == (404, b"there is no such page\n")
    paths = json.loads(get(address, "gradio_api/openapi.json")[2])["paths"]
    assert [path for path in paths if "/call/" in path] == []


def test_with_api_programs_get_documented_endpoints_behind_the_same_guards(photos):
    from gradio_client import Client, handle_file
    from gradio_client.exceptions import AppError

    from coam.app.engine import default_loader, model_names

    with running_app(matcher_loader=default_loader, api=True) as address:
        client = Client(address, verbose=False, analytics_enabled=False)
        endpoints = client.view_api(return_format="dict")["named_endpoints"]
        assert set(endpoints) >= {"/match", "/warp", "/register", "/geometry", "/explain", "/compare"}
        names = [each["parameter_name"] for each in endpoints["/geometry"]["parameters"]]
        assert names[:4] == ["photo1", "photo2", "model", "resolution"]
        schema = json.loads(get(address, "gradio_api/openapi.json")[2])
        assert any("match" in path for path in schema["paths"])
        pair = [*map(handle_file, photos), model_names()[0], 320]
        facts, files = client.predict(*pair, 64, "one look", "lines", api_name="/match")
        assert 0 < facts["matches"] <= 64
        assert Path(files[0]).name == "matches.npz"
        with pytest.raises(AppError, match=r"not in the list of choices|must be one of"):
            client.predict(*pair[:3], 4096, 64, "one look", "lines", api_name="/match")
        for path, headers in (
            ("gradio_api/openapi.json", {"Host": "evil.example"}),
            ("gradio_api/info", {"Sec-Fetch-Site": "cross-site"}),
            ("gradio_api/call/match", {"Origin": "http://evil.example"}),
        ):
            data = b'{"data": []}' if "call" in path else None
            request = urllib.request.Request(address + path, data, headers)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(request, timeout=20)
