"""`coam app`: the web app on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from coam.cli.options import Device
from coam.cli.printing import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("app")(serve)


def serve(
    port: Annotated[
        int | None, typer.Option(min=1024, max=65535, help="Port on this machine; a free one if not given.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    device: Device = "auto",
    api: Annotated[
        bool,
        typer.Option("--api", help="Let programs call the tabs over HTTP (docs/app.md)."),
    ] = False,
) -> None:
    """Look at matches and attention in the browser; reachable from this machine only. Ctrl-C ends it."""
    import signal
    import threading
    from contextlib import suppress

    from coam.app import running_app

    ended = threading.Event()
    serving = running_app(port, device=device, open_browser=open_browser, api=api)
    with suppress(KeyboardInterrupt), serving as address:
        say(f"coam is at {address} (this machine only); Ctrl-C ends it")
        while not ended.is_set():
            # Anew each time: pycolmap, which the first reconstruction loads, has the process killed instead.
            signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
            ended.wait(0.5)  # without a limit Ctrl-C would not be noticed on every system
    say("stopped")
