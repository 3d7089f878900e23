"""Training from camera poses alone: the objective, recipes, resuming, and that it really learns to match."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from coam import samples
from coam.capsnet.objective import EpipolarObjective
from coam.capsnet.pairs import PosedBatch
from coam.data.mixture import Mixture
from coam.errors import ConfigError, DataError
from coam.losses.correspondence import sample as sample_map
from coam.models.network import DescriptorNetwork
from coam.models.registry import load_model
from coam.training.config import LossSpec, ModelSpec, OptimiserSpec, Phase, Recipe, SourceSpec, load_recipe
from coam.training.log import print_line, read_log
from coam.training.loop import make_fabric
from coam.training.objective import build_source
from coam.training.run import build_start, run_recipe, train
from support import tiny

SMALL = {
    "encoder": "efficientnet_lite1",
    "coattention": (16,),
    "decoder_widths": (24, 32),
    "descriptor_channels": 32,
}
POSED = Recipe(
    name="posed",
    model=ModelSpec("capsnet", SMALL),
    sources=(SourceSpec("colmap", ".", options={"choice": {"max_rotation": 30.0}}),),
    phases=(Phase(3, 64, 2, 32),),
    loss=LossSpec(kind="epipolar", coarse=1.0, fine=1.0),
    optimiser=OptimiserSpec(lr=1e-3, warmup=2),
    log_every=1,
    save_every=2,
    seed=3,
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def courtyard() -> Path:
    """A data root: images/ and a COLMAP model of exact cameras."""
    return samples.courtyard().model_dir


@pytest.fixture(scope="module")
def source(courtyard: Path) -> Mixture[PosedBatch]:
    return build_source(POSED, courtyard, CPU)


def run(source: Mixture[PosedBatch], folder: Path, **options: object) -> None:
    start = build_start(POSED, Path()).model
    train(POSED, source, start, folder, make_fabric("cpu"), **options)  # type: ignore[arg-type]


def test_a_run_from_poses_and_what_it_writes(source: Mixture[PosedBatch], tmp_path: Path) -> None:
    run(source, tmp_path)
    lines = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        cycle = line["cycle_coarse"] + line["cycle_fine"]
        whole = line["epipolar_coarse"] + line["epipolar_fine"] + 0.1 * cycle
        assert line["loss"] == pytest.approx(whole, abs=1e-5)
        assert 0 < line["epipolar_coarse"] < 0.3  # shares of the side, outliers left out
        assert 0 <= line["accuracy"] <= 1
        assert line["valid"] > 0.3
        assert line["gradient"] > 0
        print_line(line)
    file = load_model(tmp_path / "model.safetensors")
    assert (file.architecture, file.name, file.card["steps"]) == ("capsnet", "posed", 3)


class Stop(Exception):
    pass


def test_a_stopped_run_ends_like_an_unbroken_one(source: Mixture[PosedBatch], tmp_path: Path) -> None:
    def stop(line: dict[str, float]) -> None:
        if line["step"] == 3:
            raise Stop

    run(source, tmp_path / "unbroken")
    with pytest.raises(Stop):
        run(source, tmp_path / "broken", report=stop)
    run(source, tmp_path / "broken")
    for name in ("checkpoint.safetensors", "model.safetensors"):
        tiny.assert_equal_files(tmp_path / "broken" / name, tmp_path / "unbroken" / name)


def test_every_weight_gets_a_gradient(source: Mixture[PosedBatch]) -> None:
    model = build_start(POSED, Path()).model
    batch = source.sample(2, 64, 64, torch.Generator().manual_seed(0))
    EpipolarObjective(model.train(), POSED.loss)(**batch.tensors())["loss"].backward()
    lost = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert lost == []


class Waits(TorchDispatchMode):
    """Notes operations that copy between host and device or need a value: a CUDA graph cannot hold them."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "unique", "bincount")

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function)
        chosen_by_mask = "aten.index" in name and any(
            isinstance(t, torch.Tensor) and t.dtype == torch.bool for t in tree_flatten(args[1])[0]
        )
        if chosen_by_mask or any(wait in name for wait in self.NAMES):
            self.found.add(name)
        return function(*args, **(kwargs or {}))


