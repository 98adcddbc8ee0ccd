"""The same images in each task, with other places of pixels or other labels, in grey and in colour."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streams.build import build
from streams.errors import OptionError, SourceError
from streams.image_looks import ImageLooks
from streams.store.task_store import TaskStore

SMALL = {"size": 8, "tasks": 4, "train": 12, "validation": 4, "test": 4}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of twelve colour images."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name in ("cat", "dog", "owl"):
        (folder / name).mkdir()
        for each in range(12):
            Image.fromarray(rng.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(folder / name / f"{each:02}.png")
    return folder


@pytest.mark.parametrize("channels", [1, 3])
def test_permuted_pixels(photos: Path, channels: int, tmp_path: Path) -> None:
    recipe = ImageLooks(data=str(photos), channels=channels, validation_share=0.2, test_share=0.2, **SMALL)
    store = build(recipe, [0], tmp_path / "store")
    TaskStore.open(store.path, verify=True)
    assert store.shape == (3, 8, 8) and store.classes == 3
    assert store.manifest["format_version"] == (2 if channels == 1 else 3)
    table, views = store.table(0), store.views
    assert views is not None and len(views) == 4
    for task, about in enumerate(table.tasks):
        ids = table.image_ids[table.task == task, 0]
        stored = store.pixels[ids % store.count].reshape(len(ids), channels, 64) / np.float32(255)
        place = views.source_index[views.geometry[about["view"]], :, 0]
        assert sorted(place) == list(range(64)) and about["permutation"] == about["view"]
        shown = store.draw(ids).reshape(len(ids), 3, 64)
        # Float32: the sum of four equal values is divided by four.
        np.testing.assert_allclose(shown, np.broadcast_to(stored[..., place], shown.shape), atol=1e-6)
        assert (table.label[table.task == task] == store.classes_of[ids % store.count]).all()
    assert len({tuple(views.source_index[number, :, 0]) for number in range(4)}) == 4


def test_rotations_of_colour_images(photos: Path, tmp_path: Path) -> None:
    recipe = ImageLooks(data=str(photos), look="rotated", validation_share=0.2, test_share=0.2, **SMALL)
    store = build(recipe, [0], tmp_path / "store")
    for about in store.table(0).tasks:
        shown = store.draw([about["view"] * store.count + 5])[0]
        expected = np.rot90(store.pixels[5] / np.float32(255), about["rotation"] // 90, axes=(1, 2))
        np.testing.assert_allclose(shown, expected, atol=1e-6)
    assert sorted(about["rotation"] for about in store.table(0).tasks) == [0, 90, 180, 270]


def test_permuted_labels(photos: Path, tmp_path: Path) -> None:
    recipe = ImageLooks(data=str(photos), look="label_permuted", validation_share=0.2, test_share=0.2, **SMALL)
    store = build(recipe, [0, 1], tmp_path / "store")
    assert store.views is None and store.shape == (3, 8, 8) and store.manifest["format_version"] == 1
    for seed in (0, 1):
        table = store.table(seed)
        for task, about in enumerate(table.tasks):
            classes = store.classes_of[table.image_ids[table.task == task, 0]]
            assert table.label[table.task == task].tolist() == [about["labels"][each] for each in classes]


def test_a_learner_draws_the_same_colour_images(photos: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import learners

    for look in ("permuted", "rotated"):
        recipe = ImageLooks(data=str(photos), look=look, validation_share=0.2, test_share=0.2, degrees=100, **SMALL)
        store: TaskStore = build(recipe, [0], tmp_path / look)
        views = store.views
        assert views is not None
        arrays = learners.ViewArrays(views.source_index, views.geometry, views.background)
        ids = store.table(0).image_ids
        drawn = learners.ImageTable(store.pixels, arrays).gather(torch.from_numpy(ids.astype(np.int64)))
        np.testing.assert_allclose(drawn.numpy(), store.draw(ids)[:, 0], atol=1e-6)


def test_options_that_cannot_be(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"image_looks\.look: must be one of permuted, .* \(got upside_down\)"):
        build(ImageLooks(data=str(photos), look="upside_down"), [0], tmp_path / "a")
    with pytest.raises(OptionError, match=r"image_looks\.tasks: must be at most degrees, 90 \(got 91\)"):
        build(ImageLooks(data=str(photos), look="rotated", degrees=90, tasks=91), [0], tmp_path / "b")
    with pytest.raises(SourceError, match=r"image_looks\.train: must be at most the 24 images of the pool \(got 200\)"):
        build(ImageLooks(data=str(photos), size=8), [0], tmp_path / "c")
