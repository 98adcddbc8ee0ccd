"""Look at a task store: `python -m streams.inspect DIR` prints what it holds and draws the first tasks as a PNG."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.command_line import CommandLine, command
from streams.errors import OptionError, StoreError, fault
from streams.recipe import SPLITS
from streams.store.canonical_json import canonical
from streams.store.task_store import Table, TaskStore
from streams.stream import Stream

_LONG = 160
_FRAME = 2
_SAME, _DIFFERENT = (0.1, 0.7, 0.2), (0.85, 0.15, 0.15)


def describe(store: TaskStore) -> Iterator[str]:
    """Lines about a store's manifest, its counts, and the balance of its labels."""
    yield f"{store.path}: {store.name}, hash {store.hash}"
    for key, value in store.manifest.items():
        yield f"  {key}: {_short(value)}"
    for kind in ("notices", "skipped"):
        for line in store.manifest["source"].get(kind, []):
            yield f"  {kind}: {line}"
    stored, shown = store.manifest["image"]["stored_shape"], list(store.shape)
    yield f"images: {store.count:,} of {stored} stored, {shown} shown, {store.images_per_datapoint} to a datapoint"
    pools = np.bincount(store.splits_of, minlength=len(SPLITS))
    yield "  pools: " + ", ".join(f"{name} {pools[number]:,}" for name, number in SPLITS.items())
    yield f"  of a class: {_spread(np.bincount(store.classes_of, minlength=len(store.manifest['class_names'])))}"
    for seed in store.seeds:
        table = store.table(seed)
        yield f"seed {seed}: {len(table.tasks):,} tasks, {len(table.label):,} datapoints"
        for name, number in SPLITS.items():
            yield f"  {name}: {_spread(np.diff(table.starts[number]))} a task; {_balance(store, table, number)}"


def _short(value: Any) -> str:
    line = canonical(value)
    if len(line) <= _LONG:
        return line
    size = f", {len(value)} in total" if isinstance(value, list | dict) else ""
    return f"{line[:_LONG]} ...{size}"


def _spread(counts: npt.NDArray[np.int64]) -> str:
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _balance(store: TaskStore, table: Table, split: int) -> str:
    shares = np.bincount(table.label[table.split == split], minlength=store.classes)
    shares = shares / max(1, shares.sum())
    if store.classes <= 12:
        return "labels " + ", ".join(f"{label}: {share:.1%}" for label, share in enumerate(shares))
    return f"{store.classes} labels of {shares.min():.2%} to {shares.max():.2%}"


def contact_sheet(store: TaskStore, seed: int, tasks: int = 8, columns: int = 12) -> npt.NDArray[np.uint8]:
    """Draw the first training points of the first tasks, one row per task.

    The images of a pair stand one above the other, in a green frame if they are of one class, else in a red one.

    Returns:
        uint8 [height, width, 3].

    Raises:
        OptionError: `tasks` or `columns` is below 1.
        StoreError: the store does not have this seed, or its images do not have 1 or 3 channels.
    """
    faults = [
        fault(name, "must be at least 1", value)
        for name, value in (("tasks", tasks), ("columns", columns))
        if value < 1
    ]
    if faults:
        raise OptionError(*faults)
    stream = Stream(store, seed)
    if store.shape[0] not in (1, 3):
        raise StoreError(fault(store.path, "images must have 1 or 3 channels to be drawn", store.shape[0]))
    ends = [position for position, _ in stream.ends][:tasks]
    rows = [_row(store, stream, start, end, columns) for start, end in zip([0, *ends], ends, strict=False)]
    return (np.concatenate(rows) * 255 + 0.5).astype(np.uint8)


def _row(store: TaskStore, stream: Stream, start: int, end: int, columns: int) -> npt.NDArray[np.float32]:
    points = stream.read(start, min(columns, end - start))
    images = np.broadcast_to(
        store.draw(points.image_ids), (len(points), store.images_per_datapoint, 3, *store.shape[1:])
    )
    zoom = max(1, 84 // store.shape[1])
    large = images.repeat(zoom, axis=-2).repeat(zoom, axis=-1).transpose(0, 1, 3, 4, 2)
    tiles = large.reshape(len(points), -1, *large.shape[3:])  # the images of a pair stand one above the other
    row = np.ones((tiles.shape[1] + 2 * _FRAME, columns * (tiles.shape[2] + 2 * _FRAME), 3), dtype=np.float32)
    for column, (tile, label) in enumerate(zip(tiles, points.labels, strict=True)):
        left = column * (tile.shape[1] + 2 * _FRAME)
        if store.images_per_datapoint == 2:
            row[:, left : left + tile.shape[1] + 2 * _FRAME] = _SAME if label else _DIFFERENT
        row[_FRAME:-_FRAME, left + _FRAME : left + _FRAME + tile.shape[1]] = tile
    return row


@command
def main(argv: Sequence[str] | None = None, prog: str = "python -m streams.inspect") -> int:
    """Run the command, and return its exit code."""
    parser = CommandLine(prog, "Print what a task store holds, and draw its first tasks.")
    parser.add_argument("store", metavar="DIR", help="the store's folder")
    parser.add_argument("--seed", type=int, metavar="SEED", help="the seed to draw (default: the store's first)")
    parser.add_argument("--tasks", type=int, default=8, metavar="N", help="number of tasks to draw")
    parser.add_argument("--png", type=Path, metavar="FILE", help="the drawing (default: NAME-seed-SEED.png)")
    arguments = parser.parse_args(argv)
    store = TaskStore.open(arguments.store)
    for line in describe(store):
        print(line)
    seed = arguments.seed if arguments.seed is not None else next(iter(store.seeds), 0)
    png = arguments.png or Path(f"{store.name}-seed-{seed}.png")
    _save(contact_sheet(store, seed, arguments.tasks), png)
    print(f"first tasks of seed {seed}: {png}")
    return 0


def _save(sheet: npt.NDArray[np.uint8], path: Path) -> None:
    from PIL import Image  # imported late: only drawing needs it

    try:
        Image.fromarray(sheet).save(path)
    except (OSError, ValueError) as error:  # a ValueError for an unknown suffix
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise OptionError(fault(f"png: {path}", "cannot be written", reason, "name a .png in a folder")) from None


if __name__ == "__main__":
    sys.exit(main())
