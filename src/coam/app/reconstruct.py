"""The tab Reconstruct: a handful of photos in, a point cloud to look around in and the model to download."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from coam import samples
from coam.app import components as ui
from coam.app.engine import Engine
from coam.errors import CoamError, ConfigError, DataError
from coam.store.documents import read_json

EXAMPLE_VIEWS = slice(3, 9)  # of the courtyard by day: six neighbours, done in less than a minute
_POLL_SECONDS = 0.3  # between two questions whether the job still runs


class Job:
    """One reconstruction in its own process, so that it can be stopped at any moment."""

    def __init__(self, photos: Path, output: Path, model: str, resolution: int, device: str = "auto") -> None:
        command = [sys.executable, "-m", "coam", "sfm", str(photos), "--output", str(output)]
        command += ["--model", model, "--resolution", str(resolution), "--device", device]
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip():
                self.lines.append(line.strip())

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process now; harmless when it has ended."""
        if self.running:
            self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise what went wrong, once the process has ended."""
        self._reader.join(timeout=5)
        if self._process.returncode < 0:
            raise DataError("the reconstruction was cancelled")
        if self._process.returncode != 0:
            words = next((line for line in reversed(self.lines) if line.startswith("error:")), "")
            raise DataError(
                words.removeprefix("error:").strip() or "the reconstruction failed; try other photos"
            )


def collect_photos(engine: Engine, paths: list[str] | None, folder: Path) -> int:
    """Write the uploads that are photos within the limits into `folder`, under names of ours; how many."""
    if not paths or len(paths) < 2:
        raise ConfigError("choose at least two photos of one place")
    if len(paths) > engine.limits.max_photos:
        raise ConfigError(
            f"{len(paths)} photos are too many here; at most {engine.limits.max_photos} (or use: coam sfm)"
        )
    folder.mkdir(parents=True)
    for number, path in enumerate(paths, start=1):
        photo = engine.read(path, f"photo {number}")
        # Written anew: what the reconstruction reads is then surely a picture of the allowed size.
        exif = Image.Exif()
        if photo.image.focal35:  # the camera model starts from it
            exif.get_ifd(0x8769)[0xA405] = round(photo.image.focal35)
        picture = Image.fromarray(photo.image.rgb)
        picture.save(folder / f"photo_{number:03d}.jpg", quality=95, exif=exif)
    return len(paths)


def bundled_scene(folder: Path) -> list[str]:
    """Copies of some of the bundled courtyard's pictures by day, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return [str(shutil.copy(path, folder / path.name)) for path in samples.courtyard().day[EXAMPLE_VIEWS]]


def reconstruct_tab(gradio: Any, engine: Engine) -> None:
    """Add the tab's parts to the page that is being built."""
    gradio.Markdown(f"Two to {engine.limits.max_photos} photos of one place or object, with much overlap.")
    photos = gradio.File(
        label="photos", file_count="multiple", type="filepath", elem_id="sfm-photos", height=180,
    )  # fmt: skip
    if ui.is_installed(samples.courtyard):
        example = gradio.Button("Example: courtyard, six pictures", size="sm", elem_id="sfm-example")
        example.click(
            lambda: bundled_scene(ui.result_folder(engine.limits.file_seconds)),
            None,
            photos,
            api_visibility="private",
        )
    with gradio.Row():
        settings = ui.settings_row(gradio, engine)
    controls = ui.job_controls(gradio, "sfm", "Reconstruct")
    page = gradio.HTML(elem_id="sfm-page")
    files = gradio.File(label="download the model (COLMAP)", elem_id="sfm-files", interactive=False)
    jobs: dict[str, Job] = {}  # by visitor

    def run(paths: list[str] | None, model: str, resolution: int, request: Any) -> Generator[Any, None, None]:
        folder = ui.result_folder(engine.limits.file_seconds)
        visitor = str(request.session_hash)
        job: Job | None = None
        try:
            yield "reading the photos …", None, None
            collect_photos(engine, paths, folder / "photos")
            job = jobs[visitor] = Job(
                folder / "photos", folder / "model", model, int(resolution), engine.device
            )
            for words in follow(job):
                yield words, None, None
            yield finished(folder / "model")
        except CoamError as error:
            yield ui.refusal(gradio, error), None, None
        finally:
            # Also reached when the visitor cancels or closes the page.
            if job is not None:
                job.stop()
            jobs.pop(visitor, None)
            for name in ("photos", "model"):
                shutil.rmtree(folder / name, ignore_errors=True)

    run.__annotations__["request"] = gradio.Request

    def cancel(request: Any) -> str:
        job = jobs.get(str(request.session_hash))
        if job is not None:
            job.stop()
        return "cancelled"

    cancel.__annotations__["request"] = gradio.Request
    ui.connect_job(
        controls, run, [photos, *settings], [page, files], engine.limits.reconstruction_seconds, cancel
    )


def follow(job: Job) -> Iterator[str]:
    """What the job says while it runs; raises when it fails or is cancelled."""
    began = time.monotonic()
    while job.running:
        last = job.lines[-1] if job.lines else "loading the model"
        without_paths = " ".join("…" if word.startswith("/") else word for word in last.split())
        yield f"{without_paths} … {time.monotonic() - began:.0f} s"
        time.sleep(_POLL_SECONDS)
    job.check()


def finished(model: Path) -> tuple[str, str, str]:
    """Words, the framed point cloud, and a .zip of the model folder's COLMAP models."""
    summary = read_json(model / "summary.json", advice="try again")
    if summary["registered_images"] == 0:
        raise DataError(summary["warnings"][0])
    archive = shutil.make_archive(str(model.parent / "model"), "zip", model / "sparse")
    words = [
        f"**{summary['registered_images']} of {summary['photos']} photos**",
        f"**{summary['sparse_points']:,} points**",
        f"track length {summary['mean_track_length']:.2f}",
        f"reprojection error {summary['mean_reprojection_error']:.2f} px",
        f"{summary['seconds']:.0f} s",
        *summary["warnings"],
    ]
    return "  ·  ".join(words), ui.framed((model / "model.html").read_text(encoding="utf-8")), archive
