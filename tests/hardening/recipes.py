"""Hostile recipes: YAML that is none, and settings that no network or training could have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch

from coam.models.registry import config_from_dict
from coam.stylization.network import StylizerConfig, StylizerNetwork
from coam.stylization.recipe import StylizeRecipe, load_stylize_recipe
from coam.training.config import load_recipe
from coam.training.run import build_start
from hardening.attempts import Attack, command_line

START = (
    "name: a\nsources: [{kind: plane, path: photos}]\nphases: [{steps: 1, size: 64, batch: 1, points: 8}]\n"
)
NOT_YAML = {
    "empty": b"",
    "number": b"7",
    "list": b"[1]",
    "text": b"text",
    "null": b"~",
    "nul-bytes": b"\0" * 100,
    "not-utf-8": b"name: \xff\xfe\n",
    "utf-16": START.encode("utf-16"),
    "tab": b"a:\n\t- b",
    "two": b"--- 1\n--- 2",
    "deep-lists": b"[" * 100_000,
    "deep-objects": b"{a: " * 5_000,
    "deep-dashes": b"- " * 20_000,
    "laughs": b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    "itself": b"a: &a [*a]",
    "python": b"!!python/object/apply:os.system ['touch was_run']",
    "python-name": b"a: !!python/name:os.system",
    "own-tag": b"!thing {a: 1}",
    "binary": b"a: !!binary '####'",
    "date": b"name: 2020-99-99",
    "set": b"!!set {a, b}",
    "large": b"# " + b"x" * 3_000_000,
    "long-number": b"seed: " + b"9" * 100_000,
    "merge": b"<<: 3",
    "timestamp": b"seed: 2020-01-01T00:00:00Z",
    "key-list": b"? [a, b]\n: c",
    "open-quote": b"name: 'a",
    "sexagesimal": b"seed: 1:" + b"59:" * 5000 + b"59",
    "hex": b"seed: 0x" + b"f" * 5000,
}
VALUES = (
    "0",
    "-1",
    "1.5",
    "''",
    "[]",
    "{}",
    "~",
    "true",
    "[[]]",
    "[0]",
    "[-1, 2]",
    "1e308",
    "-.inf",
    ".nan",
    "x",
    "99999999999",
    str(2**63),
    "[1, [2]]",
    "{a: 1}",
    "[65536, 65536, 65536]",
    "'\\0'",
)
PLACES = (
    "name: {}",
    "seed: {}",
    "bank_side: {}",
    "max_groups: {}",
    "wrong_pairs: {}",
    "log_every: {}",
    "save_every: {}",
    "styles: {}",
    "adain: {}",
    "sources: {}",
    "sources: [{}]",
    "sources: [{{kind: {}, path: photos}}]",
    "sources: [{{kind: plane, path: {}}}]",
    "sources: [{{kind: plane, path: photos, share: {}}}]",
    "sources: [{{kind: plane, path: photos, options: {}}}]",
    "phases: {}",
    "phases: [{}]",
    "phases: [{{steps: {}}}]",
    "phases: [{{steps: 1, size: {}}}]",
    "phases: [{{steps: 1, batch: {}}}]",
    "phases: [{{steps: 1, points: {}}}]",
    "model: {}",
    "model: {{architecture: {}}}",
    "model: {{config: {}}}",
    "model: {{start: {}}}",
    "model: {{encoder_weights: {}}}",
    *(
        f"model: {{{{config: {{{{{field}: {{}}}}}}}}}}"
        for field in (
            "width",
            "heads",
            "rounds",
            "decoder_widths",
            "descriptor_channels",
            "fine_channels",
            "encoder",
            "conditioning",
            "distinctiveness",
            "window",
        )
    ),
    *(
        f"model: {{{{architecture: cdunet, config: {{{{{field}: {{}}}}}}}}}}"
        for field in ("encoder", "projected_channels", "decoder_widths", "attention_value", "attention_scale")
    ),
    *(
        f"model: {{{{architecture: capsnet, config: {{{{{field}: {{}}}}}}}}}}"
        for field in ("coattention", "encoder")
    ),
    "loss: {}",
    "loss: {{kind: {}}}",
    "loss: {{points: {}}}",
    "loss: {{margin: {}}}",
    "loss: {{fine_radius: {}}}",
    "optimiser: {}",
    "optimiser: {{lr: {}}}",
    "optimiser: {{warmup: {}}}",
    "optimiser: {{ema: {}}}",
    "unknown: {}",
)


STYLIZER = """\
name: a
trains: stylizer
sources: [{path: photos}]
phases: [{until: 1.0}]
steps: 5
"""
STYLIZER_PLACES = (
    *(f"{field.name}: {{}}" for field in fields(StylizeRecipe)),
    *(f"sources: [{{{{path: a, {field}: {{}}}}}}]" for field in ("share", "aligned", "light", "copies")),
    *(f"phases: [{{{{{field}: {{}}}}}}]" for field in ("until", "size", "batch")),
    *(f"network: {{{{{field.name}: {{}}}}}}" for field in fields(StylizerConfig)),
)


def attacks(folder: Path, every: int = 1) -> Iterator[Attack]:
    """`every`: only each so manyth of the settings."""
    for name, content in NOT_YAML.items():
        yield Attack("recipes", f"train-{name}", partial(_by_command, content))
    settings = [
        (start, read, place, value)
        for start, places, read in ((START, PLACES, _read), (STYLIZER, STYLIZER_PLACES, _read_stylizer))
        for place in places
        for value in VALUES
    ]
    for number, (start, read, place, value) in enumerate(settings, 1):
        if number % every == 0:
            text = place.format(value)
            kept = "".join(
                f"{line}\n" for line in start.splitlines() if line.split(":")[0] != text.split(":")[0]
            )
            yield Attack("recipes", f"{text!r}"[:80], partial(read, (kept + text + "\n").encode()))


def _read(content: bytes, folder: Path) -> str:
    path = folder / "recipe.yaml"
    path.write_bytes(content)
    build_start(load_recipe(path), folder)
    return "read"


def _read_stylizer(content: bytes, folder: Path) -> str:
    path = folder / "recipe.yaml"
    path.write_bytes(content)
    recipe = load_stylize_recipe(path)
    with torch.device("meta"):
        StylizerNetwork(config_from_dict(StylizerConfig, recipe.network))
    recipe.phase_at(0.5)
    return "read"


def _by_command(content: bytes, folder: Path) -> str:
    path = folder / "recipe.yaml"
    path.write_bytes(content)
    (folder / "data").mkdir()
    word = command_line("train", path, "--data", folder / "data", "-o", folder / "run", "--device", "cpu")
    raise AssertionError(f"a recipe without photos was trained: {word}")
