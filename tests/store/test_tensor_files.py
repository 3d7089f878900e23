"""Reading and writing .safetensors files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coam.errors import DataError, WeightsError
from coam.store.tensor_files import read_safetensors, write_safetensors


def test_what_is_written_is_read_with_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    transposed = torch.arange(6.0).view(2, 3).T  # not contiguous
    write_safetensors(path, {"weight": torch.arange(3.0), "turned": transposed}, {"step": "7"})
    tensors, metadata = read_safetensors(path)
    assert tensors["weight"].tolist() == [0, 1, 2]
    assert tensors["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert metadata == {"step": "7"}
    arrays, _ = read_safetensors(path, framework="numpy")
    np.testing.assert_array_equal(arrays["weight"], [0, 1, 2])


def test_the_same_content_is_the_same_file(tmp_path: Path) -> None:
    """Whatever the order of the metadata, which safetensors itself writes in a random one."""
    metadata = {f"key {k}": f'value "{k}" \u00e9\n' for k in range(12)}
    shuffled = dict(reversed(metadata.items()))
    files = [
        write_safetensors(tmp_path / f"{k}.safetensors", {"a": torch.ones(3)}, order)
        for k, order in enumerate((metadata, shuffled, metadata, shuffled))
    ]
    assert len({file.read_bytes() for file in files}) == 1
    tensors, found = read_safetensors(files[0])
    assert found == metadata
    assert tensors["a"].tolist() == [1, 1, 1]


def test_safetensors_are_as_readable_as_any_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "weights.safetensors", {"weight": torch.arange(3.0)}, {})
    (tmp_path / "plain.txt").write_text("")
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_damage_is_one_line_of_the_kind_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_safetensors(path, {"weight": torch.zeros(64)}, {})
    whole = path.read_bytes()
    for content in (b"", whole[:20], whole[:-8], b"no tensors at all"):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match="is damaged") as error:
            read_safetensors(path)
        assert "\n" not in str(error.value)
        assert str(error.value).endswith("; get it again")
    with pytest.raises(DataError, match=r"; pack it again$"):
        read_safetensors(path, "pack it again", DataError, "numpy")
    with pytest.raises(WeightsError):
        read_safetensors(tmp_path)
