"""Configurations × batches per second of FOML when R configurations share a stack, against one at a time.

    python -m benchmarks.packs                  # CPU, one thread: small, and checks equality
    python -m benchmarks.packs --device cuda    # needs torch and learners/ only; missing peers are left out

Every configuration has its own α₁, α₂, β₁ and β₂. Before anything is timed, a stack of three is compared with each of
them alone: bit for bit on the CPU, to 1e-3 of the distance learned on a GPU. One at a time is one learner per
configuration, one after another; the peers `higher` and `torchopt` take FOML's step as in `benchmarks.meta_gradient`,
without a prediction and without batch handling. Pictures are noise: the content does not change the cost.

The alternative to a pack are processes that share the GPU, as with `resources: {gpus: 0.1}`. They take their batches
at the same time, one configuration each; their memory is that of their tensors, without the context of CUDA that each
of them has. Where the daemon of NVIDIA's Multi-Process Service runs, they use it, and the first line says so.
"""

import argparse
import gc
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import torch

from benchmarks.meta_gradient_steps import OTHERS, contenders, make_case
from learners import Batch, ImageTable, Learner, Setting, learner_class
from learners.networks import determinism
from learners.networks.build import build
from learners.training.replicate_options import packed_options

N, CLASSES, PICTURES = 10, {"rainbow": 10, "siamese": 2}, 2000
SHAPE = {"rainbow": (3, 28, 28), "siamese": (3, 32, 32)}
VIEWS = {"rainbow": 1, "siamese": 2}
FOML = learner_class("foml")


def configurations(count: int, K: int) -> list[object]:
    """Options with rates and pulls on a logarithmic grid around the paper's."""
    factors = np.geomspace(0.3, 3, count) if count > 1 else [1.0]
    return [FOML.options_class(K=K, alpha1=1e-3 * f, alpha2=1e-3 / f, beta1=1e-2 * f, beta2=1e-3 / f) for f in factors]


class Run:
    """A learner of some configurations, each with seed 0, and its stream."""

    def __init__(self, network: str, options: list[object], device: torch.device) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (PICTURES, *SHAPE[network]), dtype=np.uint8)
        self.images = ImageTable(pixels, device=device)
        self.classes, self.views, self.device = CLASSES[network], VIEWS[network], device
        module = build(network, SHAPE[network], self.classes, device=device)
        setting = Setting(module, [0] * len(options), N, 90, self.classes, self.images)
        self.learner: Learner = FOML(packed_options(options, 1, FOML.changeable), setting)
        self.draws = torch.Generator().manual_seed(1)

    def batches(self, count: int) -> None:
        for _ in range(count):
            ids = torch.randint(PICTURES, (1, N, self.views), generator=self.draws)
            ids = ids.expand(self.learner.setting.replicates, -1, -1)
            batch = Batch(self.images.gather(ids), (ids.sum(-1) % self.classes).to(self.device), ids)
            self.learner.predict(batch.x)
            self.learner.update(batch)

    def seconds(self, count: int) -> float:
        """Seconds per batch, over `count` batches."""
        wait(self.device)
        begin = time.perf_counter()
        self.batches(count)
        wait(self.device)
        return (time.perf_counter() - begin) / count


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check(network: str, K: int, device: torch.device, batches: int = 12) -> float:
    """The greatest distance of a stack's θ from that of each configuration alone, relative to what θ moved.

    Raises:
        SystemExit: the stack is not equal on the CPU, or farther than 1e-3 on a GPU.
    """
    options = configurations(3, K)
    stack = Run(network, options, device)
    start = stack.learner.theta.clone()
    stack.batches(batches)
    apart = 0.0
    for r, one in enumerate(options):
        alone = Run(network, [one], device)
        alone.batches(batches)
        difference = (alone.learner.theta[0] - stack.learner.theta[r]).norm()
        apart = max(apart, float(difference / (alone.learner.theta[0] - start[r]).norm()))
    if not apart <= (0 if device.type == "cpu" else 1e-3):
        raise SystemExit(f"{network}, K={K}: a stack is {apart:.1e} from its configurations alone")
    return apart


def peer_seconds(network: str, K: int, device: torch.device, count: int) -> dict[str, float]:
    """Seconds per step of each peer, one configuration at a time."""
    case, taken = make_case(network, K, device), {}
    for name, make in contenders(network).items():
        if name.split(",")[0] in OTHERS:
            step = make(case)
            step()
            wait(device)
            begin = time.perf_counter()
            for _ in range(count):
                step()
            wait(device)
            taken[name] = (time.perf_counter() - begin) / count
    return taken


_together: Any = None  # the barrier of the processes that share a device


