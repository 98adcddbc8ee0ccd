"""Images by id: exact values, views computed by hand, pairs, and the unchanged array on disk."""

import numpy as np
import pytest
import torch

from learners import ImageTable, ViewArrays


def test_plain_images() -> None:
    pixels = np.arange(2 * 3 * 2 * 2, dtype=np.uint8).reshape(2, 3, 2, 2)
    table = ImageTable(pixels, dtype=torch.float64)
    assert table.shape == (3, 2, 2)
    x = table.gather(torch.tensor([[[1], [0], [1]]]))
    assert x.shape == (1, 3, 3, 2, 2)
    assert torch.allclose(x[0, 0] * 255, torch.arange(12, 24, dtype=torch.float64).reshape(3, 2, 2))
    assert torch.equal(x[0, 0], x[0, 2])
    assert float(ImageTable(np.full((1, 1, 1, 1), 255, np.uint8)).gather(torch.tensor([[0]]))) == 1.0


def test_pairs_keep_their_axis() -> None:
    pixels = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
    x = ImageTable(pixels, dtype=torch.float64).gather(torch.tensor([[[0, 3], [2, 1]]], dtype=torch.int32))
    assert x.shape == (1, 2, 2, 1, 1, 1)
    assert (x.flatten() * 255).tolist() == [0, 3, 2, 1]


@pytest.fixture
def views() -> ViewArrays:
    """Views of 2x2 images; geometry 0: as stored, 1: a quarter turn to the left, 2: the mean, in the first pixel only."""
    same = [[i] * 4 for i in range(4)]
    turned = [[i] * 4 for i in (1, 3, 0, 2)]
    half = [[0, 1, 2, 3], [4] * 4, [4] * 4, [4] * 4]
    background = np.array([[0.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.25, 0.25, 1.0]])
    return ViewArrays(np.array([same, turned, half]), np.array([0, 1, 2]), background)


def test_views_by_hand(views: ViewArrays) -> None:
    """Drawn pixel = d + (1 − d) · background."""
    pixels = np.array([[[[0, 255], [51, 102]]], [[[255, 255], [0, 0]]]], dtype=np.uint8)  # d: 0, 1, .2, .4
    table = ImageTable(pixels, views, dtype=torch.float64)
    assert table.shape == (3, 2, 2)
    x = table.gather(torch.tensor([[0 * 2 + 0], [1 * 2 + 0], [2 * 2 + 0], [2 * 2 + 1]]))
    assert x.shape == (4, 3, 2, 2)
    ink = torch.tensor([[0.0, 1.0], [0.2, 0.4]], dtype=torch.float64)
    assert torch.allclose(x[0], ink.expand(3, 2, 2))
    turned = torch.tensor([[1.0, 0.4], [0.0, 0.2]], dtype=torch.float64)
    for channel, colour in enumerate([1.0, 0.5, 0.0]):
        assert torch.allclose(x[1, channel], turned + (1 - turned) * colour)
    for picture, mean in ((2, 0.4), (3, 0.5)):
        for channel, colour in enumerate([0.25, 0.25, 1.0]):
            expected = torch.full((2, 2), colour, dtype=torch.float64)
            expected[0, 0] = mean + (1 - mean) * colour
            assert torch.allclose(x[picture, channel], expected)


def test_a_read_only_map_is_read_and_not_changed(tmp_path) -> None:
    path = tmp_path / "pixels.npy"
    np.save(path, np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2))
    before = path.read_bytes()
    mapped = np.load(path, mmap_mode="r")
    x = ImageTable(mapped).gather(torch.tensor([[1], [1]]))
    x.zero_()
    again = ImageTable(mapped).gather(torch.tensor([[1]]))
    assert torch.allclose(again.flatten() * 255, torch.tensor([4.0, 5.0, 6.0, 7.0]))
    assert path.read_bytes() == before


def test_wrong_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"uint8 \[n, C, H, W\], got float32 with shape \[2, 1, 2, 2\]"):
        ImageTable(np.zeros((2, 1, 2, 2), dtype=np.float32))
    with pytest.raises(ValueError, match=r"got uint8 with shape \[2, 2, 2\]"):
        ImageTable(np.zeros((2, 2, 2), dtype=np.uint8))
