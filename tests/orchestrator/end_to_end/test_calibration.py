"""Full Rainbow-MNIST, on demand (`pytest -m slow`): FOML reproduces the numbers of docs/reproduction.md."""

import os
from pathlib import Path

import pytest

from benchmarks.reproduction import tasks_to
from orchestrator.protocol import metrics, online
from streams import recipes
from streams.build import build

FOLDERS = [Path(os.environ.get("FOML_DATA", "none")), Path(__file__).resolve().parents[4] / "shared" / "data"]
DATA = next((folder for folder in FOLDERS if (folder / "MNIST").is_dir()), None)


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="no MNIST: set FOML_DATA to a folder that holds MNIST/raw")
def test_foml_and_online_on_rainbow_mnist(tmp_path: Path) -> None:
    store = build(recipes()["rainbow_mnist"](data=str(DATA)), [0, 1, 2], tmp_path / "store")  # type: ignore[call-arg]
    errors = {}
    for learner in ("foml", "online"):
        run = online.assemble(store, learner, {}, [0, 1, 2])
        while not run.finished:
            run.advance(90)
        errors[learner] = metrics.held_out(run.curves)
        assert run.curves.diverged == [-1, -1, -1]
    cumulative = {name: metrics.cumulative(error)[:, -1] for name, error in errors.items()}
    last = {name: error[:, -8:].mean(1) for name, error in errors.items()}
    for name, error in errors.items():
        print(name, cumulative[name].round(3).tolist(), last[name].round(3).tolist(), tasks_to(error, 0.10))
    # Seed 0 is near a single-seed calibration of 0.160; the other orders of tasks are harder.
    assert 0.13 < cumulative["foml"][0] < 0.19
    assert 0.17 < cumulative["foml"].mean() < 0.26
    # The paper: near 10 % at the end.
    assert 0.08 < last["foml"].mean() < 0.12
    assert abs((cumulative["foml"] - cumulative["online"]).mean()) < 0.05
