"""Published data sets by name, from files written in their formats: there is no network in tests."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import io

from streams.build import build
from streams.errors import OptionError, SourceError
from streams.images import ImagePairs, SingleImages
from streams.options import recipe_from_words
from streams.rainbow import RainbowMnist
from streams.recipe import TEST, TRAIN
from streams.sources import downloads
from streams.sources.published.data_sets import NAMES, list_published
from tests.streams.conftest import write_idx

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("name", "first"), [("fashion_mnist", "T-shirt/top"), ("kmnist", "o"), ("mnist", "0")])
def test_data_sets_like_mnist(name: str, first: str, made_mnist: Path) -> None:
    listing = list_published(name, str(made_mnist / "MNIST" / "raw"))
    assert (len(listing.files), listing.labels[0], listing.labels[10]) == (70_000, first, first)
    assert (len(set(listing.labels)), list(listing.splits or [])) == (10, [TRAIN] * 60_000 + [TEST] * 10_000)
    assert listing.contents is not None
    contents = iter(listing.contents())
    for row in range(300):
        image: Any = next(contents)
        assert (image.shape, image[0, :3].tolist()) == ((28, 28), [row & 255, row >> 8, 0])
    with pytest.raises(SourceError, match=r"nowhere: data: must be a folder that exists; name the folder that holds"):
        list_published(name, "nowhere")
    with pytest.raises(SourceError, match="data: must hold"):
        list_published(name, str(Path(__file__).parent))


@pytest.mark.parametrize(
    ("name", "part", "sizes", "classes"),
    [("emnist", "balanced", (112_800, 18_800), 47), ("emnist_letters", "letters", (124_800, 20_800), 27)],
)
def test_emnist_is_shown_upright(
    name: str, part: str, sizes: tuple[int, int], classes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    first = 1 if name == "emnist_letters" else 0
    for split, size in zip(("train", "test"), sizes, strict=True):
        pixels = np.zeros((size, 28, 28), dtype=np.uint8)
        pixels[:, 2, 5] = 9
        write_idx(raw / f"emnist-{part}-{split}-images-idx3-ubyte", pixels)
        write_idx(raw / f"emnist-{part}-{split}-labels-idx1-ubyte", first + np.arange(size) % (classes - first))
    listing = list_published(name, str(tmp_path))
    assert len(listing.files) == sum(sizes)
    assert listing.labels[:2] == (["a", "b"] if first else ["0", "1"])
    assert listing.labels[classes - first - 1] == ("z" if first else "t")
    assert listing.contents is not None
    image: Any = next(iter(listing.contents()))
    assert (image[5, 2], image[2, 5]) == (9, 0)
    (raw / f"emnist-{part}-test-labels-idx1-ubyte").write_bytes(b"cut")
    with pytest.raises(SourceError, match=r"must start with the IDX header .* this is not EMNIST"):
        list_published(name, str(tmp_path))


def write_cifar10(folder: Path) -> tuple[np.ndarray, list[int]]:
    folder.mkdir(parents=True)
    names = ["plane", "car", "bird"]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    pixels = RNG.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    labels = [row % 3 for row in range(60)]
    for number in range(6):
        rows = slice(10 * number, 10 * number + 10)
        content = {"data": pixels[rows].reshape(10, -1), "labels": labels[rows]}
        name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
        (folder / name).write_bytes(pickle.dumps(content))
    return pixels, labels


def test_cifar10(tmp_path: Path) -> None:
    pixels, labels = write_cifar10(tmp_path / "data" / "cifar-10-batches-py")
    options: dict[str, Any] = {"tasks": 2, "classes_per_task": 2, "keep": 1, "train": 8, "validation": 2, "test": 2}
    recipe = SingleImages(dataset="cifar10", data=str(tmp_path / "data"), **options)
    store = build(recipe, [0], tmp_path / "store")
    np.testing.assert_array_equal(store.pixels, pixels)
    assert store.classes_of.tolist() == labels
    assert store.label_names == ("plane", "car", "bird")
    assert (store.splits_of[50:] == TEST).all() and np.bincount(store.splits_of)[2] == 10
    assert 0 < np.bincount(store.splits_of)[1] < 15
    assert store.manifest["recipe"]["dataset"] == "cifar10"
    assert len(store.manifest["source"]["notices"]) == 7  # synthetic files have other checksums
    before = recipe.fingerprint()
    (tmp_path / "data" / "cifar-10-batches-py" / "test_batch").write_bytes(b"cut")
    assert recipe.fingerprint() != before
    (tmp_path / "data" / "cifar-10-batches-py" / "data_batch_2").unlink()
    with pytest.raises(SourceError) as raised:
        recipe.collect()
    assert [line.split(": ")[0].rpartition("/")[2] for line in raised.value.faults] == ["data_batch_2", "test_batch"]
    assert "copy all of cifar-10-batches-py there" in raised.value.faults[0]


def test_svhn(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(40) % 10 + 1
    for name, rows in (("train", slice(0, 30)), ("test", slice(30, 40))):
        content = {"X": pixels[rows].transpose(1, 2, 3, 0), "y": labels[rows, None].astype(np.uint8)}
        io.savemat(tmp_path / f"{name}_32x32.mat", content)
    collected = SingleImages(dataset="svhn", data=str(tmp_path)).collect()
    np.testing.assert_array_equal(collected.pixels, pixels.transpose(0, 3, 1, 2))
    assert [collected.images.class_names[each] for each in collected.images.classes[:10]] == list("1234567890")
    assert (collected.images.splits == TEST).tolist() == [False] * 30 + [True] * 10
    (tmp_path / "test_32x32.mat").write_bytes((tmp_path / "test_32x32.mat").read_bytes()[:200])
    with pytest.raises(SourceError, match=r"test_32x32.mat: cannot be read as a file of MATLAB with X and y"):
        list_published("svhn", str(tmp_path))
    with pytest.raises(SourceError, match=r"data: must be a folder that holds train_32x32.mat; leave data out to"):
        list_published("svhn", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("packed", [False, True])
def test_omniglot(packed: bool, tmp_path: Path) -> None:
    folder = tmp_path / "omniglot-py"
    folder.mkdir()
    for name, alphabets in (("images_background", ("Greek", "Latin")), ("images_evaluation", ("Sylheti", "Tengwar"))):
        archive = zipfile.ZipFile(folder / f"{name}.zip", "w") if packed else None
        for alphabet, character, image in ((a, c, i) for a in alphabets for c in range(2) for i in range(6)):
            path = folder / name / alphabet / f"character{character + 1:02d}" / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(RNG.integers(0, 256, (10, 10), dtype=np.uint8)).save(path)
            if archive is not None:
                archive.write(path, path.relative_to(folder))
                path.unlink()
        if archive is not None:
            archive.close()
            for place in sorted((folder / name).rglob("*"), reverse=True):
                place.rmdir()
            (folder / name).rmdir()
    recipe = ImagePairs(
        dataset="omniglot", data=str(tmp_path), size=10, channels=1, validation_share=0.34, test_share=0.34
    )
    collected = recipe.collect()
    assert collected.images.class_names == (
        *("Greek/character01", "Greek/character02", "Latin/character01", "Latin/character02"),
        *("Sylheti/character01", "Sylheti/character02", "Tengwar/character01", "Tengwar/character02"),
    )
    assert np.bincount(collected.images.classes).tolist() == [6] * 8
    assert np.bincount(collected.images.splits).tolist() == [16, 16, 16]


def test_the_rainbow_shows_other_data_sets(made_mnist: Path, tmp_path: Path) -> None:
    data = str(made_mnist / "MNIST" / "raw")
    store = build(RainbowMnist(data=data, dataset="kmnist", tasks=2), [0], tmp_path / "store")
    assert (store.label_names[1], store.shape, store.manifest["source"]["name"]) == ("ki", (3, 28, 28), "KMNIST")
    with pytest.raises(
        OptionError, match=r"rainbow_mnist\.dataset: must be one of mnist, fashion_mnist, kmnist, emnist_digits"
    ):
        build(RainbowMnist(dataset="cifar10"), [0], tmp_path / "other")


def test_a_misspelt_name_is_corrected() -> None:
    assert {"emnist", "fashion_mnist", "kmnist", "cifar10", "svhn", "omniglot"} <= set(NAMES)
    with pytest.raises(
        OptionError, match=r"images\.dataset: must be one of .*\(got fashon_mnist\); did you mean fashion"
    ):
        recipe_from_words("images", ["dataset=fashon_mnist"])


@pytest.mark.parametrize(
    ("name", "calls", "place"),
    [
        ("svhn", [{"split": "train"}, {"split": "test"}], "downloads/svhn"),
        ("omniglot", [{"background": True}, {"background": False}], "downloads"),
        ("emnist", [{"split": "balanced"}], "downloads"),
    ],
)
def test_torchvision_downloads_all_parts(
    name: str, calls: list[dict[str, Any]], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class is called with its own arguments; a failure is one line."""
    datasets = pytest.importorskip("torchvision").datasets
    monkeypatch.setenv("FOML_CACHE", str(tmp_path))
    seen: list[Any] = []

    def download(root: str, download: bool, **arguments: Any) -> None:
        assert (root, download) == (str(tmp_path / place), True)
        seen.append(arguments)
        if len(seen) == len(calls):
            raise RuntimeError("no network")

    monkeypatch.setattr(datasets, {"svhn": "SVHN", "omniglot": "Omniglot", "emnist": "EMNIST"}[name], download)
    with pytest.raises(SourceError, match=r"could not be downloaded \(got no network\)"):
        list_published(name, None)
    assert seen == calls
    assert downloads.cache_folder() == tmp_path
