"""A headless Chromium: the one that is installed, or Playwright's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 120_000  # milliseconds; machines that run tests are busy
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """A running browser; without a sandbox, because containers run as root."""
    from playwright.sync_api import sync_playwright

    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", *flags])
        yield browser
        browser.close()