def _share(barrier: Any, device: torch.device, threads: int) -> None:
    global _together
    _together = barrier
    determinism.enable(device)
    torch.set_num_threads(threads)


def _train_alone(
    network: str, K: int, options: object, device: torch.device, batches: int
) -> tuple[float, float, float]:
    """Train one configuration when all processes are ready; when it began and ended, and MiB on a GPU."""
    run = Run(network, [options], device)
    run.batches(K + 6)
    wait(device)
    try:
        _together.wait(timeout=300)
    except BrokenBarrierError:
        raise SystemExit("a process of the comparison ended, or did not start within five minutes") from None
    begin = time.monotonic()
    run.batches(batches)
    wait(device)
    end = time.monotonic()  # one clock for all processes
    return begin, end, torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0


def shared_seconds(
    network: str, K: int, device: torch.device, threads: int, processes: int, batches: int
) -> tuple[float, float]:
    """Seconds in which each of `processes` processes on one device trains a batch, and MiB of all of them."""
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used in a forked process
    initial = (context.Barrier(processes), device, threads)
    with ProcessPoolExecutor(processes, context, _share, initial) as pool:
        # Each waits for the others inside its task, so that none takes two.
        tasks = [pool.submit(_train_alone, network, K, one, device, batches) for one in configurations(processes, K)]
        results = [task.result() for task in tasks]
    begin, end, memory = (np.array(column) for column in zip(*results, strict=True))
    return float(end.max() - begin.min()) / batches, float(memory.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", nargs="+", choices=list(SHAPE))
    parser.add_argument("--configurations", type=int, nargs="+", metavar="R")
    parser.add_argument("-K", type=int, nargs="+")
    parser.add_argument("--processes", type=int, nargs="*", metavar="P", help="processes that share the device")
    parser.add_argument("--batches", type=int)
    arguments = parser.parse_args()
    device, gpu = arguments.device, arguments.device.type == "cuda"
    if gpu and not torch.cuda.is_available():
        raise SystemExit(f"--device: torch must see a CUDA device (got {device}); leave it out for the CPU")
    determinism.enable(device)
    torch.set_num_threads(arguments.threads)
    networks = arguments.networks or (list(SHAPE) if gpu else ["rainbow"])
    sizes = arguments.configurations or ([1, 4, 16, 32, 64, 128] if gpu else [1, 4])
    batches = arguments.batches or (30 if gpu else 5)
    shares = ([10] if gpu else [2]) if arguments.processes is None else arguments.processes
    card = torch.cuda.get_device_name() if gpu else f"{arguments.threads} CPU thread(s)"
    if gpu and Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists():
        card += " with MPS"
    print(f"FOML, N={N}, float32, {card}, torch {torch.__version__}; configurations × batches per second\n")
    print(
        "| network | K | stack or peer | ms a batch | configurations × batches / s | against the best peer | peak MiB |"
    )
    print("|---|---|---|---|---|---|---|")
    for network in networks:
        for K in arguments.K or ([1, 5, 10] if gpu else [1, 5]):
            apart = check(network, K, device)
            peers = peer_seconds(network, K, device, max(3, batches // 3))
            best = min(peers.values())
            for name, seconds in peers.items():
                row = [network, str(K), name, f"{1e3 * seconds:.1f}", f"{1 / seconds:.1f}", f"{best / seconds:.2f}", ""]
                print("| " + " | ".join(row) + " |", flush=True)
            for size in sizes:
                gc.collect()
                if gpu:
                    torch.cuda.reset_peak_memory_stats(device)
                run = Run(network, configurations(size, K), device)
                run.batches(K + 6)  # the window is full and all passes are recorded
                seconds = median(run.seconds(batches) for _ in range(3))
                memory = f"{torch.cuda.max_memory_allocated(device) / 2**20:.0f}" if gpu else ""
                row = [network, str(K), f"R = {size}", f"{1e3 * seconds:.1f}", f"{size / seconds:.1f}"]
                print("| " + " | ".join([*row, f"{best * size / seconds:.2f}", memory]) + " |", flush=True)
                del run
            for count in shares:
                seconds, used = shared_seconds(network, K, device, arguments.threads, count, batches)
                memory = f"{used:.0f}" if gpu else ""
                row = [network, str(K), f"{count} processes", f"{1e3 * seconds:.1f}", f"{count / seconds:.1f}"]
                print("| " + " | ".join([*row, f"{best * count / seconds:.2f}", memory]) + " |", flush=True)
            print(f"equal to each alone: {apart:.1e}" if gpu else "equal to each alone, bit for bit", flush=True)


if __name__ == "__main__":
    main()
