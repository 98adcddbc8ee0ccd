"""The learner of any run predicts on pictures of the user's own: `python -m orchestrator.predict RUN_ID IMAGES…`.

It is the learner at the end of its stream or, with `--step`, at any checkpoint that was kept.

From Python:

    from orchestrator import predict
    learner = predict.load("RUN_ID")  # step=300: as it was after 300 batches
    probabilities = learner("seven.png", "three.png")  # [seeds, pictures, classes]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.errors import ExitCode, OrchestratorError, fault
from orchestrator.storage import retention
from orchestrator.tracking.database import DEFAULT_URI, first_line, open_existing
from orchestrator.tracking.reader import find
from orchestrator.tracking.runs import PARENT
from streams.sources.decode import read_picture

if TYPE_CHECKING:
    from learners.checkpoint import SavedLearner

_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")
_CHECKPOINTS = "checkpoint"
_OF_PAIRS = ("different", "same")


@dataclass(frozen=True)
class Predictor:
    """A configuration's learner as it was at the end of its stream, or at a checkpoint before that.

    ``saved``: its stacks of seeds. ``kept``: the indices of those seeds of each stack that were asked for.
    ``pictures_at_once``: 1, or 2 for a learner of pairs.
    """

    saved: tuple[SavedLearner, ...]
    kept: tuple[tuple[int, ...], ...]

    @property
    def seeds(self) -> list[int]:
        return [
            int(one.learner.setting.seeds[row]) for one, rows in zip(self.saved, self.kept, strict=True) for row in rows
        ]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a picture."""
        return self.saved[0].image_shape

    @property
    def pictures_at_once(self) -> int:
        from learners.networks.architectures import NETWORKS

        return NETWORKS[self.saved[0].network].images_per_datapoint

    def __call__(self, *images: Path | str) -> np.ndarray:
        """Probabilities [R, B, classes] for picture files: one row per picture, or per two of them for pairs.

        Raises:
            OrchestratorError: one line for each file that is no picture or has the wrong size.
        """
        pictures, faults = _read(images)
        faults += self.unfitting(pictures, len(images))
        if faults:
            raise OrchestratorError(*faults)
        return self.probabilities(np.stack([self._fitted(picture) for _, picture in pictures]))

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """Probabilities [R, B, classes] for pixels [B, C, H, W] (pairs: [2B, C, H, W], one after the other), 0…255."""
        import torch

        x = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32) / 255)
        if self.pictures_at_once == 2:
            x = x.unflatten(0, (-1, 2))
        parts = []
        for one, rows in zip(self.saved, self.kept, strict=True):
            stack = x.expand(len(one.learner.setting.seeds), *x.shape)
            logits = one.learner.predict(stack.to(one.learner.setting.network.dtype))
            parts.append(logits[list(rows)].softmax(-1))
        made: np.ndarray = torch.cat(parts).numpy()
        return made

    def unfitting(self, pictures: Sequence[tuple[str, Any]], given: int) -> list[str]:
        """One line for each of these pictures that this learner cannot take, and one if some lack their partner."""
        _, height, width = self.image_shape
        rule, remedy = f"must be {width}x{height} pixels", f"resize it to {width}x{height}"
        faults = [
            fault(name, "", rule, f"{picture.width}x{picture.height}", remedy)
            for name, picture in pictures
            if picture.size != (width, height)
        ]
        if given % self.pictures_at_once:
            faults.append(fault("IMAGES", "", "must be two by two for a learner of pairs", given))
        return faults

    def _fitted(self, picture: Any) -> np.ndarray:
        """Pixels [C, H, W]."""
        if self.image_shape[0] == 1:
            return np.asarray(picture.convert("L"))[None]
        return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)


def load(run: str, tracking_uri: str = DEFAULT_URI, step: int | None = None) -> Predictor:
    """The learner of a run: a configuration's, with all its seeds, or one seed's.

    Args:
        run: the run's id in MLflow; or a checkpoint file, such as results/NAME/TRIAL/learner.pt.
        tracking_uri: where it was tracked.
        step: how many batches it is to have learned; the end of its stream if None. What was kept besides that is
            said by the sweep's `keep_checkpoints`.

    Raises:
        OrchestratorError: one line: there is no such run, it has no checkpoint, or none of this step.
    """
    if not _RUN_ID.fullmatch(run) and Path(run).suffix == ".pt":
        return _predictor([_checkpoint(_of_step(Path(run), step), run)])
    client = open_existing(tracking_uri)
    found = find(client, run, tracking_uri)
    tags = found.data.tags
    seed = int(tags["foml.seed"]) if "foml.seed" in tags else None
    configuration = tags[PARENT] if seed is not None else run
    saved = _kept_with(client, configuration, run, step)
    if not saved:
        rule, remedy = "has no checkpoint", "it has one once all its seeds are at the end of their streams"
        raise OrchestratorError(fault("run", "", rule, f"{run}, {found.info.status}", remedy))
    return _predictor(saved, seed)


def _of_step(path: Path, step: int | None) -> Path:
    """The file of this step beside a checkpoint file."""
    if step is None or retention.step(path.name) == step:
        return path
    there = {at: each for each in path.parent.glob("learner-*.pt") if (at := retention.step(each.name)) is not None}
    if step not in there:
        raise OrchestratorError(_no_such_step(step, sorted(there), None))
    return there[step]


def _no_such_step(step: int, there: Sequence[int], last: int | None) -> str:
    shown = [*map(str, there), *([] if last is None else [f"{last} (the last)"])]
    rule = f"must be a checkpoint that was kept: {', '.join(shown) or 'the last alone, which is there without --step'}"
    return fault(
        "--step", "", rule, step, "" if there else "a sweep with keep_checkpoints: all keeps one of every task"
    )


