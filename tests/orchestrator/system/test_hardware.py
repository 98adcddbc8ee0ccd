"""GPUs as `nvidia-smi` reports them, threads of torch, and the memory of this process."""

import mmap
import os
from pathlib import Path

import pytest
import torch

from orchestrator.system import hardware


def test_gpus_as_nvidia_smi_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the command, which is part of a driver that this machine may not have."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '87, 3000, 81559'\necho '[N/A], 0, 81559'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    mib = 1024 * 1024
    assert hardware.gpus() == [hardware.Gpu(0.87, 3000 * mib, 81559 * mib), hardware.Gpu(None, 0, 81559 * mib)]
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert hardware.gpus() == []


@pytest.mark.parametrize(("cpus", "threads"), [(0.01, 1), (1, 1), (2, 2), (2.9, 2)])
def test_a_thread_for_each_whole_cpu(cpus: float, threads: int) -> None:
    hardware.set_threads(cpus)
    try:
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)


def test_threads_are_set_in_one_place() -> None:
    root = Path(hardware.__file__).parents[2]
    files = (file for package in ("learners", "orchestrator", "streams") for file in (root / package).rglob("*.py"))
    assert [file.name for file in files if "set_num_threads(" in file.read_text()] == ["hardware.py"]


def written_block() -> mmap.mmap:
    """128 MB of new memory, written. The heap may hold as much that earlier tests have freed, which is resident already."""
    block = mmap.mmap(-1, 128_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, len(block), mmap.PAGESIZE):
        block[place] = 1
    return block


def test_memory_of_this_process() -> None:
    before = hardware.resident_bytes()
    with written_block():
        after = hardware.resident_bytes()
        assert 100e6 < after - before < 200e6
        assert after < hardware.machine_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert hardware.peak_memory() >= after


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux resets the peak of main memory")
def test_the_peak_of_an_earlier_trial_is_forgotten() -> None:
    with written_block():
        with_block = hardware.peak_memory()
    hardware.reset_peak_memory(torch.device("cpu"))
    assert with_block - hardware.peak_memory() > 100e6
