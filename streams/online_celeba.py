"""Online-CelebA: tasks of pairs, each over five identities, from the official folder of the data set."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from streams.class_tasks import PairTasks
from streams.errors import SourceError, fault
from streams.recipe import Collected, Progress, location, number, silent
from streams.sources.decode import SUFFIXES, ImageFormat
from streams.sources.downloads import fingerprint
from streams.sources.image_files import READER_VERSION, Listing, Pools, collect_files, shortened

IMAGES = "img_align_celeba"
IDENTITIES = "identity_CelebA.txt"


@dataclass(frozen=True)
class OnlineCeleba(PairTasks):
    """Online-CelebA: a class is an identity, whose images are split into the pools.

    The folder holds `celeba/img_align_celeba/*.jpg` and `celeba/identity_CelebA.txt` (lines `file id`, no header). The
    data set requires registration, so that it is not downloaded automatically.
    """

    name: ClassVar[str] = "online_celeba"

    data: str | None = location("folder that holds celeba, with its images and identities; must be given")
    skip_bad: bool = location("leave images out that cannot be read, and record which", default=False)
    tasks: int = number(1_200, "tasks in a stream", ge=1)
    least_per_identity: int = number(20, "images that an identity needs; others are left out", ge=6)
    crop: int = number(178, "side of the square in the middle that is kept, in pixels", ge=4)
    size: int = number(64, "side of the stored images, in pixels", ge=4, le=1_024)
    validation_share: float = number(0.15, "share of each identity's images that only validate", gt=0, lt=0.5)
    test_share: float = number(0.15, "share of each identity's images that only test", gt=0, lt=0.5)

    def check_locations(self) -> list[str]:
        missing = [fault(f"{self.name}.data", "must be given", remedy="name the folder that holds celeba")]
        return missing if self.data is None else []

    def collect(self, progress: Progress = silent) -> Collected:
        """Decode the images of the identities with enough images (see `image_files.collect_files`)."""
        folder = _folder(self.data)
        identity_of = _identities(folder / IDENTITIES)
        counts = Counter(identity_of.values())
        enough = {identity for identity, count in counts.items() if count >= self.least_per_identity}
        files = sorted(file for file, identity in identity_of.items() if identity in enough)
        left_out = len(counts) - len(enough)
        notices = [f"{left_out} of {len(counts)} identities have fewer than {self.least_per_identity} images"]
        images = _images(folder)
        labels = [f"{identity_of[file]:05d}" for file in files]
        source = Listing("CelebA", images, files, labels, notices, _without_identity(images, identity_of))
        pools = Pools(self.validation_share, self.test_share, self.least_images, self.least_per_identity)
        form = ImageFormat(self.size, 3, self.crop)
        return collect_files(source, form, pools, self.skip_bad, "online_celeba/pools", progress)

    def fingerprint(self) -> str:
        """The names, sizes and times of the images and of the identities' file."""
        folder = _folder(self.data)
        paths = [folder / IDENTITIES, *sorted(path for path in _images(folder).iterdir() if path.is_file())]
        return f"{READER_VERSION} {self.skip_bad} {fingerprint(paths)}"


def _folder(data: str | None) -> Path:
    root = Path(data or "").expanduser()
    for folder in (root / "celeba", root):
        if data is not None and (folder / IDENTITIES).is_file() and (folder / IMAGES).is_dir():
            return folder
    rule = f"data: must hold celeba/{IDENTITIES} and the folder celeba/{IMAGES}"
    raise SourceError(fault(data, rule, remedy="download them from the data set's page"))


def _images(folder: Path) -> Path:
    """The folder of images, which some unpackers put into one of the same name."""
    inner = folder / IMAGES / IMAGES
    return inner if inner.is_dir() else folder / IMAGES


def _without_identity(images: Path, identity_of: dict[str, int]) -> list[str]:
    names = sorted(path.name for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    others = [name for name in names if name not in identity_of]
    line = f"{len(others)} images have no line in {IDENTITIES} and are left out, such as {', '.join(others[:3])}"
    return [line] if others else []


def _identities(path: Path) -> dict[str, int]:
    """The identity of each file, from lines `file id`.

    Raises:
        SourceError: one line for every malformed line, and for every file that occurs twice.
    """
    identity_of: dict[str, int] = {}
    faults = []
    for number_of, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal() or "/" in words[0]:
            faults.append(fault(f"{path}: line {number_of}", "must be a file's name and a whole number", line))
        elif words[0] in identity_of:
            faults.append(fault(f"{path}: line {number_of}", "a file must be named once", words[0]))
        else:
            identity_of[words[0]] = int(words[1])
    if not identity_of and not faults:
        faults.append(fault(path, "must hold lines with a file's name and its identity", remedy="replace this file"))
    if faults:
        raise SourceError(*shortened(faults, f"{path}: {{}} more lines are wrong"))
    return identity_of
