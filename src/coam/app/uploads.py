"""Uploads: the only files that the app reads, whatever path a request names.

A request can name any path of this machine. What is read must be a regular file inside the app's upload
folder, reached without a link, and not too large by the open file itself. Everything else gets one and the
same answer, which does not tell what exists.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from coam.errors import ImageError


def read_upload(path: str | os.PathLike[str], folder: Path | None, most_bytes: int, label: str) -> bytes:
    """The content of an upload in `folder` (None: nothing may be read); errors call it by `label`."""
    try:
        if folder is None:
            raise OSError("there is no upload folder")
        with os.fdopen(_open_below(folder, os.fspath(path)), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = b"" if size > most_bytes else file.read(most_bytes + 1)
    except (OSError, ValueError, TypeError) as error:
        raise ImageError(f"{label} is no longer there; upload it again") from error
    if max(size, len(content)) > most_bytes:
        raise ImageError(
            f"{label} has {size / 2**20:.0f} MB; at most {most_bytes / 2**20:.0f} MB are allowed"
        )
    return content


def _open_below(folder: Path, path: str) -> int:
    """A descriptor of the regular file `path` below `folder`; a link on the way is an error.

    Folder by folder, so that none can be exchanged for a link between a check and its use. Opening must not
    wait: a pipe that nobody writes to would.
    """
    real = os.path.realpath(folder)
    if path.startswith(str(folder) + os.sep):  # the folder itself may lie behind a link, as /tmp on a Mac
        path = real + path[len(str(folder)) :]
    parts = Path(path).parts[len(Path(real).parts) :]
    if not parts or ".." in parts or Path(path) != Path(real, *parts):
        raise OSError("it is not below the upload folder")
    directory = os.open(real, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = inner
        file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it is no regular file")
    return file
