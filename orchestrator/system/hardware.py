"""The hardware of this machine, the threads that torch computes with, and the memory that this process uses."""

from __future__ import annotations

import math
import platform
import resource
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CPUS = Path("/proc/cpuinfo")


def facts(device: torch.device) -> dict[str, str]:
    """Tags of a trial's run: host, device as torch names it, threads, platform."""
    import torch

    return {
        "foml.hostname": socket.gethostname(),
        "foml.device": device_name(device),
        "foml.threads": str(torch.get_num_threads()),
        "foml.platform": platform.platform(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with the instruction set that torch uses on it."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{cpu_name()} ({torch.backends.cpu.get_cpu_capability()})"


def cpu_name() -> str:
    """The model of this machine's CPU."""
    with suppress(OSError):
        for line in _CPUS.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def set_threads(cpus: float) -> None:
    """Compute with one thread for each whole CPU from here on, and with at least one.

    Each command that computes calls this before anything else. Torch's default, one thread per core, is several times
    slower for networks this small where other processes need the cores: waiting threads occupy them.
    """
    import torch

    torch.set_num_threads(max(1, int(cpus)))


def reset_peak_memory(device: torch.device) -> None:
    """Measure peaks from here on, since one process runs several trials (for main memory on Linux only)."""
    with suppress(OSError):
        _RESET.write_text("5")
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    with suppress(OSError):  # psutil has no peak on Linux, and getrusage's includes that of the parent before exec
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_memory(device: torch.device) -> float:
    """Peak memory that torch allocated on the GPU in bytes; NaN on a CPU."""
    if device.type != "cuda":
        return math.nan
    import torch

    return float(torch.cuda.max_memory_allocated(device))


def resident_bytes() -> int:
    """Resident memory of this process in bytes."""
    return psutil.Process().memory_info().rss


def machine_bytes() -> int:
    """Main memory of this machine in bytes."""
    return psutil.virtual_memory().total


def gpu_bytes(gpu: bool) -> int:
    """Memory that torch reserves on this process's GPU in bytes; 0 without a GPU."""
    if not gpu:
        return 0
    import torch

    return int(torch.cuda.memory_reserved())


_QUERY = "--query-gpu=utilization.gpu,memory.used,memory.total"
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        busy: share of the time that it computes; None if the driver does not report it.
        used: bytes.
        total: bytes.
    """

    busy: float | None
    used: int
    total: int


def gpus() -> list[Gpu]:
    """The GPUs of this machine as `nvidia-smi` reports them; empty if it is missing or fails."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    words = [command, _QUERY, "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(words, capture_output=True, text=True, timeout=2, check=True).stdout
        return [_gpu(line) for line in output.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def _gpu(line: str) -> Gpu:
    busy, used, total = (word.strip() for word in line.split(","))
    return Gpu(int(busy) / 100 if busy.isdigit() else None, int(used) * _MIB, int(total) * _MIB)


def size(count: float) -> str:
    """A number of bytes as text.

    >>> size(640e6), size(1.53e9)
    ('640 MB', '1.5 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
