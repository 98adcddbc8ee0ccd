"""Rendering against pixels computed by hand."""

import numpy as np
import pytest

from streams.rainbow import COLOURS, VIEWS
from streams.views import View, Views, draw

# A 4x4 picture with a bright left top corner, so that every turn of it looks different.
PICTURE = np.array([[[[255, 0, 0, 51], [102, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 204]]]], dtype=np.uint8)
ORANGE = (255, 127, 0)


def drawn(*views: View) -> np.ndarray:
    return draw(PICTURE, Views(views, 4, 4), np.arange(len(views)))


def test_white_on_colour_by_hand() -> None:
    image = drawn(View(ORANGE))[0]
    assert image.shape == (3, 4, 4)
    # pixel = d + (1 - d) * colour, with d = 255, 51, 102, 0, 204 of 255
    np.testing.assert_allclose(image[:, 0, 0], [1, 1, 1], atol=1e-7)
    np.testing.assert_allclose(image[:, 0, 3], [1, 0.2 + 0.8 * 127 / 255, 0.2], atol=1e-7)
    np.testing.assert_allclose(image[:, 1, 0], [1, 0.4 + 0.6 * 127 / 255, 0.4], atol=1e-7)
    np.testing.assert_allclose(image[:, 2, 2], [1, 127 / 255, 0], atol=1e-7)
    np.testing.assert_allclose(image[:, 3, 3], [1, 0.8 + 0.2 * 127 / 255, 0.8], atol=1e-7)


def test_quarter_turns_are_counter_clockwise() -> None:
    black = (0, 0, 0)
    images = drawn(*(View(black, 1.0, turn) for turn in (0, 90, 180, 270)))[:, 0]
    assert [np.argwhere(np.isclose(image, 1.0)).tolist() for image in images] == [
        [[0, 0]],
        [[3, 0]],
        [[3, 3]],
        [[0, 3]],
    ]
    for quarter in range(4):
        np.testing.assert_array_equal(images[quarter], np.rot90(images[0], quarter))


def test_another_rotation_takes_the_nearest_pixel_counter_clockwise() -> None:
    """By 45 degrees, the ring around the middle of nine pixels moves by one place."""
    pixels = np.arange(1, 10, dtype=np.uint8).reshape(1, 1, 3, 3)
    (turned,) = draw(pixels, Views((View((0, 0, 0), rotation=45),), 3, 3), [0])
    np.testing.assert_allclose(turned[0] * 255, [[2, 3, 6], [1, 5, 9], [4, 7, 8]], rtol=1e-6)


def test_what_a_rotation_leaves_open_has_the_colour() -> None:
    """The corners of a square of five pixels, rotated by 45 degrees, are 0.83 pixels outside."""
    (white,) = draw(np.full((1, 1, 5, 5), 255, np.uint8), Views((View(ORANGE, rotation=45),), 5, 5), [0])
    expected = np.ones((3, 5, 5))
    for row, column in ((0, 0), (0, 4), (4, 0), (4, 4)):
        expected[:, row, column] = np.array(ORANGE) / 255
    np.testing.assert_allclose(white, expected, rtol=1e-6)


def test_half_scale_is_a_mean_of_four_with_a_border() -> None:
    image = drawn(View((0, 0, 0), 0.5))[0, 0]
    expected = np.zeros((4, 4))
    expected[1:3, 1:3] = [
        [(255 + 0 + 102 + 0) / 4 / 255, 51 / 4 / 255],
        [0, 204 / 4 / 255],
    ]  # not rounded to whole grey levels
    np.testing.assert_allclose(image, expected, atol=1e-7)


def test_half_scale_border_shows_the_colour() -> None:
    image = drawn(View(ORANGE, 0.5, 90))[0]
    for channel, level in enumerate((1.0, 127 / 255, 0.0)):
        np.testing.assert_allclose(image[channel, 0], level, atol=1e-7)
        np.testing.assert_allclose(image[channel, :, 3], level, atol=1e-7)
    # turned by a quarter: the mean of the left top four is now left at the bottom
    corner = (255 + 102) / 4 / 255
    np.testing.assert_allclose(image[2, 2, 1], corner, atol=1e-7)


def test_digits_have_seven_pixels_of_border() -> None:
    pixels = np.full((1, 1, 28, 28), 255, dtype=np.uint8)
    image = draw(pixels, Views((View((0, 0, 0), 0.5),), 28, 28), [0])[0, 0]
    assert image[7:21, 7:21].min() == 1.0
    assert image.sum() == 14 * 14


def test_arrays_for_learners() -> None:
    views = Views(tuple(View(COLOURS[colour], scale, turn) for colour, scale, turn in VIEWS), 28, 28)
    assert len(views) == 56
    assert views.source_index.shape == (8, 784, 4)
    assert views.source_index.dtype == np.int64
    assert views.geometry.tolist() == [*range(8)] * 7
    assert views.background.shape == (56, 3)
    np.testing.assert_allclose(views.background[8], [1, 127 / 255, 0])
    assert (views.source_index[4] == 784).all(axis=-1).sum() == 784 - 14 * 14
    assert views.source_index[0, 5].tolist() == [5, 5, 5, 5]


def test_image_ids_keep_their_shape_and_encode_view_and_row() -> None:
    pixels = np.concatenate([PICTURE, 255 - PICTURE])
    views = Views((View((0, 0, 0)), View((255, 0, 0), 1.0, 90)), 4, 4)
    both = draw(pixels, views, [[0, 3], [1, 2]])
    assert both.shape == (2, 2, 3, 4, 4)
    np.testing.assert_array_equal(both[0, 1], draw(pixels[1:], Views(views.items[1:], 4, 4), [0])[0])
    np.testing.assert_allclose(both[0, 0, 0], PICTURE[0, 0] / np.float32(255), atol=1e-7)


def test_views_survive_the_manifest() -> None:
    views = Views((View(ORANGE, 0.5, 270), View((75, 0, 130))), 28, 28)
    assert views.to_json()[0] == {"background": [255, 127, 0], "scale": 0.5, "rotation": 270}
    assert Views.from_json(views.to_json(), 28, 28) == views


@pytest.mark.parametrize("image_id", [-1, 1])
def test_an_image_id_out_of_range_is_refused(image_id: int) -> None:
    with pytest.raises(ValueError, match=r"image ids must be within 0\.\.0"):
        draw(PICTURE, Views((View(ORANGE),), 4, 4), [image_id])


def test_invalid_views_are_refused() -> None:
    for arguments, message in (
        (((0, 0, 256),), "within 0..255"),
        (((0, 0, 0), 0.25), "scale must be 1 or 0.5"),
        (((0, 0, 0), 1.0, 360), "rotation must be within 0..359"),
        (((0, 0, 0), 0.5, 45), "a rotation by 45 degrees needs scale 1"),
        (((0, 0, 0), 1.0, 90, 1), "a permutation must be 0 or above, with scale 1 and rotation 0"),
    ):
        with pytest.raises(ValueError, match=message):
            View(*arguments)
    with pytest.raises(ValueError, match="multiples of 4, but got 30x30"):
        Views((View(ORANGE, 0.5),), 30, 30)
    with pytest.raises(ValueError, match="square images, but got 4x8"):
        Views((View(ORANGE, 1.0, 90),), 4, 8)
