"""Every backend against the network as it was trained, on real photos."""

from functools import lru_cache
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import coam
from coam import samples
from coam.backends import BACKENDS, fastest_backend, has_native_bfloat16, open_network
from coam.backends.batches import decode_pairs, split_dense, split_encoded, stack_encoded
from coam.backends.cuda_graphs import GraphedNetwork
from coam.backends.eager import FoldedNetwork
from coam.errors import ConfigError
from coam.matching.dense import Candidates, DenseMatching
from coam.matching.settings import MatcherConfig
from coam.models.network import Network
from coam.models.registry import ModelFile, build_model, load_model
from coam.models.stacked import StackedCDUNet
from support.small_networks import picture, small_stacked

CPU = torch.device("cpu")
Pair = tuple[torch.Tensor, torch.Tensor]


@lru_cache
def network_of(backend: str) -> Network:
    return open_network(load_model().model, CPU, backend)


@pytest.fixture(scope="module")
def file() -> ModelFile:
    return load_model()


@pytest.fixture(scope="module")
def photos() -> Pair:
    """The bundled stereo pair, one photo smaller than the other: (1, 3, 224, 256) and (1, 3, 192, 256)."""
    pair = samples.motorcycle()
    tensors = []
    for path, size in ((pair.left, (256, 224)), (pair.right, (256, 192))):
        pixels = np.asarray(Image.open(path).convert("RGB").resize(size), np.float32) / 255
        tensors.append(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None])
    return tensors[0], tensors[1]


def matched(network: Network, file: ModelFile, photos: Pair) -> Candidates:
    matching = DenseMatching(
        MatcherConfig(refinement="fine", max_matches=1000), file.model.logit_scale.item()
    )
    with torch.inference_mode():
        return matching.between(*network.decode(*(network.encode(photo) for photo in photos)))


def same_share(found: Candidates, expected: Candidates) -> float:
    pairs = [set(zip(c.index0.tolist(), c.index1.tolist(), strict=True)) for c in (found, expected)]
    return len(pairs[0] & pairs[1]) / len(pairs[1])


@pytest.fixture(scope="module")
def expected(file: ModelFile, photos: Pair) -> Candidates:
    candidates = matched(open_network(file.model, CPU, "plain"), file, photos)
    assert len(candidates.score) == 1000
    return candidates


@pytest.mark.parametrize("backend", ["float32", "onnxruntime", "openvino"])
def test_float32_backends_give_the_same_matches(backend, file, photos, expected):
    pytest.importorskip({"float32": "torch"}.get(backend, backend))
    pytest.importorskip("onnx")
    found = matched(network_of(backend), file, photos)
    assert same_share(found, expected) >= 0.995
    torch.testing.assert_close(found.score.sum(), expected.score.sum(), rtol=1e-3, atol=0)


def test_bfloat16_moves_points_by_a_fraction_of_a_pixel(file, photos, expected):
    found = matched(open_network(file.model, CPU, "bfloat16"), file, photos)
    assert same_share(found, expected) >= 0.93
    where = {pair: k for k, pair in enumerate(zip(found.index0.tolist(), found.index1.tolist(), strict=True))}
    common = [
        (where[pair], k)
        for k, pair in enumerate(zip(expected.index0.tolist(), expected.index1.tolist(), strict=True))
        if pair in where
    ]
    ours, theirs = torch.tensor(common).unbind(1)
    distance = (found.points1[ours] - expected.points1[theirs]).norm(dim=1)
    assert distance.median() < 0.1


def test_odd_sizes_fall_back_to_torch():
    pytest.importorskip("onnxruntime")
    images = [torch.rand(1, 3, 75, 101), torch.rand(1, 3, 96, 64)]
    results = []
    for backend in ("float32", "onnxruntime"):
        network = network_of(backend)
        with torch.inference_mode():
            results.append(network.decode(*(network.encode(image) for image in images))[0].descriptors)
    torch.testing.assert_close(results[0], results[1])


def test_attention_maps_come_from_the_network_that_encoded(file, photos):
    for backend in ("plain", "float32", "bfloat16"):
        network = open_network(file.model, CPU, backend)
        with torch.inference_mode():
            maps = network.attention_maps(*(network.encode(photo) for photo in photos))
        assert set(maps) == {16, 32}
        torch.testing.assert_close(maps[16].float().sum((-2, -1)), torch.ones(1, 14, 16), rtol=0, atol=0.02)


def test_a_batch_of_pairs_equals_the_pairs(file, photos):
    network = FoldedNetwork(file.model, CPU, torch.float32)
    first, second = photos[0][..., :96, :96], photos[0][..., 96:192, 96:192]
    with torch.inference_mode():
        a, b = split_encoded(network.encode(torch.cat([first, second])))
        batched = network.decode(stack_encoded([a, b]), stack_encoded([b, a]))
        single = network.decode(b, a)
    for side in (0, 1):
        torch.testing.assert_close(split_dense(batched[side])[1].descriptors, single[side].descriptors)