def _kept_with(client: Any, configuration: str, run: str, step: int | None) -> list[SavedLearner]:
    """Every stack's checkpoint of this step that a configuration's run has."""
    from mlflow.exceptions import MlflowException

    try:
        files = _files(client, configuration, _CHECKPOINTS)
        if step is not None and files:
            files = _files_of(client, configuration, files, step)
        with tempfile.TemporaryDirectory() as folder:
            wanted = [file for file in files if step is not None or retention.step(Path(file).name) is None]
            fetched = [(file, Path(client.download_artifacts(configuration, file, folder))) for file in sorted(wanted)]
            return [_checkpoint(path, f"run {run}: {file}") for file, path in fetched]
    except (MlflowException, OSError) as error:
        raise OrchestratorError(fault("run", "", "its checkpoint cannot be fetched", run, first_line(error))) from error


def _files(client: Any, run_id: str, folder: str) -> list[str]:
    """Checkpoint files among a run's artifacts, those of further stacks in folders of their own."""
    found: list[str] = []
    for entry in client.list_artifacts(run_id, folder):
        found += _files(client, run_id, entry.path) if entry.is_dir else [entry.path] * entry.path.endswith(".pt")
    return found


def _files_of(client: Any, run_id: str, files: Sequence[str], step: int) -> list[str]:
    """The files of this step, one of each stack of seeds."""
    points = client.get_metric_history(run_id, "online_error")
    last = max((point.step for point in points), default=-1) + 1
    if step == last:
        return [file for file in files if retention.step(Path(file).name) is None]
    by_stack: dict[Path, dict[int, str]] = {Path(file).parent: {} for file in files}
    for file in files:
        if (at := retention.step(Path(file).name)) is not None:
            by_stack[Path(file).parent][at] = file
    there = set.intersection(*(set(of_stack) for of_stack in by_stack.values()))
    if step not in there:
        raise OrchestratorError(_no_such_step(step, sorted(there), last or None))
    return [of_stack[step] for of_stack in by_stack.values()]


def _checkpoint(path: Path, name: str) -> SavedLearner:
    from learners import checkpoint

    try:
        return checkpoint.read(path)
    except OSError as error:
        raise OrchestratorError(fault(name, "", f"must be a checkpoint that can be read ({error.strerror})")) from error
    except ValueError as error:
        raise OrchestratorError(fault(name, "", first_line(error).removeprefix(f"{path}: "))) from error


def _predictor(saved: Sequence[SavedLearner], seed: int | None = None) -> Predictor:
    asked_for = [
        tuple(row for row, one in enumerate(each.learner.setting.seeds) if seed in (None, int(one))) for each in saved
    ]
    chosen = [(each, rows) for each, rows in zip(saved, asked_for, strict=True) if rows]
    return Predictor(tuple(each for each, _ in chosen), tuple(rows for _, rows in chosen))


def _read(images: Sequence[Path | str]) -> tuple[list[tuple[str, Any]], list[str]]:
    """Names and pictures, read as a folder of images is, and a line for each file that is none."""
    from PIL import UnidentifiedImageError

    pictures: list[tuple[str, Any]] = []
    faults = []
    for image in images:
        try:
            pictures.append((str(image), read_picture(Path(image).read_bytes())))
        except UnidentifiedImageError:
            faults.append(fault(str(image), "", "must be a picture, such as PNG or JPEG"))
        except Exception as error:  # Pillow's decoders raise many kinds: OSError, SyntaxError, struct.error, ...
            reason = getattr(error, "strerror", None) or first_line(error)
            faults.append(fault(str(image), "", f"must be a picture that can be read ({reason})"))
    return pictures, faults


def _lines(predictor: Predictor, images: Sequence[str]) -> list[str]:
    """What the command prints: for each picture the class, and how sure the seeds are of it."""
    probabilities = predictor(*images)
    pairs = predictor.pictures_at_once == 2
    shown = [f"{a} {b}" for a, b in zip(images[::2], images[1::2], strict=True)] if pairs else list(images)
    lines = []
    for row, name in enumerate(shown):
        mean = probabilities[:, row].mean(axis=0)
        best = int(mean.argmax())
        agreed = int((probabilities[:, row].argmax(axis=-1) == best).sum())
        label = _OF_PAIRS[best] if pairs else str(best)
        lines.append(f"{name}: {label} (probability {mean[best]:.3f}; {agreed} of {len(probabilities)} seeds)")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code: 0, or 2 with one line for each fault."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.predict",
        description="Let a trained learner classify pictures. Learners of pairs take them two by two.",
    )
    parser.add_argument("run", metavar="RUN_ID", help="a configuration's or a seed's run in MLflow, or a learner.pt")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="picture files")
    parser.add_argument("--tracking-uri", default=DEFAULT_URI, metavar="URI", help=f"default: {DEFAULT_URI}")
    parser.add_argument(
        "--step", type=int, metavar="N", help="as it was after N batches (keep_checkpoints says what is kept)"
    )
    arguments = parser.parse_args(argv)
    faults: list[str] = []
    predictor = None
    try:
        predictor = load(arguments.run, arguments.tracking_uri, arguments.step)
    except OrchestratorError as error:
        faults += error.faults
    pictures, unreadable = _read(arguments.images)
    faults += unreadable
    if predictor is not None:
        faults += predictor.unfitting(pictures, len(arguments.images))
    if faults or predictor is None:
        print("\n".join(faults), file=sys.stderr)
        return ExitCode.BAD_INPUT
    for line in _lines(predictor, arguments.images):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
