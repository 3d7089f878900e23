"""Cross-site requests and DNS rebinding against the app, in a real headless Chromium."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("gradio")
pytest.importorskip("playwright.sync_api")

from coam.app import running_app
from support.chromium import PATIENCE, chromium

pytestmark = pytest.mark.browser
UPLOAD = """async ([url, mode]) => {
  const form = new FormData();
  form.append("files", new Blob(["from elsewhere"]), "elsewhere.txt");
  return (await fetch(url, {method: "POST", body: form, mode})).status; }"""


@pytest.fixture(scope="module")
def page():
    """Names of other sites lead to this machine, as an attacker's name server would have it."""
    with chromium("--host-resolver-rules=MAP *.example 127.0.0.1") as browser:
        opened = browser.new_page()
        opened.set_default_timeout(PATIENCE)
        yield opened


@pytest.fixture(scope="module")
def served():
    """The app's address, and the folder of its uploads."""
    with running_app(matcher_loader=lambda model, device: pytest.fail("no network is needed")) as address:
        yield address, Path(os.environ["GRADIO_TEMP_DIR"])


@pytest.fixture
def other_site(tmp_path):
    """The address of a page of another site."""
    (tmp_path / "index.html").write_text("<title>another site</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://other.example:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def forwarded(served):
    """The app's address behind another port, as ssh -L gives it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", urlsplit(served[0]).port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://localhost:{listener.getsockname()[1]}/"
    listener.close()


def test_a_name_that_leads_to_this_machine_shows_no_app(page, served):
    answer = page.goto(f"http://rebound.example:{urlsplit(served[0]).port}/")
    assert answer.status == 403
    assert page.inner_text("body").strip() == "refused: open the app as 127.0.0.1 or localhost"


def test_a_page_of_another_site_cannot_upload(page, served, other_site):
    address, folder = served
    page.goto(other_site)
    assert page.title() == "another site"
    # Without "cors" the browser sends the request before anyone could forbid it, and hides the answer.
    assert page.evaluate(UPLOAD, [address + "gradio_api/upload", "no-cors"]) == 0
    assert list(folder.rglob("elsewhere.txt")) == []


def test_a_link_from_another_site_opens_the_app_which_may_upload(page, served, other_site):
    address, folder = served
    page.goto(other_site)
    page.evaluate("url => { location.href = url }", address)
    page.wait_for_selector("#match-start")
    assert page.evaluate(UPLOAD, [address + "gradio_api/upload", "cors"]) == 200
    assert len(list(folder.rglob("elsewhere.txt"))) == 1


def test_the_app_works_through_a_forwarded_port(page, forwarded, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    page.goto(forwarded)
    page.wait_for_selector("#match-start")
    for number in (1, 2):
        page.set_input_files(f"#photo-{number} input[type=file]", str(broken))
    page.wait_for_timeout(1500)  # until the server has the uploads
    page.click("#match-start")
    # The upload, the job and the stream of its answers have all come through.
    page.locator("#match-status").get_by_text("photo 1").wait_for()
