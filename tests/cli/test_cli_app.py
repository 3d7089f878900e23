"""`coam app` ends as its own first line says it does."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytest.importorskip("gradio")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_app_stops_without_an_error(number: signal.Signals) -> None:
    code = (
        "import signal\n"
        # A shell that runs the tests in the background hands an ignored SIGINT down.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from coam.cli import main; main()"
    )
    command = [sys.executable, "-u", "-c", code, "app", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as app:
        assert app.stdout is not None
        assert "Ctrl-C ends it" in app.stdout.readline()
        app.send_signal(number)
        out, errors = app.communicate(timeout=60)
    assert app.returncode == 0
    assert out == "stopped\n"
    assert "error" not in errors
