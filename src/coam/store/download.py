"""One file from the net, only when asked for, and only if it is the file that was meant."""

from __future__ import annotations

import hashlib
import http.client
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from coam.errors import ConfigError, DataError
from coam.store.atomic import atomic_write
from coam.store.checksums import file_digest

MOST_BYTES = 4 * 2**30
AT_ONCE = 2**20  # bytes
PATIENCE = 30.0  # seconds without an answer
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def fetch(
    url: str, target: Path, sha256: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> Path:
    """Fetch `url` into the file `target`; kept only if its SHA-256 is `sha256` (64 hexadecimal digits).

    Over https only (http on this machine itself), redirects included. A target that is already the wanted
    file is not fetched again. `progress` gets bytes so far and in all (0: not told).
    """
    wanted = sha256.lower()
    if not re.fullmatch(r"[0-9a-f]{64}", wanted):
        raise ConfigError(f"sha256 is {sha256!r}; give the 64 hexadecimal digits that its publisher states")
    _check_address(url)
    if target.is_file() and file_digest(target) == wanted:
        return target
    request = Request(url, headers={"User-Agent": "coam"})
    with atomic_write(target) as temporary, temporary.open("wb") as file:
        try:
            with build_opener(_SafeRedirects()).open(request, timeout=PATIENCE) as answer:
                found = _copy(answer, file, progress)
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise DataError(f"{url}: cannot be fetched ({reason}); try again, or fetch it yourself") from None
        if found != wanted:
            raise DataError(
                f"{url}: is not the file that was meant (its SHA-256 is {found}); nothing was kept"
            )
    return target


class _SafeRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)):
        raise ConfigError(f"{url!r} is no https:// address; files are fetched over https only")


def _copy(answer: Any, file: IO[bytes], progress: Callable[[int, int], None]) -> str:
    """Write what comes, and give its SHA-256."""
    total, done, digest = int(answer.headers.get("Content-Length") or 0), 0, hashlib.sha256()
    while part := answer.read(AT_ONCE):
        done += len(part)
        if max(done, total) > MOST_BYTES:
            raise DataError(f"larger than {MOST_BYTES >> 30} GiB, which no model is; nothing was kept")
        digest.update(part)
        file.write(part)
        progress(done, total)
    return digest.hexdigest()
