"""Running a sweep: its command, its course from plan to report, and its forecast."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.sweep.api import run_sweep

__all__ = ["run_sweep"]


def __getattr__(name: str) -> Any:
    """`run_sweep`, imported when it is first used: the command imports no more than it needs."""
    if name == "run_sweep":
        from orchestrator.sweep.api import run_sweep

        return run_sweep
    raise AttributeError(f"module {__name__} has no attribute {name}")
