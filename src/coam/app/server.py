"""Serving the web app on loopback, with a temporary folder of its own that goes when it ends."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from coam.app.components import import_gradio
from coam.app.engine import DEFAULT_LIMITS, Limits, MatcherLoader, default_loader
from coam.app.interface import create_app
from coam.app.page import style_and_script
from coam.app.security import guarded, one_line_refusals
from coam.errors import ConfigError

HOST = "127.0.0.1"


@contextmanager
def running_app(
    port: int | None = None,
    *,
    matcher_loader: MatcherLoader = default_loader,
    limits: Limits = DEFAULT_LIMITS,
    device: str = "auto",
    open_browser: bool = False,
    api: bool = False,
) -> Iterator[str]:
    """Serve the app on loopback while the context is open; gives its address.

    port: a free one is taken when none is given. All uploads and results live in one temporary folder, which
    is removed at the end. api: whether programs may call the tabs' jobs over HTTP.
    """
    if port is not None:
        _check_port_is_free(port)
    before = {name: os.environ.get(name) for name in ("GRADIO_TEMP_DIR", "TMPDIR")}
    kept_tempdir = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="coam-app-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        app = None
        try:
            app = create_app(matcher_loader, limits, device, api)
            with one_line_refusals():
                yield _launch(app, port, limits, open_browser, api)
        finally:
            if app is not None:
                app.close(verbose=False)
                for close in app.coam_closing:
                    close()
            tempfile.tempdir = kept_tempdir
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _check_port_is_free(port: int) -> None:
    """Refuse a port where something listens; connections of an app that has just ended do not count."""
    with socket.socket() as probe:
        if os.name == "posix":  # elsewhere it would allow what somebody listens on
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used ({error.strerror}); choose another with --port"
            ) from error


def _launch(app: Any, port: int | None, limits: Limits, open_browser: bool, api: bool) -> str:
    gradio = import_gradio()
    theme = gradio.themes.Default(
        primary_hue="amber", neutral_hue="slate", font=["system-ui", "sans-serif"], font_mono=["ui-monospace"]
    ).set(
        # White on amber cannot be read well; what explains a control must be as legible as the control.
        button_primary_text_color="#1b1d21",
        button_primary_text_color_hover="#1b1d21",
        button_primary_text_color_dark="#1b1d21",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        link_text_color_dark="*secondary_300",
        link_text_color_hover_dark="*secondary_200",
        link_text_color_visited_dark="*secondary_300",
        link_text_color_active_dark="*secondary_200",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
    )
    style, script = style_and_script()
    _, address, _ = app.launch(
        server_name=HOST,
        server_port=port,
        share=False,
        inbrowser=open_browser,
        prevent_thread_lock=True,
        quiet=True,
        show_error=False,
        max_file_size=limits.upload_bytes,
        allowed_paths=[],
        enable_monitoring=False,
        strict_cors=True,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        footer_links=["api"] if api else [],
        theme=theme,
        css=style,
        head=script,
        app_kwargs={"lifespan": partial(guarded, api=api), "docs_url": None, "redoc_url": None},
    )
    return str(address)
