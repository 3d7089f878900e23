"""Atomic writes: a file or folder is whole, or it is not there at all.

Work goes to a temporary name beside its target and is renamed at the end. A block that fails, or a machine
that stops, leaves what was there before untouched. The temporary name says which process made it, so that the
next run can remove what a killed one left behind.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coam.errors import CoamError, DataError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEARLY_FULL = 1 << 20  # bytes left: a writer that fails now failed for want of space, whatever it says
_LEFTOVER = re.compile(r"\.coam-(\d+)-[0-9a-f]{12}")

StrPath = str | os.PathLike[str]


@contextmanager
def atomic_write(path: StrPath) -> Iterator[Path]:
    """Give an empty temporary file beside `path`, with its ending; rename it when the block succeeds.

    Missing folders are made. Links are followed, so that a linked file is replaced and not the link.
    """
    target = Path(os.path.realpath(path))
    if os.path.isdir(target):  # unlike its method, it takes a name that is too long
        raise DataError(f"{path}: is a folder; give the name of a file to write")
    temporary = _temporary_beside(target)
    with _one_line_error(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Made here, so that a folder that cannot be written is found out before the block does its work.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = stat.S_IMODE(temporary.stat().st_mode)
    try:
        with _one_line_error(path):
            yield temporary
            temporary.chmod(mode)  # some libraries replace the file by one that only its owner may read
            _sync(temporary)
            os.replace(temporary, target)
            with suppress(OSError):  # not every file system can sync a folder; the file itself is safe
                _sync(target.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: StrPath) -> Iterator[Path]:
    """Give an empty temporary folder beside `path` that takes its place when the block succeeds."""
    target = Path(os.path.realpath(path))
    temporary, old = _temporary_beside(target), _temporary_beside(target)
    with _one_line_error(path):
        temporary.mkdir(parents=True)
    try:
        with _one_line_error(path):
            yield temporary
            if target.exists():  # a rename cannot replace a folder that is not empty
                target.rename(old)
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: StrPath, text: str) -> Path:
    """Write `text` (UTF-8) to `path`, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: StrPath, value: Any, indent: int = 2) -> Path:
    """Write a JSON value to `path`, whole or not at all."""
    return write_text(path, json.dumps(value, indent=indent) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders of killed runs in `folder`; those of a running process stay."""
    if not folder.is_dir() or os.name != "posix":  # elsewhere a process cannot be asked for without harm
        return
    for path in folder.glob(".coam-*"):
        owner = _LEFTOVER.match(path.name)
        if owner is not None and not _is_running(int(owner[1])):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Refuse an output folder that could not be made or written into; it is not made here.

    Tried and not asked: to root everything looks allowed, also where the file system takes no files.
    """
    existing = _nearest_existing(folder)
    if not existing.is_dir():
        raise DataError(f"{existing}: is a file; give a folder")
    trial = _temporary_beside(existing / "trial")
    with _one_line_error(folder):
        trial.mkdir()
        trial.rmdir()


def require_space(path: Path, needed: int) -> None:
    """Refuse before a writer that no full disk may meet: HDF5 crashes the process, COLMAP aborts it."""
    if _free_bytes(path) < needed:
        raise disk_is_full(path)


def disk_is_full(path: StrPath) -> DataError:
    """The error to raise."""
    return DataError(
        f"{os.fspath(path)}: the disk is full; free some space and run the same command again, "
        "what is finished is kept"
    )


@contextmanager
def _one_line_error(path: StrPath) -> Iterator[None]:
    """Turn what any writer says about a path that cannot be written into one line that says what to do."""
    try:
        yield
    except CoamError:
        raise
    except Exception as error:
        number = getattr(error, "errno", None)
        # HDF5 and SQLite report a full disk as errors of their own kinds.
        if number in _FULL or (number is None and _free_bytes(Path(path)) < _NEARLY_FULL):
            raise disk_is_full(path) from error
        if not isinstance(error, OSError) or _names_another_place(error, Path(path)):
            raise
        reason = error.strerror or " ".join(str(error).split())
        raise DataError(
            f"{os.fspath(path)}: cannot be written ({reason}); check the folder and its permissions"
        ) from error


def _names_another_place(error: OSError, path: Path) -> bool:
    """Whether the error is about something that the block reads elsewhere, and not about what it writes."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    existing = _nearest_existing(path.parent)  # what is below it has not been made
    named, written = Path(os.path.realpath(error.filename)), Path(os.path.realpath(existing))
    return not (named.is_relative_to(written) or written.is_relative_to(named))


def _temporary_beside(target: Path) -> Path:
    return target.with_name(f".coam-{os.getpid()}-{secrets.token_hex(6)}{target.suffix}")


def _nearest_existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if os.path.lexists(parent))


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(_nearest_existing(path)).free
    except OSError:  # a dangling link, a folder nobody may enter: not a matter of space
        return _NEARLY_FULL


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
