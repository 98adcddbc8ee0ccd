"""Checkpoint retention: `keep_checkpoints: last | all | n`, where n keeps one checkpoint every n tasks.

`learner.pt` is the learner at the end of the stream, `learner-00000300.pt` the learner after 300 batches. A checkpoint
is kept after the batch with which every seed has completed the task.
"""

import re
from collections.abc import Iterable, Sequence

LAST, ALL = "last", "all"
_NAME = re.compile(r"learner-(\d+)\.pt")


def file_name(batches: int) -> str:
    """The file name of the learner after `batches` batches.

    >>> file_name(300)
    'learner-00000300.pt'
    """
    return f"learner-{batches:08d}.pt"


def step(name: str) -> int | None:
    """The batches in a checkpoint's file name; None for any other file.

    >>> step("learner-00000300.pt"), step("learner.pt")
    (300, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def steps(keep: str | int, ends: Sequence[Iterable[tuple[int, int]]], batch_size: int) -> list[int]:
    """The batches after which a checkpoint is kept, without the end of the stream, which has `learner.pt`.

    Args:
        keep: `last`, `all`, or a number of tasks.
        ends: for each seed, its tasks as (position after the last datapoint, task).
        batch_size: datapoints per batch.

    >>> steps(2, [[(50, 7), (100, 3), (150, 5), (205, 1), (250, 2)]], 10)
    [10, 21]
    >>> steps("last", [[(50, 7), (100, 3)]], 10), steps("all", [[(50, 7), (95, 3)], [(60, 7), (95, 1)]], 10)
    ([], [6])
    """
    if keep == LAST:
        return []
    every = 1 if keep == ALL else int(keep)
    ends_of_all = [max(position for position, _ in positions) for positions in zip(*ends, strict=False)]
    batches = [-(-position // batch_size) for position in ends_of_all]
    return sorted({at for at in batches[every - 1 :: every] if at < batches[-1]})
