"""A model folder that was damaged: every damaged file is named, and made again from what is whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.sfm.model_folder import ModelFolder
from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions, load_model
from coam.store.checksums import folder_digests
from coam.store.documents import read_json

OPTIONS = SfmOptions(tracks="refined")


@pytest.fixture
def copied(built, tmp_path):
    return shutil.copytree(built[0], tmp_path / "model")


def again(photos, folder, matcher):
    lines: list[str] = []
    return run_sfm(photos, folder, matcher, OPTIONS, lines.append), lines


def flip(path, share=0.5):
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 16
    path.write_bytes(content)


def everything(folder):
    return folder_digests(folder, [folder / "sparse", folder / "keypoints.h5", folder / "model.html"])


@pytest.mark.parametrize(
    "name", ["keypoints.h5", "database.db", "model.html", "sparse/0/images.bin", "sparse/0/text/points3D.txt"]
)
@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "gone"])
def test_what_is_damaged_is_named_and_made_again(copied, built, photos, matcher, name, how):
    file = copied / name
    if how == "gone":
        file.unlink()
    elif how == "flipped":
        flip(file)
    else:
        file.write_bytes(file.read_bytes()[: 0 if how == "empty" else -100])
    before = len(matcher.calls)
    summary, lines = again(photos, copied, matcher)
    assert any("damaged or missing" in line and name in line for line in lines), lines
    assert len(matcher.calls) == before  # made from what is whole
    assert everything(copied) == everything(built[0])
    assert summary["sparse_points"] == built[1]["sparse_points"]
    assert again(photos, copied, matcher)[1][-1] == "the model is up to date"
    load_model(copied)


def test_only_mapping_again_when_models_are_damaged(copied, photos, matcher):
    (copied / "keypoints.h5").write_bytes(b"")
    stamp = (copied / "sparse/0/images.bin").stat().st_mtime_ns
    again(photos, copied, matcher)
    assert (copied / "sparse/0/images.bin").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("name", ["matches.h5", "verified.h5", "refined.h5", "summary.json", "settings.json"])
def test_stored_results_that_are_damaged_are_made_again(copied, built, photos, matcher, name):
    flip(copied / name, 0.6)
    (copied / "sparse/0/points3D.bin").unlink()
    again(photos, copied, matcher)
    assert everything(copied) == everything(built[0])
    assert read_json(copied / "settings.json") == read_json(built[0] / "settings.json")


@pytest.mark.parametrize("name", ["keypoints.h5", "sparse/0/images.bin", "sparse/0/cameras.bin"])
def test_a_damaged_model_is_not_localized_in(copied, name):
    flip(copied / name)
    with pytest.raises(DataError, match=rf"{name}: is damaged; make it again with: coam sfm"):
        load_model(copied)


def test_a_folder_from_before_checksums_is_read_as_it_is(copied, photos, matcher):
    files = ModelFolder(copied)
    summary = read_json(files.summary)
    del summary["files"]
    files.summary.write_text(json.dumps(summary))
    assert again(photos, copied, matcher)[1][-1] == "the model is up to date"
    load_model(copied)


def test_the_same_matches_give_the_same_model(built, photos, matcher, tmp_path):
    """Bundle adjustment with several threads sums in any order: some points more or less."""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(built[0] / "matches.h5", folder)
        shutil.copy(built[0] / "settings.json", folder)
        again(photos, folder, matcher)
        assert everything(folder) == everything(built[0])


def test_the_threads_of_the_mapper_reach_every_solver(built, monkeypatch):
    import pycolmap

    from coam.sfm.colmap_model import pipeline_options
    from coam.sfm.mapping.bundle_adjustment import adjust
    from coam.sfm.mapping.options import MapperOptions

    used, real = [], pycolmap.create_default_bundle_adjuster

    def spy(settings, *rest):
        used.append(settings.ceres.solver_options.num_threads)
        return real(settings, *rest)

    monkeypatch.setattr(pycolmap, "create_default_bundle_adjuster", spy)
    model, _ = load_model(built[0])
    for threads in (1, 2):
        adjust(model, MapperOptions(threads=threads), ())
    assert used == [1, 1, 2, 2]
    assert MapperOptions().threads == pipeline_options(seed=0).num_threads == 1
    assert np.isfinite(model.compute_mean_reprojection_error())


def test_a_run_killed_while_it_removes_what_was_mapped_goes_on(photos, matcher, tmp_path, monkeypatch):
    """What is half removed is not taken for mapped models."""
    plain = shutil.rmtree

    def stops(path, *arguments, **named):
        if any(Path(path).glob("0/images.bin")):  # the folder of mapped models, whatever its name is now
            plain(Path(path) / "0")
            raise KeyboardInterrupt
        plain(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stops)
        with pytest.raises(KeyboardInterrupt):
            run_sfm(photos, tmp_path / "model", matcher, SfmOptions(tracks="merged"))
    for name in ("model", "undisturbed"):
        run_sfm(photos, tmp_path / name, matcher, SfmOptions(tracks="merged"))
    digests = [folder_digests(tmp_path / n, [tmp_path / n / "sparse"]) for n in ("model", "undisturbed")]
    assert digests[0] == digests[1]
