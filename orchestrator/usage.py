"""What a sweep uses of its machines: memory of its processes, and of the GPUs. What cannot be had is left out."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
