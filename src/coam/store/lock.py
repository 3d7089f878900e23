"""A lock on an output folder: two runs that write into one folder would destroy each other's work.

The lock is the system's own (flock) on a file in the folder, so that it ends with its process, however that
ends. The file says who has it.
"""

from __future__ import annotations

import getpass
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coam.errors import DataError
from coam.store.atomic import StrPath, check_folder

LOCK = ".coam-lock"
_held: dict[str, int] = {}  # folders that this process has locked, and how often: its stages may nest


@contextmanager
def folder_lock(folder: StrPath) -> Iterator[None]:
    """Have `folder` (made where it is missing) for this process alone while the block runs."""
    root = os.path.realpath(folder)
    if root in _held:
        _held[root] += 1
        try:
            yield
        finally:
            _held[root] -= 1
        return
    check_folder(Path(root))
    os.makedirs(root, exist_ok=True)
    descriptor = _lock(Path(root) / LOCK, folder)
    _held[root] = 1
    try:
        yield
    finally:
        del _held[root]
        if descriptor is not None:
            with suppress(OSError):
                os.unlink(os.path.join(root, LOCK))
            os.close(descriptor)


def _lock(path: Path, folder: StrPath) -> int | None:
    """A descriptor that holds the lock; None where the system or the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 500).decode("utf-8", "replace").strip() or "another run"
            os.close(descriptor)
            raise DataError(
                f"{os.fspath(folder)}: is in use by {owner}; wait until it ends, or choose another folder"
            ) from error
        except OSError:
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break
        os.close(descriptor)  # its owner removed it just now: what we have locked is no longer there
    os.ftruncate(descriptor, 0)
    os.write(descriptor, (owner_line() + "\n").encode("utf-8", "replace"))
    return descriptor


def owner_line() -> str:
    """Who this process is, in words: user, machine, process, command, since when."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in some containers
        user = "somebody"
    command = " ".join([os.path.basename(sys.argv[0] or "python"), *sys.argv[1:2]])
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{user} on {platform.node()}, process {os.getpid()} ({command[:80]}), since {began}"
