"""Runs, tracks and reports sweeps of online meta-learners.

>>> from orchestrator import load_curves, run_one, run_sweep
>>> run_one("foml", K=5, stream="rainbow_digits", seeds=3)  # doctest: +SKIP
>>> result = run_sweep("tune_configs/quickstart.yaml")  # doctest: +SKIP
>>> curves = load_curves(result.name)                   # doctest: +SKIP
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.sweep.api import run_sweep
    from orchestrator.sweep.one_run import run_one
    from orchestrator.tracking.reader import load_curves


class _SiblingFinder:
    """Finds this project's packages beside this one, whatever folders of these names the current folder holds."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in ("learners", "streams", "tune_configs"):
            return None
        return PathFinder.find_spec(name, [str(Path(__file__).parents[1])])


sys.meta_path.insert(0, _SiblingFinder)
import_module("streams.command_line").set_up_if_command("orchestrator")  # before a command imports what takes seconds

__all__ = ["load_curves", "run_one", "run_sweep"]

_HOMES = {
    "load_curves": "orchestrator.tracking.reader",
    "run_one": "orchestrator.sweep.one_run",
    "run_sweep": "orchestrator.sweep.api",
}


def __getattr__(name: str) -> Any:
    """A public function, imported when it is first used: a command imports no more than it needs."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
