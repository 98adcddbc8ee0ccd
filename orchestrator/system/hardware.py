"""What a trial's actor runs on, and how much memory it needs there."""

from __future__ import annotations

import math
import os
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

if TYPE_CHECKING:
    import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CPUS = Path("/proc/cpuinfo")


def facts(device: torch.device) -> dict[str, str]:
    """Tags that say where a trial runs: host, device as torch sees it, threads."""
    import torch

    return {
        "foml.hostname": socket.gethostname(),
        "foml.device": device_name(device),
        "foml.threads": str(torch.get_num_threads()),
        "foml.platform": platform.platform(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with the instructions that torch uses on it."""
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


def begin_peaks(device: torch.device) -> None:
    """Forget the peaks so far: a process runs one trial after the other. (Only Linux forgets that of main memory.)"""
    with suppress(OSError):
        _RESET.write_text("5")
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def peak_memory() -> int:
    """Peak of this process's main memory (resident set) in bytes."""
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_gpu_memory(device: torch.device) -> float:
    """Peak of what torch had allocated on the GPU in bytes; NaN on a CPU."""
    if device.type != "cuda":
        return math.nan
    import torch

    return float(torch.cuda.max_memory_allocated(device))


_QUERY = "--query-gpu=utilization.gpu,memory.used,memory.total"
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine. ``busy``: share of the time, None if it does not say; ``used``, ``total``: bytes."""

    busy: float | None
    used: int
    total: int


def resident_bytes() -> int | None:
    """Memory of this process that is in use now; None where there is no `/proc`."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def machine_bytes() -> int | None:
    """Memory of this machine."""
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def gpu_bytes(gpu: bool) -> int:
    """What torch has taken of this process's GPU; 0 where it has none."""
    if not gpu:
        return 0
    import torch

    return int(torch.cuda.memory_reserved())


def gpus(timeout: float = 2.0) -> list[Gpu]:
    """The GPUs of this machine as `nvidia-smi` shows them, which comes with their driver; none where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    words = [command, _QUERY, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=True)
        return [_gpu(line) for line in done.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def _gpu(line: str) -> Gpu:
    busy, used, total = (word.strip() for word in line.split(","))
    return Gpu(int(busy) / 100 if busy.isdigit() else None, int(used) * _MIB, int(total) * _MIB)


def size(count: float) -> str:
    """Bytes as people say them.

    >>> size(640e6), size(1.53e9)
    ('640 MB', '1.5 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
