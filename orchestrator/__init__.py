"""Runs, tracks and reports sweeps of online meta-learners.

>>> from orchestrator import load_curves, run_sweep
>>> result = run_sweep("tune_configs/quickstart.yaml")  # doctest: +SKIP
>>> curves = load_curves(result.name)                   # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.sweep.api import run_sweep
    from orchestrator.tracking.reader import load_curves

__all__ = ["load_curves", "run_sweep"]

_HOMES = {"load_curves": "orchestrator.tracking.reader", "run_sweep": "orchestrator.sweep.api"}


def __getattr__(name: str) -> Any:
    """A public function, imported when it is first used: a command imports no more than it needs."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
