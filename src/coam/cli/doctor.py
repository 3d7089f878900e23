"""`coam doctor`: what is installed, what it can use, and whether it works."""

from __future__ import annotations

import json
import platform
from importlib import import_module, metadata
from typing import Any

import typer

from coam import __version__
from coam.cli.options import AsJson, Device, MatcherModel
from coam.cli.printing import say

CORE = {  # package: the module that must import
    "torch": "torch",
    "numpy": "numpy",
    "pillow": "PIL",
    "safetensors": "safetensors",
    "h5py": "h5py",
    "opencv": "cv2",
    "scipy": "scipy",
}
EXTRAS = {  # package: the extra that installs it
    "pycolmap": "sfm",
    "poselib": "sfm",
    "matplotlib": "eval",
    "lightning-fabric": "train",
    "gradio": "app",
    "ray": "ray",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "timm": "timm",
    "pillow-heif": "heif",
}
SHIFT = (40, 24)  # pixels by which the second picture of the self-test is moved
TOLERANCE = 3.0  # pixels
WANTED_SHARE = 0.8  # of the matches that must be right, once the model is trained


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(device: Device = "auto", model: MatcherModel = None, as_json: AsJson = False) -> None:
    """Show versions, devices and weights, and match a picture whose answer is known. Exit code 1: broken."""
    problems: list[str] = []  # nothing is broken while it is empty
    report: dict[str, Any] = {
        "coam": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {package: _imported(package, module, problems) for package, module in CORE.items()},
        "extras": {package: _version(package) for package in EXTRAS},
        "problems": problems,
    }
    works = not problems  # else nothing further can
    report["devices"] = _devices() if works else []
    report["weights"] = _weights(problems) if works else []
    report["self_test"] = _self_test(device, model, problems) if works else {"passed": False}
    say(json.dumps(report)) if as_json else _print(report)
    if problems:
        raise typer.Exit(1)


def _imported(package: str, module: str, problems: list[str]) -> str | None:
    """The version of a package that coam cannot do without."""
    try:
        return str(import_module(module).__version__)
    except ImportError as error:
        reason = str(error).splitlines()[0]
        problems.append(f"{package} cannot be imported ({reason}); pip install --force-reinstall coam")
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    import torch

    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({properties.name}, {properties.total_memory / 2**30:.0f} GiB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _weights(problems: list[str]) -> list[dict[str, Any]]:
    from coam.errors import CoamError
    from coam.models.registry import MODELS, load_model, packaged_weights

    found: list[dict[str, Any]] = []
    for name in MODELS:
        path = packaged_weights(name)
        if path is None:
            found.append({"model": name, "trained": False})
            continue
        try:
            file = load_model(name)
        except CoamError as error:
            problems.append(str(error))
            continue
        size = round(path.stat().st_size / 2**20, 1)
        entry = {"model": name, "trained": True, "architecture": file.architecture, "mebibytes": size}
        found.append(entry | {"sha256": file.sha256, "card": file.card})
    return found


def _self_test(device: str, model: str | None, problems: list[str]) -> dict[str, Any]:
    """Match a texture with itself, moved by `SHIFT`: every right answer is known exactly."""
    import numpy as np

    from coam.errors import CoamError
    from coam.matcher import load_matcher
    from coam.models.registry import DEFAULT_MODEL
    from coam.types import matches_in_words

    first, second = _moved_texture()
    try:
        matcher = load_matcher(model or DEFAULT_MODEL, device, resolution=320)
        matches = matcher.match(first, second)
    except CoamError as error:
        problems.append(str(error))
        return {"passed": False}
    errors = np.linalg.norm(matches.points0 - np.asarray(SHIFT, np.float32) - matches.points1, axis=1)
    share = float((errors <= TOLERANCE).mean()) if len(matches) else 0.0
    trained = bool(matches.meta["trained"])
    passed = len(matches) >= 50 and share >= WANTED_SHARE
    if trained and not passed:
        problems.append(
            f"self-test: {matches_in_words(len(matches))}, only {share:.0%} right; get the weights again"
        )
    return {
        "model": matches.meta["model"],
        "trained": trained,
        "device": str(matcher.device),
        "matches": len(matches),
        "share_right": round(share, 4),
        "tolerance_px": TOLERANCE,
        "seconds": matches.meta["seconds"],
        "passed": passed,
    }


def _moved_texture() -> tuple[Any, Any]:
    """Two windows (256, 320, 3) of one random texture with detail at every scale."""
    import cv2
    import numpy as np

    height, width = 256, 320
    rng = np.random.default_rng(0)
    whole = np.zeros((height + SHIFT[1], width + SHIFT[0], 3), np.float32)
    for cells in (4, 8, 16, 32, 64, 128):
        noise = rng.random((cells, cells, 3), dtype=np.float32)
        whole += cv2.resize(noise, (whole.shape[1], whole.shape[0]), interpolation=cv2.INTER_CUBIC)
    low, high = whole.min(), whole.max()
    texture = ((whole - low) / (high - low) * 255).astype(np.uint8)
    return texture[:height, :width], texture[SHIFT[1] :, SHIFT[0] :]


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("coam", report["coam"])
    table.add_row("python", f"{report['python']} on {report['system']}")
    for name, version in report["versions"].items():
        table.add_row(name, version or "[red]not installed[/red]")
    for name, version in report["extras"].items():
        table.add_row(name, version or f"[dim]not installed (optional: coam\\[{EXTRAS[name]}])[/dim]")
    for device in report["devices"]:
        table.add_row("device", device)
    for entry in report["weights"]:
        table.add_row("weights", _describe_weights(entry))
    table.add_row("self-test", _describe_self_test(report["self_test"]))
    console = Console(highlight=False)
    console.print(table)
    for problem in report["problems"]:
        console.print("problem:", problem, style="red", markup=False, soft_wrap=True)
    if not report["problems"]:
        console.print("nothing is broken", style="green")


def _describe_weights(entry: dict[str, Any]) -> str:
    if not entry["trained"]:
        return f"{entry['model']}: no trained weights in this installation"
    licence = entry["card"].get("licence", entry["card"].get("license", "not stated"))
    size, digest = f"{entry['mebibytes']} MiB", f"sha256 {entry['sha256'][:12]}"
    return f"{entry['model']}: {entry['architecture']}, {size}, licence {licence}, {digest}"


def _describe_self_test(test: dict[str, Any]) -> str:
    if "matches" not in test:
        return "[red]did not run[/red]"
    from coam.types import matches_in_words

    untrained = "failed (the model is untrained)"
    verdict = "passed" if test["passed"] else "failed" if test["trained"] else untrained
    share = f"{test['share_right']:.0%} within {test['tolerance_px']:g} px"
    count = matches_in_words(test["matches"])
    return f"{verdict}: {count}, {share}, {test['seconds']:.1f} s on {test['device']}"