def test_pairs_of_mixed_sizes_come_back_in_order(photos):
    network = network_of("float32")
    sizes = [(64, 64), (64, 64), (96, 64), (64, 64)]
    with torch.inference_mode():
        images = [network.encode(photos[0][..., k : k + h, k : k + w]) for k, (h, w) in enumerate(sizes)]
        pairs = [(images[i], images[j]) for i, j in ((0, 1), (1, 3), (2, 0), (0, 2))]
        for pair, found in zip(pairs, decode_pairs(network, pairs), strict=True):
            for ours, theirs in zip(found, network.decode(*pair), strict=True):
                assert ours.size == theirs.size
                torch.testing.assert_close(ours.descriptors, theirs.descriptors)
                torch.testing.assert_close(ours.fine, theirs.fine, rtol=1e-3, atol=1e-3)


def test_graphed_network_without_graphs(file, photos):
    """First uses are not recorded, which needs a GPU: packing of inputs and outputs, half precision."""
    network = GraphedNetwork(file.model, CPU)
    small = photos[0][..., :96, :96], photos[0][..., 16:80, 16:112]
    with torch.inference_mode():
        dense = network.decode(*(network.encode(photo) for photo in small))[1]
        plain = network_of("plain")
        reference = plain.decode(*(plain.encode(photo) for photo in small))[1]
    assert dense.descriptors.dtype == torch.float16
    assert dense.size == reference.size == (64, 96)
    torch.testing.assert_close(dense.descriptors.float(), reference.descriptors, rtol=0, atol=0.02)
    torch.testing.assert_close(dense.score, reference.score, rtol=0, atol=0.02)
    largest = float(reference.fine.abs().max())
    torch.testing.assert_close(dense.fine.float(), reference.fine, rtol=0, atol=0.05 * largest)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_graphs_describe_photos_that_meet_at_a_smaller_size(backend, monkeypatch):
    """Both deeper levels are of the copy: left at the photo's own size, descriptors would differ by 0.1."""
    pytest.importorskip(backend)
    model = small_stacked(meeting_side=96)
    network = open_network(model, CPU, backend)
    large, larger = picture(128, 96), picture(192, 160, seed=1)
    with torch.inference_mode():
        expected = model.decode(model.encode(large), model.encode(larger))
        monkeypatch.setattr(StackedCDUNet, "decode", None)  # torch is not asked
        found = network.decode(network.encode(large), network.encode(larger))
    for mine, usual in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.descriptors, usual.descriptors, atol=1e-4, rtol=0)
        torch.testing.assert_close(mine.fine, usual.fine, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("backend", ["float32", "onnxruntime", "openvino", "cuda_graphs"])
def test_capsnet_by_every_backend(backend):
    """Two of its traits: the level at stride 2 goes unread, and `fine` has the stride of the descriptors."""
    pytest.importorskip({"float32": "torch", "cuda_graphs": "torch"}.get(backend, backend))
    torch.manual_seed(0)
    narrow = {"encoder": "efficientnet_lite1", "decoder_widths": [16, 24], "descriptor_channels": 32}
    model = build_model("capsnet", {**narrow, "coattention": [16], "coarse_share": 0.5}).eval()
    images = [torch.rand(1, 3, 64, 96), torch.rand(1, 3, 96, 64)]
    network = (
        GraphedNetwork(model, CPU, torch.float16)
        if backend == "cuda_graphs"
        else open_network(model, CPU, backend)
    )
    tolerance = 0.02 if backend == "cuda_graphs" else 1e-4  # float16, float32
    with torch.inference_mode():
        found = network.decode(*(network.encode(image) for image in images))
        expected = model.decode(*(model.encode(image) for image in images))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.fine_stride == theirs.fine_stride == 4
        torch.testing.assert_close(ours.descriptors.float(), theirs.descriptors, rtol=0, atol=tolerance)
        torch.testing.assert_close(ours.fine.float(), theirs.fine, rtol=0, atol=tolerance)


def test_what_auto_stands_for(file):
    default = "bfloat16" if has_native_bfloat16() else "float32"
    assert fastest_backend(file.model, CPU) == default
    assert fastest_backend(build_model("cdunet", {"encoder": "resnet34"}), CPU) == "float32"
    assert fastest_backend(file.model, torch.device("cuda")) == "cuda_graphs"


def test_a_backend_that_cannot_be_is_refused_in_one_line(file):
    with pytest.raises(ConfigError, match="there is no backend 'fast'; choose one of auto, plain"):
        open_network(file.model, CPU, "fast")
    with pytest.raises(ConfigError, match="CUDA"):
        open_network(file.model, CPU, "cuda_graphs")
    with pytest.raises(ConfigError, match="device='cpu'"):
        open_network(file.model, torch.device("cuda"), "onnxruntime")
    assert "auto" in BACKENDS


def errors_of(network: Network, matching: DenseMatching, images: Pair, truth_of) -> np.ndarray:
    """Pixels between each match of two images and the truth, where `truth_of` knows it."""
    with torch.inference_mode():
        found = matching.between(*network.decode(*(network.encode(image) for image in images)))
    truth, known = truth_of(found.points0.numpy().astype(np.float64))
    return np.linalg.norm(truth - found.points1.numpy(), axis=1)[known]


def as_tensor(photo: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1)))[None]


