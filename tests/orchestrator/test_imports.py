"""What importing a room loads, each checked in a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "ray", "mlflow", "optuna", "matplotlib", "bokeh", "pandas", "rich"}


def loaded_by(statement: str) -> set[str]:
    """The top-level modules in a fresh process after the statement."""
    script = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def modules(room: str) -> list[str]:
    files = (ROOT / "orchestrator" / room).glob("*.py")
    return sorted(f"orchestrator.{room}.{file.stem}" for file in files if not file.stem.startswith("__"))


def test_configuration_plan_storage_and_tracking_load_no_torch() -> None:
    names = [name for room in ("config", "plan", "storage", "tracking") for name in modules(room)]
    assert len(names) > 20
    assert not loaded_by(f"import {', '.join(names)}") & {"torch", "torchvision", "ray"}


def test_the_report_loads_no_ray() -> None:
    assert not loaded_by(f"import {', '.join(modules('report'))}") & {"ray"}


def test_the_sweep_command_starts_without_torch_ray_mlflow_plots_and_statistics() -> None:
    loaded = loaded_by("import orchestrator.sweep.__main__; assert 'scipy.stats' not in sys.modules")
    assert not loaded & {"torch", "ray", "mlflow", "optuna", "matplotlib", "bokeh"}


def test_the_package_itself_loads_nothing_heavy() -> None:
    assert not loaded_by("import orchestrator") & HEAVY


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("run_sweep", "orchestrator.sweep.api"),
        ("run_one", "orchestrator.sweep.one_run"),
        ("load_curves", "orchestrator.tracking.reader"),
    ],
)
def test_public_functions_are_those_of_their_rooms(name: str, home: str) -> None:
    import importlib

    import orchestrator

    assert name in orchestrator.__all__
    assert getattr(orchestrator, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="module orchestrator has no attribute run_swep"):
        orchestrator.run_swep  # noqa: B018


def test_list_and_show_start_without_torch_ray_and_mlflow() -> None:
    assert not loaded_by("import orchestrator.list, orchestrator.show") & HEAVY
