"""Datapoints per second from a task store to a learner's tensors, as ratios against named peers in the same run.

    python -m benchmarks.streams [--data DIR] [--seconds 3]

(as a module: run as a file, this one would shadow the package `streams`)

Three sources deliver the same batches of ten, decoded to float tensors on the CPU:

- `StreamActor`: ids and labels from the node's stream actor, a chunk ahead, pixels from the learner's own map (as in a
  sweep);
- direct: ids, labels and pixels from the mapped files in this process, no actor;
- `torch.utils.data.DataLoader` with 2 workers over the same images.

Goals: at least 20 times DataLoader; at most 1.5 times the time of the direct read; a learner waits for data for less
than 1 % of its time; four learners hold the images once. Pairs and singles are of the same 60,000 images of 3x32x32:
CIFAR-100 from `--data` (a folder that holds cifar-100-python), or the same number of random ones. Rainbow-Digits are
singles that the learner draws on a colour; DataLoader's workers draw them by the same code.
"""

import argparse
import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import learners
from orchestrator.execution.learner_actor import ActorSource
from orchestrator.execution.ray_session import ray_running
from orchestrator.execution.stream_actor import StreamActors, node_stream_actor
from orchestrator.protocol import online
from orchestrator.protocol.source import StackedDatapoints, StoreSource, StreamShape, StreamSource
from streams import build
from streams.class_tasks import SingleTasks
from streams.online_cifar100 import FOLDER, OnlineCifar100
from streams.rainbow import RainbowDigits
from streams.recipe import Collected, Progress, location, number, silent
from streams.schedule import Sequential
from streams.store.task_store import TaskStore
from streams.stream import Datapoints, Stream


@dataclass(frozen=True)
class CifarSingles(SingleTasks):
    """CIFAR-100 one image at a time."""

    name: ClassVar[str] = "cifar_singles"

    data: str | None = location("see OnlineCifar100")
    tasks: int = number(100, "tasks in a stream", ge=1)

    def collect(self, progress: Progress = silent) -> Collected:
        return OnlineCifar100(data=self.data).collect(progress)


N = 10
CHUNK = 40
"""Batches per read: the orchestrator's default."""
ROUNDS = 3
LEARNERS = 4


def write_random_cifar(folder: Path) -> None:
    """Write random images in CIFAR-100's layout and sizes, whose content does not matter for speed."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    names = {"fine_label_names": [f"{number:02d}" for number in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names))
    for name, count in (("train", 50_000), ("test", 10_000)):
        pixels = rng.integers(0, 256, (count, 3_072), dtype=np.uint8)
        content = {"data": pixels, "fine_labels": [number % 100 for number in range(count)]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=4))


def image_table(store: TaskStore) -> learners.ImageTable:
    """The store's images as a learner reads them."""
    views = store.views
    if views is None:
        return learners.ImageTable(store.pixels)
    return learners.ImageTable(store.pixels, learners.ViewArrays(views.source_index, views.geometry, views.background))


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The stream's training datapoints one by one, as a DataLoader expects them."""

    def __init__(self, store: TaskStore) -> None:
        stream = Stream(store, 0)
        datapoints = stream.read(0, stream.length)
        self._ids, self._labels = torch.from_numpy(datapoints.image_ids), torch.from_numpy(datapoints.labels)
        self._images = image_table(store)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._images.gather(self._ids[index : index + 1])[0], self._labels[index]


def from_loader(store: TaskStore) -> Iterator[torch.Tensor]:
    """Batches from a DataLoader with two workers."""
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Pictures(store), batch_size=N, num_workers=2)
    for x, _ in loader:
        yield x


def from_source(store: TaskStore, source: StreamSource) -> Iterator[torch.Tensor]:
    """Batches as the protocol assembles them: a chunk of ids and labels, then pixels batch by batch."""
    torch.set_num_threads(1)
    images = image_table(store)
    length = source.shape().length
    for start in range(0, length, CHUNK * N):
        stack = source.read(start, CHUNK * N)
        ids, labels = torch.from_numpy(stack.image_ids), torch.from_numpy(stack.labels)
        for first in range(0, labels.shape[1], N):
            yield images.gather(ids[:, first : first + N])


def speed(batches: Iterator[torch.Tensor], seconds: float) -> float:
    """Datapoints per second, from the tenth batch on (starting workers is not counted), for about `seconds` seconds."""
    for _ in range(10):
        next(batches)
    began, datapoints, now = time.perf_counter(), 0, 0.0
    for _ in batches:
        datapoints += N
        now = time.perf_counter()
        if now - began > seconds:
            break
    return datapoints / (now - began)


def best(make: Callable[[], Iterator[torch.Tensor]], seconds: float) -> float:
    """The fastest of some rounds: disturbances only make a round slower."""
    return max(speed(make(), seconds / ROUNDS) for _ in range(ROUNDS))


