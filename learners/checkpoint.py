"""Checkpoints: a trained learner in one file that contains everything needed to predict."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from learners import registry
from learners.base import Learner, Setting
from learners.networks import build, determinism

FORMAT = 1
_LIMITS = {"classes": 100_000, "batch_size": 100_000, "batches_per_task": 10**9}
"""The largest numbers of a file that are believed before anything is allocated."""


def save(
    path: Path,
    name: str,
    learner: Learner,
    network: str,
    image_shape: Sequence[int],
    class_names: Sequence[str] = (),
    background: str = "white",
) -> None:
    """Write the learner, its options, its network's description, and what predicting image files needs.

    On an error, a file at `path` stays as it was.

    Args:
        path: the file.
        name: the name of the learner.
        learner: the learner.
        network: the name of its network.
        image_shape: (C, H, W) of its images.
        class_names: one name for each class; empty if they have none.
        background: the colour that its transparent images were composited on.
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
    """Verify the checksums in a file written by `torch.save`.

    `torch.load` ignores them: from a file with a flipped bit it returns other weights without an error.

    Raises:
        ValueError: the file is damaged.
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except OSError:
        raise
    except Exception as error:  # BadZipFile, zlib.error, EOFError, struct.error, …
        raise ValueError(str(error) or type(error).__name__) from error
    if damaged is not None:
        raise ValueError(f"{damaged} has a wrong checksum")


def is_intact(path: Path) -> bool:
    """Whether `path` is an intact file written by `torch.save`."""
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
        network: the name of its network.
        image_shape: (C, H, W) of its images.
        class_names: one name for each class; empty for pairs, and for a file of an older version.
        background: the colour that its transparent images were composited on.
    """

    learner: Learner
    name: str
    network: str
    image_shape: tuple[int, int, int]
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
        modules: learners outside this package that the file may name; the module of any other is not imported.

    Raises:
        ValueError: the file is damaged or holds no learner.
        OSError: the file cannot be read.
    """
    return read(path, device, modules).learner


def read(path: Path | str, device: torch.device | str = "cpu", modules: Collection[str] = ()) -> SavedLearner:
    """The learner as `load` returns it, with its name, its network and the shape of its images."""
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
        _check(content, modules)
        return SavedLearner(
            _restore(content, device),
            content["learner"],
            content["network"],
            (channels, height, width),
            tuple(map(str, content.get("class_names", ()))),
            str(content.get("background", "white")),
        )
    except Exception as error:  # a foreign file may describe anything
        raise ValueError(f"{path}: must describe a known learner ({error})") from error


def _check(content: dict[str, Any], modules: Collection[str]) -> None:
    """Refuse what no sweep writes, before a module is imported or memory is allocated.

    Raises:
        ValueError: one line.
    """
    name = content["learner"]
    if name not in registry.names() and name not in modules:
        rule = f"learner must be one of {', '.join(registry.names())}, or a module that you name"
        raise ValueError(f"{rule} (got {name!r:.100}); name it only if you trust it: --learner-module")
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
    network = build.build(
        content["network"],
        content["image_shape"],
        content["classes"],
        device=device,
        dtype=getattr(torch, content["dtype"]),
    )
    setting = Setting(
        network=network,
        seeds=content["seeds"],
        batch_size=content["batch_size"],
        batches_per_task=content["batches_per_task"],
        classes=content["classes"],
    )
    learner = registry.create(content["learner"], content["options"], setting)
    learner.load_state_dict(content["state"])
    return learner