WIDTH, HEIGHT = 384, 288


def read_photo(path) -> np.ndarray:
    photo = Image.open(path).convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    return np.asarray(photo, np.float32) / 255


def test_precision_in_bfloat16_is_that_of_float32(file):
    """Share of matches within 1, 3 and 5 pixels of a known homography: within .002, on six real pairs."""
    courtyard = samples.courtyard()
    corners = np.float32([[0, 0], [WIDTH, 0], [WIDTH, HEIGHT], [0, HEIGHT]])
    places = {  # corners of the photo in the other one -> how dark that is
        "small change": (np.float32([[30, 12], [370, 0], [352, 280], [0, 262]]), 1.4),
        "large change": (np.float32([[84, 14], [372, 52], [307, 285], [8, 207]]), 2.2),
    }
    matching = DenseMatching(MatcherConfig(refinement="fine"), file.model.logit_scale.item())
    errors: dict[str, list[np.ndarray]] = {"float32": [], "bfloat16": []}
    for path in (samples.motorcycle().left, courtyard.day[3], courtyard.night[1]):
        photo = read_photo(path)
        for target, gamma in places.values():
            map_01 = cv2.getPerspectiveTransform(corners, target)
            images = as_tensor(photo), as_tensor(cv2.warpPerspective(photo, map_01, (WIDTH, HEIGHT)) ** gamma)

            def truth_of(points, map_01=map_01):
                return cv2.perspectiveTransform(points[None], map_01)[0], np.ones(len(points), bool)

            for backend, found in errors.items():
                found.append(errors_of(network_of(backend), matching, images, truth_of))
    pooled = {backend: np.concatenate(found) for backend, found in errors.items()}
    assert min(len(found) for found in pooled.values()) > 10_000
    for limit in (1, 3, 5):
        shares = [(found <= limit).mean() for found in pooled.values()]
        assert abs(shares[0] - shares[1]) <= 0.002, (limit, shares)
        assert shares[0] > 0.85


@pytest.mark.slow
def test_precision_in_bfloat16_between_day_and_night(file):
    """Real pairs, far from easy (half of the matches are true), with the truth from depth.

    Rounding swaps matches that are as good as each other, and one in thirty becomes true or false by it: with
    19,000 matches the difference of the shares has a standard error of about .0013. Hence .004, not .002.
    """
    courtyard = samples.courtyard()
    paths = {path.stem: path for path in (*courtyard.day, *courtyard.night)}
    names, scale = list(paths), WIDTH / 640
    matching = DenseMatching(MatcherConfig(refinement="fine"), file.model.logit_scale.item())
    errors: dict[str, list[np.ndarray]] = {"float32": [], "bfloat16": []}
    for name0 in courtyard.depth_names:
        first = names.index(name0)
        for name1 in {names[(first + 3) % 16], names[(first + 7) % 16], names[12 + first % 4]} - {name0}:

            def truth_of(points, name0=name0, name1=name1):
                original = ((points + 0.5) / scale - 0.5).astype(np.float32)
                truth, known = courtyard.true_points1(name0, name1, original)
                return (truth + 0.5) * scale - 0.5, known

            images = as_tensor(read_photo(paths[name0])), as_tensor(read_photo(paths[name1]))
            for backend, found in errors.items():
                found.append(errors_of(network_of(backend), matching, images, truth_of))
    pooled = {backend: np.concatenate(found) for backend, found in errors.items()}
    assert min(len(found) for found in pooled.values()) > 15_000
    for limit, least in ((1, 0.25), (3, 0.5), (5, 0.55)):
        shares = [(found <= limit).mean() for found in pooled.values()]
        assert abs(shares[0] - shares[1]) <= 0.004, (limit, shares)
        assert shares[0] > least


def test_what_is_batched_on_cuda_gives_the_same_matches(monkeypatch):
    """The branches for CUDA, run on the CPU: photos of one size encoded together, pairs decoded together."""
    pair = samples.motorcycle()
    matcher = coam.load_matcher(device="cpu", resolution=160, looks="once", backend="float32")
    left, right = (np.asarray(Image.open(path).convert("RGB")) for path in (pair.left, pair.right))
    sources = [(left, right), (right, left), (left[:, :300], right)]
    expected = [matcher.match(*source) for source in sources]
    monkeypatch.setattr(matcher, "device", SimpleNamespace(type="cuda"))
    with torch.inference_mode():
        together = [matcher._prepare_both(*source) for source in sources]
    many = list(matcher.match_many(sources))
    monkeypatch.undo()
    for prepared, batched, alone in zip(together, many, expected, strict=True):
        for found in (batched, matcher.match(*prepared)):
            assert len(alone) > 50
            common = np.intersect1d(found.ids0 * 10**6 + found.ids1, alone.ids0 * 10**6 + alone.ids1)
            assert len(common) >= 0.99 * len(alone)