class Timed:
    """A source that adds up the time that its reader waits."""

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self.waited = 0.0

    def shape(self) -> StreamShape:
        return self._source.shape()

    def read(self, start: int, count: int) -> StackedDatapoints:
        began = time.perf_counter()
        stack = self._source.read(start, count)
        self.waited += time.perf_counter() - began
        return stack

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        began = time.perf_counter()
        datapoints = self._source.held_out(tasks, split)
        self.waited += time.perf_counter() - began
        return datapoints

    def first_tasks(self, count: int) -> StackedDatapoints:
        return self._source.first_tasks(count)


def waiting_share(store: TaskStore, source: StreamSource, chunks: int) -> float:
    """The share of time that the fastest learner waits for data, over some chunks after the first."""
    timed = Timed(source)
    run = online.assemble(store, "online", {}, [0], N, source=timed)
    run.advance(CHUNK)
    began, timed.waited = time.perf_counter(), 0.0
    for _ in range(chunks):
        run.advance(CHUNK)
    return timed.waited / (time.perf_counter() - began)


def hold_images(path: str, connection: Connection) -> None:
    """Read every image, as a learner would; send the resident bytes of the mapped file."""
    store = TaskStore.open(path)
    store.pixels.max()
    connection.send("read")
    connection.recv()  # all have read: all shared pages are shared now
    connection.send(resident(store.path / "images.arrow"))
    connection.recv()


def resident(path: Path) -> tuple[int, int]:
    """(Rss, Pss) of a mapped file in this process, in bytes; Pss counts a page that k processes share as 1/k."""
    sums = {"Rss": 0, "Pss": 0}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and words[0][:-1] in sums:
            sums[words[0][:-1]] += 1024 * int(words[1])
    return sums["Rss"], sums["Pss"]


def memory_of_learners(store: TaskStore) -> tuple[int, int]:
    """Sums over the learners of Rss and Pss of the images, in bytes."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(LEARNERS):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=hold_images, args=(str(store.path), theirs)))
        processes[-1].start()
        pipes.append(ours)
    for message in ("read", None):
        answers = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(message)
    for process in processes:
        process.join()
    return sum(rss for rss, _ in answers), sum(pss for _, pss in answers)


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"folder that holds {FOLDER}")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each measurement (default 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.data is None:
            write_random_cifar(Path(scratch) / FOLDER)
        data = str(arguments.data or scratch)
        stores = {
            "pairs": build.build(OnlineCifar100(data=data), [0], Path(scratch) / "pairs"),
            "singles": build.build(CifarSingles(data=data), [0], Path(scratch) / "singles"),
            "rainbow": build.cached(RainbowDigits(), [0]),
        }
        measure(stores, arguments.seconds)


def measure(stores: dict[str, TaskStore], seconds: float) -> None:
    loader = {kind: best(lambda s=store: from_loader(s), seconds) for kind, store in stores.items()}  # type: ignore[misc]
    sequential = Sequential()
    with ray_running(local=True):
        for kind, store in stores.items():
            # Alternating, so that both meet the same disturbances.
            rates: dict[str, list[float]] = {"actor": [], "direct": []}
            with StreamActors(store, [0], None, store.path.parent, print):
                for _ in range(ROUNDS):
                    through: dict[str, Any] = {
                        "actor": ActorSource(node_stream_actor(store.hash), [0], sequential),
                        "direct": StoreSource(store, [0], sequential),
                    }
                    for way, source in through.items():
                        rates[way].append(speed(from_source(store, source), seconds / ROUNDS))
            served, direct = max(rates["actor"]), max(rates["direct"])
            print(f"{kind}, N={N}: StreamActor {served:,.0f} datapoints/s")
            ratio = served / loader[kind]
            print(f"  {ratio:.1f} x DataLoader, 2 workers ({loader[kind]:,.0f}/s); goal >= 20: {verdict(ratio >= 20)}")
            ratio = direct / served
            print(
                f"  {ratio:.2f} x the time of the direct read ({direct:,.0f}/s); goal <= 1.5: {verdict(ratio <= 1.5)}"
            )
            with StreamActors(store, [0], None, store.path.parent, print):
                source = ActorSource(node_stream_actor(store.hash), [0], sequential)
                share = waiting_share(store, source, chunks=3)
            print(f"  `online` waits for data {share:.2%} of its time; goal < 1 %: {verdict(share < 0.01)}")
    store = stores["pairs"]
    rss, pss = memory_of_learners(store)
    size = (store.path / "images.arrow").stat().st_size
    mapped, held = rss / size, pss / size
    print(
        f"memory: {LEARNERS} learners map {mapped:.2f} x the images, hold {held:.2f} x; goal 1: {verdict(held < 1.1)}"
    )


if __name__ == "__main__":
    main()
