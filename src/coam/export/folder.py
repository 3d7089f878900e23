"""A model written as a folder for a model hub: configuration, weights, card."""

from __future__ import annotations

import shutil
from pathlib import Path

from coam.models.hub import CARD, CONFIG, WEIGHTS, config_of
from coam.models.registry import ModelFile, packaged_weights, save_model
from coam.store.atomic import atomic_write, write_json
from coam.store.tensor_files import read_safetensors


def export_folder(file: ModelFile, folder: Path) -> list[Path]:
    """Write `config.json`, `model.safetensors` and, where there is one, the model's card as `README.md`."""
    weights = save_model(file.model, folder / WEIGHTS, file.name, file.card)
    _, metadata = read_safetensors(weights)
    write_json(folder / CONFIG, config_of(metadata), indent=1)
    written = [folder / CONFIG, weights]
    packaged = packaged_weights(file.name)
    card = packaged.with_suffix(".md") if packaged is not None else None
    if card is not None and card.is_file():
        with atomic_write(folder / CARD) as temporary:
            shutil.copyfile(card, temporary)
        written.append(folder / CARD)
    return written
