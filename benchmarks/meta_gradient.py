"""One FOML step, online step and meta-gradient: ours against `higher`, `torchopt` and plain autograd.

    python -m benchmarks.meta_gradient                  # CPU, one thread; the extra [bench] has the two libraries
    python -m benchmarks.meta_gradient --device cuda    # needs torch and learners/ only; missing libraries are skipped

`meta_gradient_steps.py` has the step of each. All are timed alternately in one process; peak memory is measured in a
separate process. Before that, the meta-gradients are compared, and the run ends if they are not equal.
"""

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.meta_gradient_steps import OTHERS, SHAPES, N, contenders, make_case, ours
from learners.networks import determinism

# In single precision the Siamese network has no meta-gradient to compare: where rounding moves a value over a ReLU's
# or a max-pool's edge, batch norm enlarges it, and autograd itself is 1e-3 to 4e-2 off.
COMPARED_IN = {"rainbow": (torch.float32, 1e-5), "siamese": (torch.float64, 1e-8)}
BARE = "(bare convolutions)"
IN_A_ROW = 5


def floor(K: int, device: torch.device) -> tuple[float, list[Callable[[], object]]]:
    """MFLOP and calls: the convolutions of two gradients and K − 1 Hessian-vector products on the Rainbow network.

    A gradient has three of each layer: forward, by weights, by inputs. A product has the same, each of twice the size
    (values and tangents side by side). The first layer has none by inputs, and no tangent of its inputs.
    """
    flop = 0.0
    gradient: list[Callable[[], object]] = []
    product: list[Callable[[], object]] = []
    channels, size = SHAPES["rainbow"][:2]
    for depth, filters in enumerate((32, 32, 64, 64)):
        for calls, both, times in ((gradient, 1, 2), (product, 2 if depth else 1, K - 1)):

            def tensor(n: int, c: int, size: int = size) -> Tensor:
                return torch.randn(n, c, size, size, device=device).contiguous(memory_format=torch.channels_last)

            calls.append(_forward(tensor(N, both * channels), tensor(filters, both * channels, 3)))
            inputs, outputs = tensor(both * N, channels), tensor(both * N, filters)
            calls.append(_backward(outputs, inputs, tensor(filters, channels, 3), [False, True, False]))
            if depth:
                wide = tensor(N, both * filters), tensor(N, channels), tensor(both * filters, channels, 3)
                calls.append(_backward(*wide, [True, False, False]))
            each = 2e-6 * N * size * size * 9 * channels * filters
            flop += times * both * each * (3 if depth else 2)
        channels, size = filters, size // 2
    return flop, 2 * gradient + (K - 1) * product


def _forward(x: Tensor, w: Tensor) -> Callable[[], object]:
    return lambda: torch.conv2d(x, w, padding=1)


def _backward(delta: Tensor, x: Tensor, w: Tensor, mask: list[bool]) -> Callable[[], object]:
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(delta, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)


