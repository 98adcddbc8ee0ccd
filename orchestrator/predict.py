"""Predict the classes of images with the learner of a run: `python -m orchestrator.predict RUN_ID IMAGES…`.

The learner is the one at the end of the stream or, with `--step`, that of any checkpoint that was kept.

From Python:

    from orchestrator import predict
    learner = predict.load("RUN_ID")  # step=300: after 300 batches
    probabilities = learner("seven.png", "three.png")  # [seeds, images, classes]
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.errors import OrchestratorError, fault
from orchestrator.system import hardware
from orchestrator.tracking import checkpoints
from orchestrator.tracking.database import DEFAULT_URI, first_line, open_existing
from orchestrator.tracking.names import PARENT
from orchestrator.tracking.reader import ArtifactError, artifact, find
from streams.command_line import CommandLine, command
from streams.recipe import WHITE
from streams.sources.decode import pillow_warnings, read_picture, transparency_remark

if TYPE_CHECKING:
    from learners.checkpoint import SavedLearner

_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")
_PAIR_LABELS = ("different", "same")


@dataclass(frozen=True)
class Predictor:
    """The learner of a configuration.

    Attributes:
        saved: its stacks of seeds.
        rows: the indices of the requested seeds in each stack.
    """

    saved: tuple[SavedLearner, ...]
    rows: tuple[tuple[int, ...], ...]

    @property
    def seeds(self) -> list[int]:
        """The requested seeds."""
        stacks = zip(self.saved, self.rows, strict=True)
        return [int(saved.learner.setting.seeds[row]) for saved, rows in stacks for row in rows]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        return self.saved[0].image_shape

    @property
    def labels(self) -> Sequence[str]:
        """The names of the labels: of the classes, or `different` and `same` for a learner of pairs."""
        if self.images_per_datapoint == 2:
            return _PAIR_LABELS
        names, count = self.saved[0].class_names, self.saved[0].learner.setting.classes
        return names if len(names) == count else [str(label) for label in range(count)]

    @property
    def images_per_datapoint(self) -> int:
        """1, or 2 for a learner of pairs."""
        return self.saved[0].images_per_datapoint

    def __call__(self, *paths: Path | str) -> np.ndarray:
        """Probabilities [R, B, classes] for image files: one row per image, or per two of them for pairs.

        Those of a seed that diverged are NaN.

        Raises:
            OrchestratorError: one line for each file that is not an image or has the wrong size.
        """
        channels, height, width = self.image_shape
        images, faults = _read(paths, channels, self.saved[0].background)
        for path, image in images:
            if image.size != (width, height):
                rule, remedy = f"must be {width}x{height} pixels", f"resize it to {width}x{height}"
                faults.append(fault(path, "", rule, f"{image.width}x{image.height}", remedy))
        if len(paths) % self.images_per_datapoint:
            faults.append(fault("IMAGES", "", "must be an even number for a learner of pairs", len(paths)))
        if faults:
            raise OrchestratorError(*faults)
        pixels = [np.asarray(image).reshape(height, width, channels) for _, image in images]
        return self.probabilities(np.stack(pixels).transpose(0, 3, 1, 2))

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """Probabilities [R, B, classes] for pixels [B, C, H, W] (pairs: [2B, C, H, W], one after the other), 0…255.

        Those of a seed that diverged are NaN.
        """
        import torch

        x = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32) / 255)
        if self.images_per_datapoint == 2:
            x = x.unflatten(0, (-1, 2))
        parts = []
        for saved, rows in zip(self.saved, self.rows, strict=True):
            stack = x.expand(len(saved.learner.setting.seeds), *x.shape)
            logits = saved.learner.predict(stack.to(saved.learner.setting.network.dtype))
            parts.append(logits[list(rows)].softmax(-1))
        probabilities: np.ndarray = torch.cat(parts).numpy()
        return probabilities


def load(run: str, tracking_uri: str = DEFAULT_URI, step: int | None = None, modules: Sequence[str] = ()) -> Predictor:
    """The learner of a configuration's run with all its seeds, or of a seed's run.

    Args:
        run: the run's id in MLflow; or a checkpoint file, such as results/NAME/TRIAL/learner.pt.
        tracking_uri: where it was tracked.
        step: the number of batches that the learner has seen; None for the whole stream. The sweep's
            `keep_checkpoints` decides which are kept.
        modules: learners of the user's own that the checkpoint may name, such as `my_learners.averaged`.

    Raises:
        OrchestratorError: the run does not exist, has no checkpoint, or none of this step.
    """
    if not _RUN_ID.fullmatch(run) and Path(run).suffix == ".pt":
        return _predictor([_read_checkpoint(checkpoints.beside(Path(run), step), run, modules)])
    client = open_existing(tracking_uri)
    mlflow_run = find(client, run, tracking_uri)
    tags = mlflow_run.data.tags
    seed = int(tags["foml.seed"]) if "foml.seed" in tags else None
    configuration = run if seed is None else tags[PARENT]
    try:
        files = checkpoints.artifacts(client, configuration, step)
        with tempfile.TemporaryDirectory() as folder:
            paths = [artifact(client, configuration, file, folder) for file in files]
            saved = [
                _read_checkpoint(path, f"run {run}: {file}", modules) for path, file in zip(paths, files, strict=True)
            ]
    except ArtifactError as error:
        raise OrchestratorError(fault("run", "", "its checkpoint cannot be fetched", run, str(error))) from error
    if not saved:
        rule, remedy = "has no checkpoint", "it has one once all its seeds are at the end of their streams"
        raise OrchestratorError(fault("run", "", rule, f"{run}, {mlflow_run.info.status}", remedy))
    return _predictor(saved, seed)


def _read_checkpoint(path: Path, name: str, modules: Sequence[str]) -> SavedLearner:
    from learners import checkpoint

    try:
        return checkpoint.read(path, modules=modules)
    except OSError as error:
        raise OrchestratorError(fault(name, "", f"must be a readable checkpoint ({error.strerror})")) from error
    except ValueError as error:  # names the path, which is that of a temporary copy
        line = first_line(ValueError(str(error).removeprefix(f"{path}: ")))
        raise OrchestratorError(fault(name, "", line)) from error


def _predictor(saved: Sequence[SavedLearner], seed: int | None = None) -> Predictor:
    rows = [
        tuple(row for row, each in enumerate(stack.learner.setting.seeds) if seed in (None, int(each)))
        for stack in saved
    ]
    stacks = [stack for stack, of_stack in zip(saved, rows, strict=True) if of_stack]
    return Predictor(tuple(stacks), tuple(filter(None, rows)))


def _read(
    paths: Sequence[Path | str], channels: int = 3, background: str = WHITE
) -> tuple[list[tuple[str, Any]], list[str]]:
    """Paths with images, decoded as those of an image folder are, and one line for each file that is not an image."""
    from PIL import UnidentifiedImageError

    images: list[tuple[str, Any]] = []
    faults = []
    transparent = 0
    with pillow_warnings() as remarks:
        for path in map(str, paths):
            try:
                picture = read_picture(Path(path).read_bytes(), channels, background)
                images.append((path, picture.image))
                transparent += picture.transparent
            except UnidentifiedImageError:
                faults.append(fault(path, "", "must be an image, such as PNG or JPEG"))
            except Exception as error:  # Pillow's decoders raise many kinds: OSError, SyntaxError, struct.error, ...
                reason = getattr(error, "strerror", None) or first_line(error)
                faults.append(fault(path, "", f"must be a readable image ({reason})"))
    if transparent:
        remarks.append(transparency_remark(transparent, background))
    for line in remarks:
        print(f"IMAGES: {line}", file=sys.stderr)
    return images, faults


def _finite(run: str, seeds: Sequence[int], probabilities: np.ndarray) -> np.ndarray:
    """The probabilities [R, B, classes] of the seeds that have not diverged; a line on stderr names the others.

    Raises:
        OrchestratorError: every seed has diverged.
    """
    finite = np.isfinite(probabilities).all(axis=(1, 2))
    diverged = [seed for seed, is_finite in zip(seeds, finite, strict=True) if not is_finite]
    if not finite.any():
        rule, remedy = "must have a seed that has not diverged", "an earlier checkpoint may have one: --step N"
        raise OrchestratorError(fault("run", "", rule, run, remedy))
    if diverged:
        several = len(diverged) > 1
        names = f"seed{'s' if several else ''} {' '.join(map(str, diverged))}"
        print(f"{run}: {names} diverged, and {'are' if several else 'is'} left out", file=sys.stderr)
    of_finite: np.ndarray = probabilities[finite]
    return of_finite


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m orchestrator.predict") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Predict the classes of images with the learner of a run; pairs: two images each.")
    parser.add_argument("run", metavar="RUN_ID", help="a configuration's or a seed's run in MLflow, or a learner.pt")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument("--tracking-uri", default=DEFAULT_URI, metavar="URI", help="where the run was tracked")
    parser.add_argument("--step", type=int, metavar="N", help="the learner after N batches (default: at the end)")
    parser.add_argument(
        "--learner-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module of your own that may be imported, such as my_learners.averaged; can be repeated",
    )
    options = parser.parse_args(argv)
    try:
        predictor = load(options.run, options.tracking_uri, options.step, options.learner_module)
    except OrchestratorError as error:
        raise OrchestratorError(*error.faults, *_read(options.images)[1]) from error
    hardware.set_threads(1)
    probabilities = _finite(options.run, predictor.seeds, predictor(*options.images))
    size = predictor.images_per_datapoint
    for row in range(probabilities.shape[1]):
        mean = probabilities[:, row].mean(axis=0)
        best = int(mean.argmax())
        agreeing = int((probabilities[:, row].argmax(axis=-1) == best).sum())
        images = " ".join(options.images[size * row : size * (row + 1)])
        label = predictor.labels[best]
        print(f"{images}: {label} (probability {mean[best]:.3f}; {agreeing} of {len(probabilities)} seeds)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
