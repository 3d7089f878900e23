"""Our own JSON and YAML files, read with bounds: what is damaged or hostile is one line, at once.

A file may be of any size, nest without end, hold numbers that nothing can, or other types than expected.
Every JSON or YAML file of ours is read here: at most `MOST_BYTES`, `MOST_DEPTH` levels, no numbers beyond 64
bits, no references (a YAML file of a kilobyte can stand for gigabytes through them), and of the shape that is
given.

A shape is a type or a tuple of types; [shape] for lists, [shape, shape] for lists of just so many; {"name":
shape} for objects, whose named values are checked where they are there; Whole({"name": shape}) for objects
that must have them all; {str: shape} for objects with any names.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coam.errors import CoamError, ConfigError, DataError, import_extra
from coam.store.atomic import StrPath, write_json
from coam.store.checksums import content_digest

MOST_BYTES = 64 << 20
MOST_YAML_BYTES = 1 << 20  # recipes are small, and YAML is slow to read
MOST_DEPTH = 64
_SEAL = "sha256"


class Whole(dict[str, Any]):
    """The shape of an object that lacks none of these names."""


def read_text(
    path: StrPath, advice: str, kind: type[CoamError] = DataError, most_bytes: int = MOST_BYTES
) -> str:
    """A text file (UTF-8) of bounded size; `kind` is raised for what is none."""
    name = os.fspath(path)
    try:
        if not os.path.isfile(path):  # a pipe or a device would wait for ever
            what = "is a folder" if os.path.isdir(path) else "no such file"
            raise kind(f"{name}: {what}; {advice}")
        if os.path.getsize(path) > most_bytes:
            raise kind(f"{name}: has more than {most_bytes >> 20} MB; {advice}")
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise kind(f"{name}: cannot be read ({error.strerror}); {advice}") from error
    except ValueError as error:
        raise kind(f"{name}: is not a text file in UTF-8; {advice}") from error


@contextmanager
def one_line_for_damage(path: Path, form: str, advice: str) -> Iterator[None]:
    """Around the reader of a file of ours: a file that is none of that `form` is one line."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}; give {advice}")
    try:
        yield
    except CoamError:
        raise
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    except Exception as error:  # a damaged or foreign file can make its reader raise anything at all
        raise DataError(f"{path}: is damaged or not {form}; write it again with coam match") from error


def read_json(
    path: StrPath, shape: Any = dict, advice: str = "write it again", kind: type[CoamError] = DataError
) -> Any:
    """The value of a JSON file. An object that `write_sealed_json` wrote comes back without its checksum."""
    text = read_text(path, advice, kind)
    try:
        value = parse_json(text)
        if isinstance(value, dict):
            _unseal(value)
        check_shape(value, shape)
    except ValueError as error:
        raise kind(f"{os.fspath(path)}: is damaged ({error}); {advice}") from error
    return value


def write_sealed_json(path: StrPath, value: Mapping[str, Any]) -> Path:
    """Write a JSON object with its checksum, whole or not at all."""
    return write_json(path, {**value, _SEAL: content_digest(value, {})})


def _unseal(value: dict[str, Any]) -> None:
    """Take the checksum out of an object, where it has one; a `ValueError` where it is not that of the rest.

    Files from before have none. So one is known by its value too: damage to its name must not hide it.
    """
    for name in [name for name, item in value.items() if name == _SEAL or _is_digest(item)]:
        rest = {other: item for other, item in value.items() if other != name}
        fits = value[name] == content_digest(rest, {})
        if fits != (name == _SEAL):
            raise ValueError("its checksum is another")
        if fits:
            del value[name]


def _is_digest(item: Any) -> bool:
    return isinstance(item, str) and len(item) == 64


def require_json(value: Any, where: str) -> None:
    """Refuse a value that JSON cannot hold; `where` names what holds it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where} holds a value that JSON cannot ({error}); use plain values only"
        ) from error


def parse_json(text: str) -> Any:
    """The value of a JSON text; a `ValueError` in one line for what is none."""
    _check_depth(text)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {_one_line(error)}") from error
    _check_numbers(value)
    return value


def read_yaml(path: StrPath, advice: str = "mend it", kind: type[CoamError] = DataError) -> Any:
    """The plain values of a YAML file."""
    yaml = import_extra("yaml", "train")
    text = read_text(path, advice, kind, MOST_YAML_BYTES)

    def compose(loader: Any, parent: Any, index: Any) -> Any:
        """Plain values only, without references, to a bounded depth."""
        if loader.check_event(yaml.AliasEvent):
            raise ValueError("references (*name) are not allowed")
        depth[0] += 1
        if depth[0] > MOST_DEPTH:
            raise ValueError("it nests too deeply")
        node = yaml.SafeLoader.compose_node(loader, parent, index)
        depth[0] -= 1
        return node

    depth = [0]
    bounded = type("BoundedLoader", (yaml.SafeLoader,), {"compose_node": compose})
    try:
        value = yaml.load(text, bounded)
        _check_numbers(value, finite=False)  # recipes say which of their fields is no number
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise kind(f"{os.fspath(path)}: cannot be read as YAML ({_one_line(error)}); {advice}") from error
    return value


def check_shape(value: Any, shape: Any, where: str = "") -> None:
    """Raise a `ValueError` that names the first place where `value` has another shape."""
    if isinstance(shape, list):
        _check_type(value, list, where)
        if len(shape) not in (1, len(value)):
            raise ValueError(f"{where or 'it'} has {len(value)} values and not {len(shape)}")
        for number, item in enumerate(value):
            check_shape(item, shape[number % len(shape)], f"{where}[{number}]")
    elif isinstance(shape, dict):
        _check_type(value, dict, where)
        if isinstance(shape, Whole) and (lacking := shape.keys() - value.keys()):
            raise ValueError(f"{where or 'it'} lacks {min(lacking)}"[:200])
        for name, item in value.items():
            inner = shape.get(name, shape.get(str))
            if inner is not None:
                check_shape(item, inner, f"{where}.{name}" if where else name)
    else:
        _check_type(value, shape, where)


def _check_type(value: Any, kind: Any, where: str) -> None:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    fits = isinstance(value, (*kinds, int) if float in kinds else kinds)
    if not fits or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
        raise ValueError(f"{where or 'it'} is no {names}"[:200])


def _check_depth(text: str) -> None:
    """Of brackets outside of strings; before the parser, which goes as deep as they do."""
    depth, quoted = 0, False
    for found in re.finditer(r'\\.|["\[\]{}]', text, re.DOTALL):
        mark = found[0]
        if mark == '"':
            quoted = not quoted
        elif mark in "[{" and not quoted:
            depth += 1
            if depth > MOST_DEPTH:
                raise ValueError("it nests too deeply")
        elif mark in "]}" and not quoted:
            depth -= 1


def _check_numbers(value: Any, finite: bool = True) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set):
            waiting += item
        elif isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise ValueError("it holds a number beyond 64 bits")
        elif finite and isinstance(item, float) and not math.isfinite(item):
            raise ValueError("it holds a number that is not finite")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