def test_nothing_in_a_step_waits_for_the_device(courtyard: Path, data: Path) -> None:
    sources = (
        SourceSpec("colmap", str(courtyard)),
        SourceSpec("world", str(data / "photos")),
        SourceSpec("plane", str(data / "photos")),
    )
    source = build_source(replace(POSED, sources=sources, bank_side=64), Path("/"), CPU)
    assert source.recordable
    model = build_start(POSED, Path()).model.train()
    objective, generator = EpipolarObjective(model, POSED.loss), torch.Generator().manual_seed(0)
    with Waits() as waits:
        for _ in range(2):
            waits.found.clear()  # the first time constants are made, and kept
            objective(**source.sample(6, 64, 32, generator).tensors())["loss"].backward()
    assert waits.found == set()


class Perfect(torch.nn.Module):
    """Descriptors that say where a pixel of the (shifted) picture is: every match is right."""

    coarse_logit_scale = torch.tensor(60.0)
    logit_scale = torch.tensor(1500.0)

    def __init__(self, shift: tuple[float, float]) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, image0: torch.Tensor, image1: torch.Tensor) -> tuple[object, object]:
        from coam.models.outputs import DenseDescriptors

        def unit(stride: int, shift: tuple[float, float]) -> torch.Tensor:
            count = image0.shape[-1] // stride
            place = (torch.arange(count) + 0.5) * stride - 0.5
            x, y = ((place - s) / 64 for s in shift)
            angles = torch.stack([x[None].expand(count, count), y[:, None].expand(count, count)])
            features = torch.cat([angles.cos(), angles.sin()])
            return (features / features.norm(dim=0)).expand(len(image0), -1, -1, -1)

        size = (image0.shape[-2], image0.shape[-1])
        return tuple(
            DenseDescriptors(unit(4, s), torch.ones(1), 4, size, coarse=unit(16, s))
            for s in ((0.0, 0.0), self.shift)
        )  # type: ignore[return-value]


