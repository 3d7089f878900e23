"""`coam export`: the network for programs without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from coam.cli.options import AsJson
from coam.cli.printing import say


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(no_args_is_help=True)
    group.command("onnx")(export_as_onnx)
    group.command("folder")(export_as_folder)
    app.add_typer(group, name="export", help="Write a model in another format.")


def export_as_onnx(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the two files.")] = Path("onnx"),
    model: Annotated[str, typer.Option(help="Name of a model, or a .safetensors file.")] = "cdunet-lite1",
    check: Annotated[bool, typer.Option(help="Compare with torch, by ONNX Runtime.")] = True,
    as_json: AsJson = False,
) -> None:
    """Write MODEL.encode.onnx (once per photo) and MODEL.decode.onnx (once per pair), any image size."""
    from coam.errors import import_extra
    from coam.store.atomic import check_folder

    check_folder(output)
    for package in (
        ("onnx", "onnxruntime") if check else ("onnx",)
    ):  # before minutes are spent, and files written
        import_extra(package, "onnx")

    from coam.export.onnx import check_onnx, export_onnx
    from coam.models.registry import load_model

    file = load_model(model)
    paths = export_onnx(file, output)
    difference = check_onnx(file, paths) if check else None
    if as_json:
        say(json.dumps({"files": [str(path) for path in paths], "difference": difference}))
        return
    for path in paths:
        say(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    if difference is not None:
        say(f"ONNX Runtime and torch differ by at most {difference:.1g}")


def export_as_folder(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")],
    model: Annotated[str, typer.Option(help="Name of a model, or a .safetensors file.")] = "cdunet-lite1",
    as_json: AsJson = False,
) -> None:
    """Write config.json, model.safetensors and the card, as model hubs keep a model."""
    from coam.cli.options import require_trained
    from coam.export.folder import export_folder
    from coam.models.registry import load_model
    from coam.store.atomic import check_folder

    check_folder(output)
    require_trained(model, False)
    paths = export_folder(load_model(model), output)
    if as_json:
        say(json.dumps({"files": [str(path) for path in paths]}))
        return
    for path in paths:
        say(f"wrote {path}")
