"""The benchmark of packs, as a user starts it on a CPU."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stack_and_processes_that_share_the_device() -> None:
    words = ["-K", "1", "--configurations", "2", "--processes", "2", "--batches", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.packs", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "equal to each alone, bit for bit"
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if "| rainbow" in line
    ]
    for what in ("R = 2", "2 processes"):
        ((network, K, _, ms, rate, *_),) = [row for row in rows if row[2] == what]
        assert (network, K) == ("rainbow", "1")
        assert float(rate) == pytest.approx(2_000 / float(ms), rel=0.02)  # two configurations in each batch's time
