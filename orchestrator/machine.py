"""What a trial's actor runs on, and how much memory it needs there."""

from __future__ import annotations

import math
import platform
import resource
import socket
import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CPUS = Path("/proc/cpuinfo")


def facts(device: torch.device) -> dict[str, str]:
    """Tags that say where a trial runs: host, device as torch sees it, threads."""
    return {
        "foml.hostname": socket.gethostname(),
        "foml.device": device_name(device),
        "foml.threads": str(torch.get_num_threads()),
        "foml.platform": platform.platform(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with the instructions that torch uses on it."""
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
    return float(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else math.nan
