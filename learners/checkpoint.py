"""Checkpoints: a trained learner in one file that contains everything needed to predict."""

import errno
import os
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from learners import registry
from learners.base import Learner, Setting
from learners.networks import build, determinism

FORMAT = 1
NAME_IT = "name it only if you trust it: --learner-module"
"""The remedy for a module that is not named, of the commands that take one."""
_LIMITS = {"classes": 100_000, "batch_size": 100_000, "batches_per_task": 10**9}
"""The largest numbers of a file that are believed before anything is allocated."""


class Savable(Protocol):
    """A learner, or the part of one that belongs to some of its replicates."""

    @property
    def options(self) -> Any: ...

    @property
    def setting(self) -> Setting: ...

    def state_dict(self) -> Any: ...


def save(
    path: Path,
    name: str,
    learner: Savable,
    network: str,
    image_shape: Sequence[int],
    class_names: Sequence[str] = (),
    background: str = "white",
    images_per_datapoint: int = 1,
) -> None:
    """Write the learner, its options, its network's description, and what predicting image files needs.

    On an error, a file at `path` stays as it was.

    Args:
        path: the file.
        name: the name of the learner.
        learner: whose state is saved.
        network: the description of its network.
        image_shape: (C, H, W) of its images.
        class_names: one name for each class; empty if they have none.
        background: the colour that its transparent images were composited on.
        images_per_datapoint: 1, or 2 for pairs; the paper's networks are for one of them.
    """
    setting = learner.setting
    content = {
        "format": FORMAT,
        "learner": name,
        "options": asdict(learner.options),
        "network": network,
        "image_shape": [int(n) for n in image_shape],
        "classes": setting.classes,
        "seeds": [int(seed) for seed in setting.seeds],
        "batch_size": setting.batch_size,
        "batches_per_task": setting.batches_per_task,
        "dtype": str(setting.network.dtype).removeprefix("torch."),
        "state": learner.state_dict(),
    }
    if class_names:
        content["class_names"] = [str(each) for each in class_names]
    if background != "white":
        content["background"] = background
    if build.images_per_datapoint(network) is None:
        content["images_per_datapoint"] = images_per_datapoint
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_intact(path: Path | str) -> None:
    """Verify the checksums in a file written by `torch.save`, and that `torch.load` accepts the file.

    `torch.load` ignores the checksums: from a file with a flipped bit it returns other weights without an error.

    Raises:
        ValueError: the file is damaged.
        OSError: the file cannot be read.
        MemoryError: there is too little memory to find out.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is None:  # the archive's directory has no checksum; without the data, since it is on "meta"
            torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except Exception as error:  # BadZipFile, zlib.error, EOFError, struct.error, …
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: of a position before the file's start
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise (MemoryError if is_resource_error(error) else ValueError)(reason) from error
    if damaged is not None:
        raise ValueError(f"{damaged} has a wrong checksum")


def is_resource_error(error: BaseException) -> bool:
    """Whether an error of `torch.load` is one of memory or of the GPU, and not of its file."""
    text = str(error)
    return isinstance(error, MemoryError) or any(
        words in text for words in ("allocate memory", "out of memory", "CUDA")
    )


def is_intact(path: Path) -> bool:
    """Whether `path` is an intact file written by `torch.save`.

    Raises:
        MemoryError: there is too little memory to find out.
    """
    try:
        check_intact(path)
    except (OSError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class SavedLearner:
    """The content of a checkpoint.

    Attributes:
        learner: the learner, without images.
        name: the name of the learner.
        network: the description of its network.
        image_shape: (C, H, W) of its images.
        images_per_datapoint: 1, or 2 for pairs.
        class_names: one name for each class; empty for pairs, and for a file of an older version.
        background: the colour that its transparent images were composited on.
    """

    learner: Learner
    name: str
    network: str
    image_shape: tuple[int, int, int]
    images_per_datapoint: int
    class_names: tuple[str, ...] = ()
    background: str = "white"


def load(path: Path | str, device: torch.device | str = "cpu", modules: Collection[str] = ()) -> Learner:
    """The saved learner, ready to predict.

    It has no images, so it cannot be trained.

    `predict` takes images [R, B, C, H, W] (pairs: [R, B, 2, C, H, W]) in 0…1, where replicate r has the seed
    `learner.setting.seeds[r]`.

    Args:
        path: the file.
        device: where its tensors are placed.
        modules: modules of learners and networks outside this package that the file may name; no other is imported.

    Raises:
        ValueError: the file is damaged or holds no learner.
        OSError: the file cannot be read.
    """
    return read(path, device, modules).learner


def read(
    path: Path | str, device: torch.device | str = "cpu", modules: Collection[str] = (), remedy: str = NAME_IT
) -> SavedLearner:
    """The learner as `load` returns it, with its name, its network and the shape of its images.

    `remedy` ends the error of a module that is not among `modules`.
    """
    determinism.enable(device)
    try:
        check_intact(path)
        content = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # unpickling a foreign file may raise anything
        raise ValueError(f"{path}: must be an intact file written by learners.checkpoint.save ({error})") from error
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise ValueError(f"{path}: format must be {FORMAT} (got {version}); a newer file needs a newer package")
    try:
        channels, height, width = content["image_shape"]
        _check(content, modules, remedy)
        return SavedLearner(
            _restore(content, device),
            content["learner"],
            content["network"],
            (channels, height, width),
            build.images_per_datapoint(content["network"]) or int(content["images_per_datapoint"]),
            tuple(map(str, content.get("class_names", ()))),
            str(content.get("background", "white")),
        )
    except Exception as error:  # a foreign file may describe anything
        raise ValueError(f"{path}: must describe a known learner ({error})") from error


def rows_for(saved: Sequence[int], seeds: Sequence[int]) -> list[int]:
    """For each seed its place among the saved ones; one saved seed serves all.

    Raises:
        ValueError: a seed is not among several saved ones.

    >>> rows_for([0, 1, 2], [2, 0]), rows_for([7], [0, 1])
    ([2, 0], [0, 0])
    """
    if len(saved) == 1:
        return [0] * len(seeds)
    if missing := sorted(set(seeds) - set(saved)):
        raise ValueError(f"must have one seed, or every seed of the sweep: {missing} are not among {list(saved)}")
    return [list(saved).index(seed) for seed in seeds]


def modules_of(learner: str, network: str) -> set[str]:
    """The modules outside this package of a learner and of the description of a network."""
    own_network = str(build.read(network).get("class", "")).rpartition(".")[0]
    return {name for name in (learner, own_network) if "." in name or name == own_network} - {""}


def start(learner: Learner, path: Path | str, network: str, modules: Collection[str] = ()) -> None:
    """Let a new learner start from the weights in a checkpoint, each replicate from the one of its seed.

    Args:
        learner: before its first batch.
        path: the checkpoint.
        network: the description of the learner's network.
        modules: see `load`.

    Raises:
        ValueError: the learner cannot start so, or the file is no checkpoint of this network, these seeds and classes.
        OSError: it cannot be read.
    """
    if not learner.can_start:
        raise ValueError(f"{type(learner).__name__} cannot start from the weights of a learner")
    setting = learner.setting
    saved = read(path, setting.network.device, modules)
    check_start(saved, network, setting.seeds)
    if saved.learner.setting.classes != setting.classes:
        classes = saved.learner.setting.classes
        raise ValueError(f"{path}: must have the {setting.classes} classes of the stream (got {classes})")
    weights = saved.learner.weights()
    if weights.phi.shape[1] != setting.network.initial([0])[0].shape[1]:
        raise ValueError(f"{path}: its images must have the shape of the stream's (got {list(saved.image_shape)})")
    rows = rows_for(saved.learner.setting.seeds, setting.seeds)
    learner.start_from(weights.replicates(rows, setting.network.dtype))


def check_start(saved: SavedLearner, network: str, seeds: Sequence[int]) -> None:
    """Check that learners with this network and these seeds can start from a checkpoint.

    Raises:
        ValueError: they cannot.
    """
    if saved.network != network:
        raise ValueError(f"must be of the network {network} (got {saved.network})")
    if not saved.learner.can_start:
        raise ValueError(f"{saved.name} has no weights that a learner can start from")
    rows_for(saved.learner.setting.seeds, seeds)


def _check(content: dict[str, Any], modules: Collection[str], remedy: str) -> None:
    """Refuse what no sweep writes, before a module is imported or memory is allocated.

    Raises:
        ValueError: one line.
    """
    name = content["learner"]
    if name not in registry.names() and name not in modules:
        rule = f"learner must be one of {', '.join(registry.names())}, or a module that you name"
        if "." in str(name):  # commands show the start of a long line
            rule = "the learner's module must be one that you name"
        raise ValueError(f"{rule} (got {name!r:.100}); {remedy}")
    network = build.read(content["network"])
    if "class" in network and str(network["class"]).rpartition(".")[0] not in modules:
        rule = "the module of the network's class must be one that you name"
        raise ValueError(f"{rule} (got {network['class']!r:.100}); {remedy}")
    for key, limit in _LIMITS.items():
        value = content[key]
        if not isinstance(value, int) or not 1 <= value <= limit:
            raise ValueError(f"{key} must be a whole number from 1 to {limit:,} (got {value!r:.100})")
    if not 1 <= len(content["seeds"]) <= 10_000:
        raise ValueError(f"seeds must be 1 to 10,000 (got {len(content['seeds'])})")
    if not all(1 <= n <= 4_096 for n in content["image_shape"]):
        raise ValueError(f"image_shape must be three numbers from 1 to 4,096 (got {content['image_shape']!r:.100})")
    if content["dtype"] not in ("float32", "float64"):
        raise ValueError(f"dtype must be float32 or float64 (got {content['dtype']!r:.100})")


def _restore(content: dict[str, Any], device: torch.device | str) -> Learner:
    dtype = getattr(torch, content["dtype"])
    network = build.build(content["network"], content["image_shape"], content["classes"], device=device, dtype=dtype)
    setting = Setting(network, *(content[key] for key in ("seeds", "batch_size", "batches_per_task", "classes")))
    learner = registry.create(content["learner"], content["options"], setting)
    learner.load_state_dict(content["state"])
    return learner
