"""Deterministic mode: what it sets, and what it does not load."""

import subprocess
import sys
from pathlib import Path

ENABLED = """
import sys, torch
from learners.networks import determinism
determinism.enable("cpu")
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
print(torch.utils.deterministic.fill_uninitialized_memory, "sympy" in sys.modules, "torch._dynamo" in sys.modules)
"""


def test_the_whole_process_is_deterministic_with_warnings_and_without_torchs_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENABLED], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == ["True True", "False False False"], done.stderr
