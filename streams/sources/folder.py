"""Lists a folder of images: which of its folders are classes, which give a split, and what is left out."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePath

from streams.errors import SourceError, fault
from streams.recipe import SPLITS, TEST, TRAIN, VALIDATION
from streams.sources.decode import SUFFIXES
from streams.sources.image_files import Listing

SPLIT_OF = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation"), VALIDATION),
    **dict.fromkeys(("test", "testing"), TEST),
}
"""The pool that a folder of the first level stands for, by its name in lower case."""
_NO_CLASSES = frozenset({"__macosx", "__pycache__", "lost+found", "@eadir", "$recycle.bin", "#recycle"})
_NO_CLASSES |= {"system volume information"}


class Names:
    """The names of the files in a folder or an archive.

    Attributes:
        images: the paths of images.
        others: the number of other files by suffix.
        hidden: the number of images by the folder that is no class.
    """

    def __init__(self) -> None:
        self.images: list[str] = []
        self.others: Counter[str] = Counter()
        self.hidden: Counter[str] = Counter()

    def add(self, path: PurePath) -> None:
        """Add one path."""
        suffix, outside = path.suffix.lower(), _no_class(Path(path.parent))
        if suffix not in SUFFIXES or path.name.startswith("."):
            self.others["hidden" if path.name.startswith(".") else suffix or "without a suffix"] += 1
        elif outside:
            self.hidden[outside] += 1
        else:
            self.images.append(path.as_posix())


def list_names(root: Path, names: Names, given_split: bool, nested_classes: bool) -> Listing:
    """List the images in a folder or an archive that holds a folder of images per class.

    Args:
        root: the folder or the archive.
        names: what it holds (see `walk`).
        given_split: whether a first level of `train`, `val` and `test` (see `SPLIT_OF`) is the split.
        nested_classes: whether each folder with images is a class, whose name is its path; otherwise a class is a
            folder of the first level (below the split) with all that it holds.

    Raises:
        SourceError: there is no image in a class folder.
    """
    images, others, hidden = sorted(names.images), names.others, names.hidden
    loose = [file for file in images if "/" not in file]
    files = [file for file in images if "/" in file]
    tops = {file.partition("/")[0] for file in files}
    split, remarks = None, _by_suffix(others)
    pools = {SPLIT_OF.get(top.lower(), -1) for top in tops}
    if given_split and TRAIN in pools and pools & {VALIDATION, TEST} and -1 in pools:
        beside = next(top for top in sorted(tops) if top.lower() not in SPLIT_OF)
        pool_names = ", ".join(sorted(top for top in tops if top.lower() in SPLIT_OF))
        remarks.append(f"{pool_names} are taken as classes and not as the split, since {beside} is beside them")
    if given_split and {TRAIN} <= pools <= set(SPLIT_OF.values()):
        if all(file.count("/") == 1 for file in files):
            rule = f"data: {', '.join(sorted(tops))} give the split and must hold a folder per class"
            raise SourceError(fault(root, rule, remedy="set given_split=false if they are classes"))
        loose += [file for file in files if file.count("/") == 1]
        files = [file for file in files if file.count("/") > 1]
        split = [SPLIT_OF[file.partition("/")[0].lower()] for file in files]
    if not files:
        rule = f"data: must hold folders with images ({' '.join(sorted(SUFFIXES))})"
        raise SourceError(fault(root, rule, remedy="a folder per class, images in it"))
    notices = _split_notice(files, split) + _left_out(len(loose), others, hidden)
    folders = [file.rpartition("/")[0].split("/")[split is not None :] for file in files]
    if not nested_classes and (nested := {"/".join(steps) for steps in folders if len(steps) > 1}):
        classes = {steps[0] for steps in folders}
        words = f"{len(nested)} nested folders are parts of their classes, which are {len(classes)}"
        notices.append(f"{words}; nested_classes=true makes each folder a class")
    labels = ["/".join(steps if nested_classes else steps[:1]) for steps in folders]
    return Listing("image folder", root, files, labels, notices, remarks, split)


def with_tasks(listing: Listing, where: Path) -> Listing:
    """The listing of an image folder with nested classes, of which the first folder is taken as the task.

    Raises:
        SourceError: a class is not in a folder of a task.
    """
    parts = [label.partition("/") for label in listing.labels]
    if flat := next((task for task, slash, _ in parts if not slash), ""):
        rule = "must hold a folder per task, with a folder per class in each"
        raise SourceError(fault(where, rule, f"{flat} holds images"))
    return replace(listing, labels=[label for _, _, label in parts], tasks=[task for task, _, _ in parts])


def _split_notice(files: list[str], split: list[int] | None) -> list[str]:
    if split is None:
        return []
    counts, names = Counter(split), dict(zip(split, (file.partition("/")[0] for file in files), strict=True))
    parts = [f"{names[number]} is {name} ({counts[number]})" for name, number in SPLITS.items() if number in counts]
    missing = [name for name, number in SPLITS.items() if number not in counts]
    words = f"; {' and '.join(missing)} images are drawn from {names[TRAIN]}" if missing else ""
    return [f"the folders give the split: {', '.join(parts)}{words}"]


def _left_out(loose: int, others: Counter[str], hidden: Counter[str]) -> list[str]:
    lines = []
    if hidden:
        names = sorted(hidden)[:5]
        more = f" and {len(hidden) - 5} more" if len(hidden) > 5 else ""
        words = f"{len(hidden)} folders that are not classes are left out, with {hidden.total()} images"
        lines.append(f"{words}: {', '.join(names)}{more}")
    if loose:
        lines.append(f"{loose} images outside any class folder are left out")
    if others:
        lines.append(f"{others.total()} files that are not images are left out")
    return lines


def _by_suffix(others: Counter[str]) -> list[str]:
    if not others:
        return []
    kinds = ", ".join(
        f"{count} {suffix}" for suffix, count in sorted(others.items(), key=lambda item: (-item[1], item[0]))[:5]
    )
    more = " ..." if len(others) > 5 else ""
    return [f"left out by suffix: {kinds}{more}; images have {' '.join(sorted(SUFFIXES))}"]


def walk(root: Path) -> Names:
    """What a folder holds, at any depth.

    Raises:
        SourceError: one line for every folder that cannot be read or occurs twice.
    """
    names = Names()
    unreadable: list[OSError] = []
    visited: dict[str, str] = {}
    faults: list[str] = []
    for folder, below, files in os.walk(root, onerror=unreadable.append, followlinks=True):
        here = Path(folder).relative_to(root)
        no_classes = [name for name in below if _no_class(here) or _no_class(Path(name))]
        below[:] = _new_folders(folder, sorted(set(below).difference(no_classes)), visited, faults)
        below += [name for name in no_classes if not os.path.islink(os.path.join(folder, name))]
        for name in files:
            names.add(here / name)
    faults += [
        fault(error.filename, "cannot be read", error.strerror)
        for error in unreadable
        if not _no_class(Path(error.filename).relative_to(root))
    ]
    if faults:
        raise SourceError(*faults)
    return names


def _no_class(folder: Path) -> str:
    """The outermost part of a path that is hidden or belongs to a system; empty if all parts may be classes."""
    for part in [folder, *folder.parents][::-1]:
        if part.name.startswith(".") or part.name.lower() in _NO_CLASSES:
            return part.as_posix()
    return ""


def _new_folders(folder: str, below: list[str], visited: dict[str, str], faults: list[str]) -> list[str]:
    """The names of the subfolders that were not visited before, since links would make images occur several times.

    Args:
        folder: the folder that is walked.
        below: the names of its subfolders.
        visited: real path → path of each folder visited so far; the new ones are added.
        faults: one line is added for every subfolder that was visited before.
    """
    here = os.path.realpath(folder)
    visited.setdefault(here, folder)
    new = []
    for name in below:
        path = os.path.join(folder, name)
        real = os.path.realpath(path)
        if real in visited or Path(here).is_relative_to(real):
            link, other = path, visited.get(real, real)
            if not os.path.islink(path):  # it is the folder itself, and the link was visited first
                link, other = other, path
            rule = "a folder must be visited once, or its images would occur several times"
            faults.append(fault(link, rule, f"it is {other} again", "remove the link"))
        else:
            visited[real] = path
            new.append(name)
    return new
