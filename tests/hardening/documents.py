"""Our own JSON with wrong types, huge numbers and deep nesting: settings, summaries, model cards, reports."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import coam.matcher.matcher
from coam.backends import open_network
from coam.evaluation.predictions import PredictionStore
from coam.matcher import Matcher
from coam.matching.settings import MatcherConfig
from coam.models.registry import load_model, save_model
from coam.sfm.model_folder import ModelFolder
from coam.sfm.workspace import load_model as load_sfm_model
from coam.store.checksums import content_digest
from coam.store.documents import read_json
from coam.store.tensor_files import read_safetensors, write_safetensors
from hardening.attempts import Attack, command_line
from support.small_networks import small_stacked

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x" * 10_000,
    "\x1b[2J",
    [],
    {},
    [[]],
    {"a": {}},
    [1] * 1000,
)
TEXTS = {
    "empty": "",
    "text": "no json",
    "null": "null",
    "list": "[]",
    "number": "7",
    "string": '"a"',
    "open": '{"a": ',
    "deep-lists": "[" * 200_000,
    "deep-objects": '{"a":' * 100_000,
    "deep-closed": "[" * 3000 + "]" * 3000,
    "long-number": "1" * 200_000,
    "exponent": "1e" + "9" * 1000,
    "nan": "NaN",
    "lone-surrogate": '"\\ud800"',
    "same-keys": '{"matcher": {}, "matcher": 3}',
    "quotes": '"' * 99_999,
    "control": '{"a": "\x01"}',
}


def changed(value: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a JSON value with one place replaced by something else, taken away, or left alone."""
    for path in _places(value):
        for other in VALUES:
            yield f"{'.'.join(map(str, path))}={other!r}"[:70], _replaced(value, path, other)
        if path:
            yield f"{'.'.join(map(str, path))} gone", _replaced(value, path, ...)
        if len(path) == 1:
            yield f"{path[0]} alone", {path[0]: value[path[0]]}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in list(value)[:40]:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from _places(value[0], (*path, 0))


def _replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if other is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = other
    return changed


REPORT = {
    "benchmark": "hpatches",
    "matcher": {"matcher": "a"},
    "settings": {"k": 1},
    "curve_axes": ["x", "y"],
    "curves": {"all": [[1.0, 0.5], [2.0, None]]},
    "tables": {},
    "pairs": [
        {"name": f"s{n}/1-2", "sequence": f"s{n}", "subsets": ["all"], "row": {"a": 0.5, "matches": "nan"}}
        for n in range(9)
    ],
}


Document = tuple[str, str, Any, Callable[[Path], object]]  # name, file's name, value, reader of its folder


def attacks(model_folder: Path, work: Path, every: int = 1) -> Iterator[Attack]:
    """`model_folder`: a finished one of `coam sfm`; `every`: only each so manyth change."""
    work.mkdir(parents=True, exist_ok=True)
    identity = {"matcher": {"name": "a", "settings": {"resolution": 640}}, "weights": "abc", "format": 2}
    documents: list[Document] = [
        ("settings", "settings.json", read_json(model_folder / "settings.json"), _settings),
        (
            "summary",
            "summary.json",
            read_json(model_folder / "summary.json"),
            partial(_summary, model_folder),
        ),
        ("predictions", "predictions.json", identity, lambda folder: PredictionStore(folder, identity)),
        ("compare", "report.json", REPORT, _compare),
    ]
    number = 0
    for name, file, value, reader in documents:
        for kind, text in TEXTS.items():
            yield Attack("documents", f"{name}-{kind}", partial(_read_text, file, text, reader))
        for kind, other in changed(value):
            number += 1
            if number % every == 0:
                yield Attack(
                    "documents", f"{name}-{kind}", partial(_read_value, file, other, number % 2 == 0, reader)
                )
    save_model(
        small_stacked(),
        work / "sound.safetensors",
        "sound",
        {"licence": "x", "pair_score": {"weights": [1.0, 2.0, 3.0, 4.0], "bias": 0.5, "threshold": 0.5}},
        torch.int8,  # a small file: it is written and read for every attack
    )
    tensors, metadata = read_safetensors(work / "sound.safetensors")
    for key in metadata:
        for kind, text in {**TEXTS, "gone": None}.items():
            yield Attack("documents", f"card-{key}-{kind}", partial(_card, tensors, metadata, key, text))
        if metadata[key].startswith("{"):
            for kind, other in changed(json.loads(metadata[key])):
                number += 1
                if number % every == 0:
                    text = json.dumps(other)
                    yield Attack(
                        "documents", f"card-{key}.{kind}", partial(_card, tensors, metadata, key, text)
                    )


def _read_text(file: str, text: str, reader: Callable[[Path], object], folder: Path) -> str:
    (folder / file).write_text(text, encoding="utf-8", errors="surrogatepass")
    return str(reader(folder) or "read")


def _read_value(file: str, value: Any, sealed: bool, reader: Callable[[Path], object], folder: Path) -> str:
    if sealed and isinstance(value, dict):  # who can write a file can write its checksum, too
        value = {**value, "sha256": content_digest(value, {})}
    return _read_text(file, json.dumps(value), reader, folder)


_weights, _network = cache(load_model), cache(open_network)  # once in a process, not for every attack


def _settings(folder: Path) -> None:
    """What `coam localize` does with settings.json: a matcher that is as its model's was."""
    from coam.cli.localize import loads_as_made

    matcher = coam.matcher.matcher
    with patch.object(matcher, "load_model", _weights), patch.object(matcher, "open_network", _network):
        loads_as_made(folder, None, "cpu", None)()


def _summary(model: Path, folder: Path) -> str:
    """A model beside the summary: it is loaded, or refused as damaged."""
    shutil.copytree(model / "sparse", folder / "sparse")
    shutil.copy(model / "keypoints.h5", folder)
    files = ModelFolder(folder)
    summary = files.read_summary()
    if summary is not None:
        files.damaged(summary)
    load_sfm_model(folder)
    return "same"


def _compare(folder: Path) -> str:
    return command_line("eval", "compare", folder, folder, "-o", folder / "out")


def _card(tensors: dict[str, Any], metadata: dict[str, str], key: str, text: str | None, folder: Path) -> str:
    other = {name: value for name, value in metadata.items() if name != key}
    path = folder / "a.safetensors"
    text = None if text is None else text.encode("utf-8", "replace").decode()
    write_safetensors(path, tensors, other | ({} if text is None else {key: text}))
    Matcher(load_model(str(path)), MatcherConfig(), torch.device("cpu"))
    return "read"