def posed_fields(shift: tuple[float, float]) -> dict[str, torch.Tensor]:
    """Two cameras side by side before a plane: everything moves by `shift` along x, and lines are rows."""
    grid = torch.stack(
        torch.meshgrid(torch.arange(24.0, 96, 9), torch.arange(24.0, 96, 9), indexing="xy"), -1
    )
    points0 = grid.reshape(1, -1, 2)
    valid = torch.ones(1, points0.shape[1], dtype=torch.bool)
    fundamental = torch.tensor([[[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]])
    image = torch.zeros(1, 3, 128, 128)
    points1 = points0 + torch.tensor(shift)
    return {
        "image0": image, "image1": image, "points0": points0, "points1": points1, "valid0": valid,
        "valid1": valid, "fundamental": fundamental,
    }  # fmt: skip


def test_the_objective_is_small_at_the_truth_and_grows_with_planted_error() -> None:
    found = []
    for off in (0.0, 3.0, 6.0):
        shift = (8.0, 0.0)
        objective = EpipolarObjective(Perfect((shift[0], off)), POSED.loss)
        figures = objective(**posed_fields(shift))
        found.append({key: float(value) for key, value in figures.items()})
    assert found[0]["epipolar_fine"] < 0.5 / 128  # half a pixel: the window cuts off what lies at its border
    assert found[0]["cycle_fine"] < 1.0 / 128
    assert found[0]["accuracy"] == 1.0
    assert found[1]["error"] == pytest.approx(3.0, abs=0.4)
    assert found[2]["error"] == pytest.approx(6.0, abs=0.4)
    assert found[2]["accuracy"] == 0.0
    assert found[0]["loss"] < found[1]["loss"] < found[2]["loss"]


def test_points_that_cannot_be_seen_do_not_count() -> None:
    objective = EpipolarObjective(Perfect((8.0, 6.0)), POSED.loss)
    fields = posed_fields((8.0, 0.0))
    nothing = torch.zeros_like(fields["valid0"])
    figures = objective(**{**fields, "valid0": nothing, "valid1": nothing})
    assert float(figures["loss"]) == 0.0
    assert float(figures["valid"]) == 0.0


def test_the_three_recipes_differ_in_coattention_alone() -> None:
    recipes = [load_recipe(name) for name in ("capsnet", "capsnet-c", "capsnet-cf")]
    places = [recipe.model.config.pop("coattention") for recipe in recipes]
    assert places == [[], [16], [16, 8]]
    assert len({repr(replace(recipe, name="")) for recipe in recipes}) == 1
    published = load_recipe("capsnet-paper")
    assert published.model.config["encoder"] == "resnet34"
    assert (published.steps, published.phases[0].batch, published.optimiser.lr) == (200_000, 6, 1e-4)


def test_mistakes(courtyard: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the loss 'epipolar' trains the architecture capsnet only"):
        EpipolarObjective(tiny.start(), POSED.loss)
    with pytest.raises(ConfigError, match="the loss 'grid' learns nothing from a source of kind 'colmap'"):
        build_source(replace(POSED, loss=LossSpec()), courtyard, CPU)
    wrong = SourceSpec("colmap", ".", options={"speed": 1})
    with pytest.raises(ConfigError, match="kind 'colmap' has no option 'speed'"):
        build_source(replace(POSED, sources=(wrong,)), courtyard, CPU)
    unknown = SourceSpec("colmap", ".", options={"choice": {"angle": 1.0}})
    with pytest.raises(ConfigError, match="PosedChoice has no field 'angle'"):
        build_source(replace(POSED, sources=(unknown,)), courtyard, CPU)
    with pytest.raises(DataError, match=r"nowhere: not there \(source 'pairs' of recipe 'posed'\)"):
        build_source(replace(POSED, sources=(SourceSpec("pairs", "nowhere"),)), tmp_path, CPU)


def right_matches(model: DescriptorNetwork) -> float:
    """Share of true correspondences of the courtyard that the network answers within 12 of 640 pixels."""
    scene = samples.courtyard()
    grid = np.stack(np.meshgrid(np.arange(30.0, 620, 20), np.arange(30.0, 450, 20)), axis=-1).reshape(-1, 2)
    shares = []
    for name0, name1 in (("day_04", "day_06"), ("day_06", "day_09"), ("day_09", "day_06")):
        truth, valid = scene.true_points1(name0, name1, grid)
        pictures = [read_half(scene.image(name)) for name in (name0, name1)]
        with torch.no_grad():
            dense0, dense1 = copy.deepcopy(model).eval()(*pictures)
        points0 = torch.from_numpy((grid[valid] + 0.5) / 2 - 0.5).float()[None]
        query = torch.nn.functional.normalize(sample_map(dense0.descriptors, points0, 4), dim=-1)
        best = torch.bmm(query, dense1.descriptors.flatten(2)).argmax(dim=-1)[0]
        columns = dense1.descriptors.shape[-1]
        found = (torch.stack([best % columns, best // columns], dim=-1) + 0.5) * 8 - 0.5
        error = np.linalg.norm(found.numpy() - truth[valid], axis=1)
        shares.append(float((error < 12).mean()))
    return sum(shares) / len(shares)


def read_half(path: Path) -> torch.Tensor:
    from PIL import Image

    with Image.open(path) as image:
        small = np.asarray(image.convert("RGB").reduce(2))
    return torch.from_numpy(small.copy()).permute(2, 0, 1)[None].float() / 255


@pytest.mark.slow
@pytest.mark.parametrize("coattention", [(), (16,), (16, 8)], ids=["baseline", "C", "C+F"])
def test_matches_get_better_from_poses_alone(
    courtyard: Path, tmp_path: Path, coattention: tuple[int, ...]
) -> None:
    """A pretrained encoder and an untrained decoder see views of one scene; the truth is only looked at here.

    The encoder is that of the default model; what is learned is to describe at stride 4.
    """
    state = load_model("cdunet-lite1").model.encoder.state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "encoder.safetensors")
    recipe = replace(
        POSED,
        model=ModelSpec(
            "capsnet",
            SMALL | {"coattention": coattention},
            encoder_weights=str(tmp_path / "encoder.safetensors"),
        ),
        sources=(SourceSpec("colmap", ".", light=0.3, options={"choice": {"max_rotation": 40.0}}),),
        phases=(Phase(90, 128, 4, 192),),
        optimiser=OptimiserSpec(lr=2e-3, warmup=10, ema=0.95),
    )
    before = right_matches(build_start(recipe, courtyard).model)
    outcome = run_recipe(recipe, courtyard, tmp_path / "run", report=print_line, device="cpu")
    after = right_matches(outcome.model)
    losses = [line["loss"] for line in read_log(tmp_path / "run" / "log.jsonl")]
    first, last = np.mean(losses[:15]), np.mean(losses[-15:])
    print(f"\nloss {first:.3f} -> {last:.3f}, right {before:.3f} -> {after:.3f}, {outcome.seconds:.0f} s")
    assert last < 0.8 * first
    assert after > 1.2 * before
