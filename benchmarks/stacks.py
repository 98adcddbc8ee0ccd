"""Cost of a batch for a stack of R seeds, for every learner: prediction and update on the Rainbow network.

    python -m benchmarks.stacks                  # CPU, one thread
    python -m benchmarks.stacks --device cuda    # needs torch and learners/ only

A stack shares one learner. On a CPU its seeds are computed one after another; a GPU can compute many in parallel, and
this table shows how many. Pictures are noise: the content does not change the cost. Learners that train at the end of a
task get an end of task every nine batches, whose time is divided among the batches.
"""

import argparse
import time

import numpy as np
import torch

from learners import Batch, ImageTable, Learner, Setting, create, names
from learners.networks import determinism
from learners.networks.build import build

N, CLASSES, PICTURES, TASK, SHAPE = 10, 10, 2000, 9, (3, 28, 28)


def assemble(name: str, replicates: int, device: torch.device) -> tuple[Learner, ImageTable]:
    pixels = np.random.default_rng(0).integers(0, 256, (PICTURES, *SHAPE), dtype=np.uint8)
    images = ImageTable(pixels, device=device)
    network = build("rainbow", SHAPE, CLASSES, device=device)
    return create(name, {}, Setting(network, list(range(replicates)), N, TASK, CLASSES, images)), images


def milliseconds(name: str, replicates: int, device: torch.device, tasks: int) -> float:
    """Milliseconds per batch, over `tasks` tasks after two for warm-up."""
    learner, images = assemble(name, replicates, device)
    g = torch.Generator().manual_seed(1)
    for task in range(2 + tasks):
        if task == 2:
            _wait(device)
            begin = time.perf_counter()
        if learner.needs_boundaries:
            learner.begin_task()
        for _ in range(TASK):
            ids = torch.randint(PICTURES, (replicates, N, 1), generator=g)
            batch = Batch(images.gather(ids), (ids[..., 0] % CLASSES).to(device), ids)
            learner.predict(batch.x)
            learner.update(batch)
        if learner.needs_boundaries:
            learner.end_task()
    _wait(device)
    return 1e3 * (time.perf_counter() - begin) / (tasks * TASK)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--replicates", type=int, nargs="+", default=[1, 3, 10, 30])
    parser.add_argument("--learners", nargs="+", choices=names(), default=names())
    arguments = parser.parse_args()
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"--device: torch must see a CUDA device (got {arguments.device}); leave it out for the CPU")
    determinism.enable(arguments.device)
    torch.set_num_threads(arguments.threads)
    card = torch.cuda.get_device_name() if arguments.device.type == "cuda" else f"{arguments.threads} CPU thread(s)"
    print(f"N={N}, float32, {card}, torch {torch.__version__}; ms per batch of a stack of R\n")
    print("| learner | " + " | ".join(f"R = {r}" for r in arguments.replicates) + " |")
    print("|---" * (1 + len(arguments.replicates)) + "|")
    for name in arguments.learners:
        taken = [milliseconds(name, r, arguments.device, arguments.tasks) for r in arguments.replicates]
        print(f"| {name} | " + " | ".join(f"{ms:.1f}" for ms in taken) + " |", flush=True)


if __name__ == "__main__":
    main()
