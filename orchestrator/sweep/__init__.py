"""Running a sweep: its command, its course from plan to report, and its forecast."""

from orchestrator.sweep.api import run_sweep

__all__ = ["run_sweep"]
