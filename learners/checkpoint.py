"""A trained learner in one file, and back: all that is needed to predict again."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from learners import registry
from learners.base import Learner, Setting
from learners.networks import build, determinism

FORMAT = 1


def save(path: Path, name: str, learner: Learner, network: str, image_shape: Sequence[int]) -> None:
    """Write the learner, its hyper-parameters and its network's description; whole, or not at all."""
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
    """See that every byte of a file of `torch.save` is as it was written, by the checksums in it.

    `torch.load` does not look at them: it takes a file with a flipped bit for a learner with other weights.

    Raises:
        ValueError: it is damaged. OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except OSError:
        raise
    except Exception as error:  # a damaged archive comes to BadZipFile, zlib.error, EOFError, struct.error, …
        raise ValueError(str(error) or type(error).__name__) from error
    if damaged is not None:
        raise ValueError(f"{damaged} is not as it was written")


def is_intact(path: Path) -> bool:
    """Whether there is a file of `torch.save`, every byte of it as it was written."""
    try:
        check_intact(path)
    except (OSError, ValueError):
        return False
    return True


@dataclass(frozen=True)
class SavedLearner:
    """What is in a checkpoint: the learner, its ``name``, its ``network``'s, and its pictures' shape (C, H, W)."""

    learner: Learner
    name: str
    network: str
    image_shape: tuple[int, int, int]


def load(path: Path | str, device: torch.device | str = "cpu") -> Learner:
    """The learner as it was saved, ready to predict (it has no images, so it cannot go on learning).

    `predict` takes pictures [R, B, C, H, W] (pairs [R, B, 2, C, H, W]) in 0…1, one stack per seed in
    `learner.setting.seeds`. Raises ValueError for a file that holds no learner.
    """
    return read(path, device).learner


def read(path: Path | str, device: torch.device | str = "cpu") -> SavedLearner:
    """`load`, and what the learner's pictures have to be like."""
    determinism.enable(device)
    try:
        check_intact(path)
        content = torch.load(path, map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever unpickling a foreign file comes to: KeyError, RuntimeError, EOFError, …
        raise ValueError(f"{path}: must be a whole file written by learners.checkpoint.save ({error})") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ValueError(f"{path}: format must be {FORMAT} (got {found}); a newer file needs a newer package")
    try:
        channels, height, width = content["image_shape"]
        return SavedLearner(
            _restored(content, device), content["learner"], content["network"], (channels, height, width)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: must describe a learner that this package knows ({error})") from error


def _restored(content: dict[str, Any], device: torch.device | str) -> Learner:
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
