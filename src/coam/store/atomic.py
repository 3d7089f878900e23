"""Atomic writes: a file or folder is whole, or it is not there at all.

Work goes to a temporary folder beside its target and is moved at the end: what a library leaves beside the
file that it writes is in there too. A block that fails, or a machine that stops, leaves what was there before
untouched. The folder's name says which process of which machine made it; the next process that writes beside
it removes what a killed one left behind.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
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
_LEFTOVER = re.compile(r"\.coam-(?:(?P<host>[0-9a-f]{8})-)?(?P<process>\d+)-[0-9a-f]{12}")
_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_own: set[str] = set()  # names of temporary folders of this process
_cleaned: set[str] = set()  # folders in which this process has looked for leftovers

StrPath = str | os.PathLike[str]


@contextmanager
def atomic_write(path: StrPath) -> Iterator[Path]:
    """Give an empty temporary file with the name of `path`; move it there when the block succeeds.

    Missing folders are made. Links are followed, so that a linked file is replaced and not the link.
    """
    target = Path(os.path.realpath(path))
    if os.path.isdir(target):  # unlike its method, it takes a name that is too long
        raise DataError(f"{path}: is a folder; give the name of a file to write")
    holder = _temporary_beside(target)
    temporary = holder / target.name
    try:
        with _one_line_error(path, temporary):
            target.parent.mkdir(parents=True, exist_ok=True)
            _clean_once(target.parent)
            # Made here, so that a folder that cannot be written is found out before the block does its work.
            holder.mkdir()
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            mode = stat.S_IMODE(temporary.stat().st_mode)
            yield temporary
            temporary.chmod(mode)  # some libraries replace the file by one that only its owner may read
            _sync(temporary)
            os.replace(temporary, target)
            with suppress(OSError):  # not every file system can sync a folder; the file itself is safe
                _sync(target.parent)
    finally:
        shutil.rmtree(holder, ignore_errors=True)
        _own.discard(holder.name)


@contextmanager
def atomic_folder(path: StrPath) -> Iterator[Path]:
    """Give an empty temporary folder beside `path` that takes its place when the block succeeds."""
    target = Path(os.path.realpath(path))
    temporary, old = _temporary_beside(target), _temporary_beside(target)
    with _one_line_error(path, temporary):
        temporary.mkdir(parents=True)
        _clean_once(target.parent)
    try:
        with _one_line_error(path, temporary):
            yield temporary
            if target.exists():  # a rename cannot replace a folder that is not empty
                target.rename(old)
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        _own.difference_update((temporary.name, old.name))


def write_text(path: StrPath, text: str) -> Path:
    """Write `text` (UTF-8) to `path`, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_json(path: StrPath, value: Any, indent: int = 2) -> Path:
    """Write a JSON value to `path`, whole or not at all."""
    return write_text(path, json.dumps(value, indent=indent) + "\n")


def remove_folder(folder: Path) -> None:
    """Remove a folder whole or not at all: a run that is killed leaves no half of it under its name."""
    if folder.is_dir():
        doomed = _temporary_beside(folder)
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders of killed runs in `folder`; those of a running process stay.

    So do those of another machine that shares the disk: nobody here knows what runs there.
    """
    if not folder.is_dir() or os.name != "posix":  # elsewhere a process cannot be asked for without harm
        return
    for path in folder.glob(".coam-*"):
        made = _LEFTOVER.match(path.name)
        if made is None or path.name in _own or made["host"] not in (_HOST, None):
            continue
        process = int(made["process"])
        # What has our own number and is not ours is of a dead one: in containers numbers come again.
        if (made["host"] and process == os.getpid()) or not _is_running(process):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _clean_once(folder: Path) -> None:
    if str(folder) not in _cleaned:
        _cleaned.add(str(folder))
        remove_leftovers(folder)


def check_folder(folder: Path) -> None:
    """Refuse an output folder that could not be made or written into; it is not made here.

    Tried and not asked: to root everything looks allowed, also where the file system takes no files.
    """
    existing = _nearest_existing(folder)
    if not existing.is_dir():
        raise DataError(f"{existing}: is a file; give a folder")
    trial = _temporary_beside(existing / "trial")
    with _one_line_error(folder, trial):
        trial.mkdir()
        trial.rmdir()
    _own.discard(trial.name)


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
def _one_line_error(path: StrPath, temporary: Path) -> Iterator[None]:
    """Turn what any writer says about a path that cannot be written into one line that says what to do.

    No line names the temporary file: nobody has asked for that one.
    """
    try:
        yield
    except CoamError as error:
        if str(temporary) not in str(error):
            raise
        raise type(error)(str(error).replace(str(temporary), os.fspath(path))) from error
    except Exception as error:
        number = _system_error(error)
        # SQLite reports a full disk as an error of its own kind.
        if number in _FULL or (number is None and _free_bytes(Path(path)) < _NEARLY_FULL):
            raise disk_is_full(path) from error
        ours = number is not None and not _names_another_place(error, Path(path))
        if not ours and str(temporary) not in str(error):
            raise
        reason = os.strerror(number) if number else " ".join(str(error).split())
        reason = reason.replace(str(temporary), os.path.basename(path))
        raise DataError(
            f"{os.fspath(path)}: cannot be written ({reason}); check the folder and its permissions"
        ) from error


def _system_error(error: Exception) -> int | None:
    """The number of the system's error behind `error`; None where there is none.

    HDF5 and safetensors name it in their text only.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    named = re.search(r"\b(?:errno =|os error) (\d+)", str(error))
    return int(named[1]) if named else (0 if isinstance(error, OSError) else None)


def _names_another_place(error: Exception, path: Path) -> bool:
    """Whether the error is about something that the block reads elsewhere, and not about what it writes."""
    filename = getattr(error, "filename", None)
    if not isinstance(filename, str | os.PathLike):
        return False
    existing = _nearest_existing(path.parent)  # what is below it has not been made
    named, written = Path(os.path.realpath(filename)), Path(os.path.realpath(existing))
    return not (named.is_relative_to(written) or written.is_relative_to(named))


def _temporary_beside(target: Path) -> Path:
    beside = target.with_name(f".coam-{_HOST}-{os.getpid()}-{secrets.token_hex(6)}")
    _own.add(beside.name)
    return beside


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
