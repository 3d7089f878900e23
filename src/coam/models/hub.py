"""A model as a folder, in the way of model hubs: `config.json`, `model.safetensors`, and a card to read.

The weights file of ours says everything itself; `config.json` says it for files whose metadata does not
(converted or saved by other programs). Nothing in such a folder is ever run.
"""

from __future__ import annotations

import json
from pathlib import Path

from coam.errors import WeightsError
from coam.store.documents import parse_json, read_json

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
_AS_TEXT = ("format", "name", "architecture")
_AS_JSON = ("config", "preprocessing", "card")


def weights_in(folder: Path) -> Path:
    """The weights file of a folder: `model.safetensors`, or its only .safetensors file."""
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise WeightsError(
            f"{folder}: holds {len(found) or 'no'} .safetensors files and none is called {WEIGHTS};"
            " give the file itself"
        )
    return found[0]


def metadata_in(folder: Path) -> dict[str, str]:
    """What `config.json` says, in the form of a weights file's metadata; empty where there is none."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    values = read_json(path, dict, f"get the folder again, or give the {WEIGHTS} in it", WeightsError)
    texts = {key: str(values[key]) for key in _AS_TEXT if key in values}
    return texts | {"card": "{}"} | {key: json.dumps(values[key]) for key in _AS_JSON if key in values}


def config_of(metadata: dict[str, str]) -> dict[str, object]:
    """The values of `config.json` from a weights file's metadata."""
    texts: dict[str, object] = {key: metadata[key] for key in _AS_TEXT if key in metadata}
    return texts | {key: parse_json(metadata[key]) for key in _AS_JSON if key in metadata}
