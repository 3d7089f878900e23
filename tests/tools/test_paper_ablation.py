"""The road to the paper's model, dry: train by its recipe, evaluate, ablate on a generated MegaDepth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.paper_ablation import find_data, find_models, load_depth, score_depth, table_text, trained

from coam.data.megadepth import read_split
from coam.errors import ConfigError, DataError
from coam.models.registry import build_model, load_model, save_model
from coam.training.config import load_recipe
from support.megadepth_tree import write_scene
from support.simple_matchers import matches_of
from tools import paper_ablation

VALID = read_split("valid")[0]


def test_each_model_differs_from_the_full_one_in_one_thing() -> None:
    full, bare, small, nce = trained(load_recipe("cdunet-published")).values()
    assert replace(bare, model=full.model) == full
    assert {**bare.model.config, "conditioning": True} == {**full.model.config, "conditioning": True}
    assert replace(small, model=full.model) == full
    assert (full.model.config["encoder"], small.model.config["encoder"]) == ("resnet50", "efficientnet_b1")
    assert replace(nce, loss=full.loss) == full
    assert replace(nce.loss, kind="hinge") == full.loss
    for recipe in (full, bare, small):
        build_model(recipe.model.architecture, recipe.model.config)


def test_matches_are_judged_by_depth(tmp_path: Path) -> None:
    """True correspondences are right, shifted ones as far off as they were shifted, hidden ones wrong."""
    write_scene(tmp_path, VALID)
    pair = load_depth(tmp_path)[0]
    (_, view0), (_, view1) = (paper_ablation.read_view(tmp_path, pair.scene, k) for k in pair.photos)
    grid = torch.cartesian_prod(torch.arange(10.0, 190, 6), torch.arange(10.0, 150, 6))[None]
    motion = paper_ablation.relative_pose(view0.poses, view1.poses)
    true = view0.project(grid, view1, motion, paper_ablation.DEFAULT_DEPTH)
    start, end = grid[0][true.valid[0]].numpy(), true.points1[0][true.valid[0]].numpy()
    row = score_depth(pair, matches_of(start, end, (200, 160)))
    assert (row["mma@1"], row["judged"]) == (1.0, len(start))
    row = score_depth(pair, matches_of(start, end + np.array([4.0, 0]), (200, 160)))
    assert (row["mma@3"], row["mma@5"]) == (0.0, 1.0)
    hidden = grid[0][(true.occluded | true.outside)[0]].numpy()
    assert len(hidden) > 0
    row = score_depth(pair, matches_of(hidden, hidden, (200, 160)))
    assert row["mma@10"] == 0.0


def test_data_and_models_are_found(hpatches_root: Path, tmp_path: Path) -> None:
    write_scene(tmp_path / "MegaDepth", VALID)
    found = find_data(tmp_path, "valid", 5)
    assert list(found) == ["depth MegaDepth", "hpatches hpatches"]
    assert len(found["hpatches hpatches"][1]()) == 7
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no data"):
        find_data(tmp_path / "empty", "valid", 5)
    with pytest.raises(DataError, match="there is no model"):
        find_models(tmp_path, [])
    with pytest.raises(ConfigError, match="wanted NAME=FILE"):
        find_models(None, ["best=a.safetensors"])


def small_model(path: Path, **changes: object) -> Path:
    """The paper's network with a small encoder and decoder, and random weights."""
    torch.manual_seed(0)
    config = {
        "encoder": "efficientnet_lite1",
        "decoder_widths": [16, 16, 16, 16, 16],
        "projected_channels": [8, 8],
    }
    return save_model(build_model("cdunet", config | changes), path, path.stem)


def test_the_table_of_saved_models(
    hpatches_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(tmp_path / "full.safetensors")
    out = tmp_path / "out"
    arguments = [
        "table",
        str(hpatches_root),
        str(out),
        "--model",
        f"full={model}",
        "--limit",
        "1",
        "--device",
        "cpu",
    ]
    few = tuple(v for v in paper_ablation.VARIANTS if v.name in ("ours", "ours w/o conf", "ours (ref)"))
    monkeypatch.setattr(
        paper_ablation,
        "VARIANTS",
        tuple(replace(v, options=v.options | {"resolution": 64, "grid": 16}) for v in few),
    )
    paper_ablation.main(arguments)
    content = json.loads((out / "table.json").read_text())
    assert list(content["rows"]) == ["ours", "ours w/o conf", "ours (ref)"]
    assert content["weights"]["full"] == load_model(model).sha256
    text = (out / "table.md").read_text()
    assert text == table_text(content)
    assert "| ours w/o conf | " in text


def generated_megadepth(root: Path, scenes: int) -> Path:
    """So many scenes of the training split, and one of the held-out ones."""
    for scene in (*read_split("train")[:scenes], VALID):
        write_scene(root, scene)
    return root


def walk_the_road(root: Path, runs: Path, only: tuple[str, ...], steps: int, size: int) -> dict[str, float]:
    """Train by the published recipe, and measure on the held-out scene; returns losses of the full model."""
    arguments = ["train", str(root), str(runs), "--steps", str(steps), "--size", str(size), "--batch", "2"]
    paper_ablation.main([*arguments, "--device", "cpu", "--from-nothing", "--only", *only])
    lines = [json.loads(line) for line in (runs / "full" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == steps
    assert np.isfinite(lines[-1]["loss"])
    assert list((root / "cache" / "640").rglob("*.safetensors"))
    out = runs / "table"
    shown = ["table", str(root), str(out), "--runs", str(runs), "--count", "1", "--device", "cpu"]
    paper_ablation.main(shown)
    rows = json.loads((out / "table.json").read_text())["rows"]
    return {name: row[f"depth {root.name}"]["all"]["matches"]["value"] for name, row in rows.items()}


def test_the_road_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty scenes, one step of a small network, the row of the full model: the same commands as below."""
    monkeypatch.setattr(
        paper_ablation,
        "VARIANTS",
        (replace(paper_ablation.VARIANTS[0], options={"resolution": 64, "grid": 16}),),
    )
    small = load_recipe("cdunet-published")
    config = {"encoder": "efficientnet_lite1", "decoder_widths": (16, 16, 16, 16, 16)}
    monkeypatch.setattr(
        paper_ablation,
        "load_recipe",
        lambda name: replace(small, model=replace(small.model, config=config), log_every=1),
    )
    found = walk_the_road(
        generated_megadepth(tmp_path / "MegaDepth", 20), tmp_path / "runs", ("full",), 1, 64
    )
    assert found["ours"] > 0


@pytest.mark.slow
def test_the_whole_road_on_twenty_scenes(tmp_path: Path) -> None:
    """Train, evaluate and ablate CD-UNet (ResNet50, EfficientNet-B1) by the published recipe, a few steps."""
    root = generated_megadepth(tmp_path / "MegaDepth", 20)
    models = ("full", "no-conditioning", "b1", "nce")
    found = walk_the_road(root, tmp_path / "runs", models, 3, 64)
    assert list(found) == [variant.name for variant in paper_ablation.VARIANTS]
    assert all(value > 0 for value in found.values())
    files = {name: (tmp_path / "runs" / name / "model.safetensors").read_bytes() for name in models}
    assert len(set(files.values())) == len(models)
    # Complete: nothing is trained or matched again (matches of other weights would be refused).
    assert walk_the_road(root, tmp_path / "runs", models, 3, 64) == found
    for name, content in files.items():
        assert (tmp_path / "runs" / name / "model.safetensors").read_bytes() == content