def timed(work: dict[str, Callable[[], object]], repetitions: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of each, timed alternately for a few steps; the first step finds another's data in the cache."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(-(-repetitions // IN_A_ROW)):
        for name, run in work.items():
            for repetition in range(-1, IN_A_ROW):
                _wait(device)
                begin = time.perf_counter()
                run()
                _wait(device)
                if repetition >= 0:
                    taken[name].append(1e3 * (time.perf_counter() - begin))
    return taken


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak(network: str, K: int, name: str, device: torch.device) -> float:
    """The maximum MiB that this contender adds to a process that has run one small convolution.

    Includes building the window and some steps: stored parts of the window count. On the CPU it is resident memory, by
    the kernel's high-water mark; on a GPU the memory that torch's allocator handed out, and this process suffices.
    """
    small = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    F.conv2d(small, torch.randn(4, 3, 3, 3, device=device)).sum().backward()
    case, make_step = make_case(network, K, device), contenders(network)[name]
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from here
    before = _memory("VmRSS", device)
    step = make_step(case)
    for _ in range(6):  # a GPU's recordings exist from the fourth on
        step()
    return _memory("VmHWM", device) - before


def _memory(field: str, device: torch.device) -> float:
    if device.type == "cuda":
        cuda = torch.cuda.memory_allocated if field == "VmRSS" else torch.cuda.max_memory_allocated
        return cuda(device) / 2**20
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def distances(network: str, K: int, device: torch.device) -> dict[str, float]:
    """‖g − ours‖ / ‖ours‖ of each contender's meta-gradient with SGD; raises SystemExit if it is too large."""
    dtype, tolerance = COMPARED_IN[network]
    case = make_case(network, K, device, dtype)
    errors: dict[str, float] = {}
    reference, repeated = ours(case)(), ours(case)
    for _ in range(5):  # on a GPU the later ones are replayed
        again = repeated()
    errors["ours"] = float((again - reference).norm() / reference.norm())
    for name, make_step in contenders(network).items():
        if "Adam" not in name:
            errors.setdefault(name, float((make_step(case)() - reference).norm() / reference.norm()))
            if not errors[name] <= tolerance:
                raise SystemExit(f"{network}, K={K}: {name} is {errors[name]:.1e} from ours, more than {tolerance}")
    return errors


def rows(network: str, K: int, arguments: argparse.Namespace) -> list[str]:
    device = arguments.device
    apart = distances(network, K, device)
    case = make_case(network, K, device)
    work: dict[str, Callable[[], object]] = {name: make(case) for name, make in contenders(network).items()}
    if network == "rainbow":
        flop, calls = floor(K, device)
        work[BARE] = lambda: [call() for call in calls]
    taken = timed(work, arguments.repetitions if network == "rainbow" else -(-arguments.repetitions // 10), device)
    ours_ms = median(taken["ours"])
    lines = []
    for name, ms in taken.items():
        memory = "" if name == BARE else f"{_peak_elsewhere(network, K, name, arguments):.0f}"
        distance = f"{apart[name]:.0e}" if name in apart else ""
        cells = f"{median(ms):.1f} | {min(ms):.1f} | {median(ms) / ours_ms:.2f} | {memory} | {distance}"
        lines.append(f"| {network} | {K} | {name} | {cells} |")
    best = min((median(ms), name) for name, ms in taken.items() if name.split(",")[0] in OTHERS)
    print(f"{network}, K={K}: {best[0] / ours_ms:.2f} times as fast as the best of the others ({best[1]})", flush=True)
    if network == "rainbow":
        print(f"    bare convolutions: {flop:.0f} MFLOP, {flop / median(taken[BARE]):.0f} GFLOP/s", flush=True)
    return lines


def _peak_elsewhere(network: str, K: int, name: str, arguments: argparse.Namespace) -> float:
    if arguments.device.type == "cuda":
        return peak(network, K, name, arguments.device)
    command = [
        sys.executable,
        "-m",
        "benchmarks.meta_gradient",
        "--device",
        str(arguments.device),
        "--threads",
        str(arguments.threads),
    ]
    done = subprocess.run([*command, "--peak", network, str(K), name], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=100, help="of each step; a tenth for siamese")
    parser.add_argument("--networks", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--peak", nargs=3, metavar=("NETWORK", "K", "CONTENDER"), help="print this peak memory only")
    arguments = parser.parse_args()
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            f"--device: torch must see a CUDA device (got {arguments.device}); leave it out to run on the CPU"
        )
    torch.set_num_threads(arguments.threads)
    determinism.enable(arguments.device)  # float32 as on the CPU, or the meta-gradients could not be compared
    if arguments.peak:
        network, K, name = arguments.peak
        print(peak(network, int(K), name, arguments.device))
        return
    for library in ("higher", "torchopt"):
        if find_spec(library) is None:
            print(f"{library} is not installed (extra [bench]): its rows are left out")
    table = [line for network in arguments.networks for K in (5, 10) for line in rows(network, K, arguments)]
    card = torch.cuda.get_device_name() if arguments.device.type == "cuda" else f"{arguments.threads} CPU thread(s)"
    print(f"\nN={N}, float32, {card}, torch {torch.__version__}\n")
    print("| network | K | step | ms, median | ms, least | × ours | peak MiB | distance from ours |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(table))


if __name__ == "__main__":
    main()
