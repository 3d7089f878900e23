"""Global descriptors: pooled as they are, or through a trained head that lies beside its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coam
from coam import samples
from coam.errors import WeightsError
from coam.models.registry import (
    DEFAULT_MODEL,
    load_model,
    packaged_weights,
    retrieval_path,
    save_model,
    save_retrieval_head,
)
from coam.models.retrieval import DESCRIBED_AT, RetrievalConfig, RetrievalHead, pooled
from coam.sfm.matching.stamps import descriptor_key, matcher_key
from support.small_networks import picture, small_stacked

CARD = {"licence": "Apache-2.0"}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return save_model(small_stacked(), tmp_path / "small.safetensors", "small", CARD)


def random_head(channels: int) -> RetrievalHead:
    torch.manual_seed(3)
    return RetrievalHead(RetrievalConfig(channels, 5)).eval()


def test_pooling_by_hand():
    # One level that is not used, one of a single channel, one of two: means of cubes 14 and 4.5, 36.
    deepest = torch.tensor([[[[1.0, 2.0]], [[2.0, 4.0]]]])
    levels = [torch.ones(1, 7, 4, 4), torch.tensor([[[[3.0, 1.0]]]]), deepest]
    means = np.array([4.5, 36.0]) ** (1 / 3)
    expected = np.array([1.0, *means / np.linalg.norm(means)]) / np.sqrt(2)
    np.testing.assert_allclose(pooled(levels)[0].numpy(), expected, atol=1e-6)


def test_a_head_beside_its_weights_is_used_and_known(weights: Path):
    photo = (picture(64, 96)[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    plain = coam.load_matcher(weights, device="cpu", resolution=96)
    before = plain.global_descriptor(photo)
    at_one_size = coam.load_matcher(weights, device="cpu", resolution=DESCRIBED_AT).global_descriptor(photo)
    head = random_head(len(before))
    path = save_retrieval_head(head, weights, CARD)
    assert path == retrieval_path(weights) == weights.with_name("small.retrieval.safetensors")
    matcher = coam.load_matcher(weights, device="cpu", resolution=96)
    after = matcher.global_descriptor(photo)
    assert after.shape == (5,)
    half = head.half().float()  # as it is stored
    with torch.no_grad():
        expected = half(torch.from_numpy(at_one_size)[None])[0].numpy()
    np.testing.assert_allclose(after, expected, atol=2e-3)
    np.testing.assert_array_equal(matcher.global_descriptor(matcher.prepare(photo)), after)
    assert np.linalg.norm(after) == pytest.approx(1.0, abs=1e-5)
    # Matches stay those of the weights; stored descriptors are made again.
    assert matcher_key(matcher) == matcher_key(plain) == descriptor_key(plain)
    assert descriptor_key(matcher) != descriptor_key(plain)


def test_the_shipped_head_knows_a_place_by_night():
    if packaged_weights(DEFAULT_MODEL) is None:
        pytest.skip("no trained weights in this checkout")
    file = load_model()
    assert file.retrieval is not None
    assert retrieval_path(packaged_weights(DEFAULT_MODEL)).stat().st_size < 1e6
    matcher, yard = coam.load_matcher(device="cpu"), samples.courtyard()
    photos = [yard.image("day_04"), yard.image("night_01"), samples.motorcycle().left]
    day, night, elsewhere = (matcher.global_descriptor(photo) for photo in photos)
    assert day @ night > 0.5
    assert night @ elsewhere < 0.35  # pooled features are all alike: 0.9 and more


def test_a_head_of_other_weights_and_a_damaged_one_are_refused(weights: Path, tmp_path: Path):
    path = save_retrieval_head(random_head(8), weights, CARD)
    other = save_model(small_stacked(), tmp_path / "other.safetensors", "other", CARD)
    path.rename(retrieval_path(other))
    with pytest.raises(WeightsError, match=r"other\.retrieval\.safetensors: was trained on other weights"):
        load_model(other)
    assert load_model(weights).retrieval is None
    path = save_retrieval_head(random_head(8), weights, CARD)
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(WeightsError, match="its checksum is another"):
        load_model(weights)
    path.write_bytes(weights.read_bytes())
    with pytest.raises(WeightsError, match="not a coam retrieval head"):
        load_model(weights)
