"""CD-UNet computed a second time, in plain NumPy, as the paper's text and table of layers describe it.

Only the encoder's features are taken from the network (tests/models/test_encoders.py checks those).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coam.models.cdunet import CDUNet
from support.small_networks import picture, small_cdunet

Map = np.ndarray  # (C, H, W), float64


def weights(net: CDUNet) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in net.state_dict().items()}


def convolve(x: Map, kernel: np.ndarray) -> Map:
    """Convolution (O, C, k, k) with zeros beyond the border: a sum over the places of the kernel."""
    reach = kernel.shape[-1] // 2
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach)))
    rows, columns = x.shape[1:]
    return sum(
        np.einsum("oc,chw->ohw", kernel[:, :, i, j], padded[:, i : i + rows, j : j + columns])
        for i in range(kernel.shape[-1])
        for j in range(kernel.shape[-1])
    )


def normalised(x: Map, w: dict[str, np.ndarray], name: str) -> Map:
    """Batch normalisation with what was seen in training."""
    scale = w[f"{name}.weight"] / np.sqrt(w[f"{name}.running_var"] + 1e-5)
    return x * scale[:, None, None] + (w[f"{name}.bias"] - w[f"{name}.running_mean"] * scale)[:, None, None]


def doubled(x: Map) -> Map:
    """Twice the size: each new pixel lies a quarter of an old one from the centre of its own."""

    def along(values: np.ndarray, axis: int) -> np.ndarray:
        length = values.shape[axis]
        here = np.arange(length)
        before, after = np.maximum(here - 1, 0), np.minimum(here + 1, length - 1)
        first = 0.75 * values + 0.25 * values.take(before, axis)
        second = 0.75 * values + 0.25 * values.take(after, axis)
        return np.stack([first, second], axis + 1).reshape(
            *values.shape[:axis], 2 * length, *values.shape[axis + 1 :]
        )

    return along(along(x, 1), 2)


def attended(own: Map, other: Map, w: dict[str, np.ndarray], name: str) -> Map:
    """Eq. 1: for each position i the mean of the h_j, weighted by the softmax over j of g_i . h_j."""

    def projected(x: Map, which: str) -> np.ndarray:
        kernel, bias = w[f"{name}.{which}.weight"][:, :, 0, 0], w[f"{name}.{which}.bias"]
        return np.stack([kernel @ x[:, i, j] + bias for i in range(x.shape[1]) for j in range(x.shape[2])])

    g, h = projected(own, "query"), projected(other, "context")
    gathered = []
    for g_i in g:
        products = np.array([g_i @ h_j for h_j in h])
        share = np.exp(products - products.max())
        gathered.append((share / share.sum()) @ h)
    return np.stack(gathered, axis=1).reshape(-1, *own.shape[1:])


def described(
    own: list[Map], other: list[Map], w: dict[str, np.ndarray], conditioned: bool
) -> tuple[Map, Map]:
    """Unit descriptors (D, H, W) and the distinctiveness score (1, H, W) of an image beside another."""
    x: Map | None = None
    for number, level in enumerate(reversed(range(5))):
        parts = [] if x is None else [x]
        parts.append(own[level])
        if conditioned and level >= 3:  # the last two blocks of the encoder: strides 16 and 32
            parts.append(attended(own[level], other[level], w, f"coattention.{2 ** (level + 1)}"))
        x = doubled(np.concatenate(parts))
        for layer in (0, 1):
            name = f"decoder.{number}.convs.{layer}"
            x = np.maximum(normalised(convolve(x, w[f"{name}.0.weight"]), w, f"{name}.1"), 0)
    assert x is not None
    score = x
    for layer in (0, 2, 4):
        score = normalised(convolve(score, w[f"score.layers.{layer}.weight"]), w, f"score.layers.{layer + 1}")
    return x / np.maximum(np.linalg.norm(x, axis=0), 1e-12), 1 / (1 + np.exp(-score))


@pytest.mark.parametrize("conditioned", [True, False])
def test_the_network_equals_the_papers_formulas(conditioned: bool) -> None:
    net = small_cdunet(conditioning=conditioned)
    with torch.no_grad():
        a, b = net.encode(picture(32, 64)), net.encode(picture(64, 32, seed=1))
        dense = net.decode(a, b)
    levels = [[level[0].double().numpy() for level in image.levels] for image in (a, b)]
    w = weights(net)
    for found, own, other in zip(dense, levels, reversed(levels), strict=True):
        descriptors, score = described(own, other, w, conditioned)
        np.testing.assert_allclose(found.descriptors[0].numpy(), descriptors, atol=2e-5)
        np.testing.assert_allclose(found.score[0].numpy(), score, atol=2e-5)
    with_itself, _ = described(levels[0], levels[0], w, conditioned)
    assert bool(np.abs(with_itself - dense[0].descriptors[0].numpy()).max() > 2e-3) is conditioned
