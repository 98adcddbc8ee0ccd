"""The examples of the documentation work as described: a user's own learner, stream and sweep."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError
from orchestrator.tracking.reader import load_curves

ROOT = Path(__file__).parents[2]
OWN = ("--learner-module", "my_learners.averaged", "--tracking-uri", "sqlite:///../mlflow.db")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "FOML_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=540, env=environment
    )


def test_a_sweep_of_a_users_own_learner(folder: Path) -> None:
    """With the objective of the documentation."""
    objective = "objective={function: my_objectives.worst.worst_task}"
    words = ("examples/own_learner.yaml", objective, "report=false", "--local", "--json", "--quiet")
    done = run(folder.parent, "-m", "orchestrator.sweep", *words)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["objective"], document["mode"]) == ("my_objectives.worst.worst_task", "min")
    curves = load_curves("own-learner", f"sqlite:///{folder.parent}/mlflow.db")
    highest = curves[curves.metric == "validation_error"].groupby(["configuration", "seed"]).value.max()
    for one in document["configurations"]:
        assert one["values"] == {str(seed): highest[one["configuration"], seed] for seed in (0, 1)}
    means = [one["mean"] for one in document["configurations"]]
    assert means == sorted(means)
    labels = {one["label"]: one for one in document["configurations"]}
    assert set(labels) == {"my_learners.averaged decay=0.5", "my_learners.averaged decay=0.9", "online"}
    assert all(one["usable"] and one["n"] == 2 for one in labels.values())
    run_id = labels["my_learners.averaged decay=0.9"]["run_id"]
    assert run(folder, "digits_folder.py", "my_images").returncode == 0
    picture = "my_images/digit 3/000.png"
    predicted = run(folder, "-m", "orchestrator.predict", run_id, picture, *OWN)
    assert predicted.returncode == 0, predicted.stderr
    assert predicted.stdout.startswith(f"{picture}: ") and " of 2 seeds)" in predicted.stdout


def test_a_users_own_network_learns_and_predicts_from_its_checkpoint(folder: Path) -> None:
    """With the learners of the YAML, in a separate process without Ray."""
    script = """
from pathlib import Path
import torch
from learners import checkpoint
from orchestrator.config.load import load_sweep
from orchestrator.plan.task_store import open_store
from orchestrator.protocol import online
sweep = load_sweep("own_network.yaml")
store = open_store(sweep)
for spec in sweep.learners:
    run = online.assemble(store, spec.name, spec.fixed, sweep.seeds, network=sweep.network)
    run.advance(8)
    checkpoint.save(Path("a.pt"), spec.name, run.learner, sweep.network, store.shape)
    loaded = checkpoint.load("a.pt", modules=["my_networks.strided"])
    x = torch.rand(2, 3, *store.shape, generator=torch.Generator().manual_seed(0))
    print(spec.name, run.curves.by_batch["online_loss"].shape, torch.equal(loaded.predict(x), run.learner.predict(x)))
"""
    done = run(folder, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["foml (2, 8) True", "icarl (2, 8) True"]


def test_a_stream_from_a_folder_of_images_is_planned(folder: Path) -> None:
    assert run(folder, "digits_folder.py", "my_images").returncode == 0
    assert len(list(folder.glob("my_images/*/*.png"))) == 400
    done = run(folder, "-m", "orchestrator.sweep", "own_images.yaml", "--plan")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:3]]
    # 4 tasks of 50 images in batches of 10
    assert [row[1:6] for row in rows] == [["online", f"alpha1={a}", "1", "2", "20"] for a in ("0.001", "0.003")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.mine", "nowhere.mine must be a module that can be imported (ModuleNotFoundError: No module named 'nowhere')"),
        ("learners.base", "learners.base must define exactly one Learner (found 0)"),
    ],
)  # fmt: skip
def test_a_module_without_a_learner_is_refused(name: str, message: str) -> None:
    sweep = {"name": "p", "stream": {"name": "rainbow_digits"}, "learners": [{"name": name}], "seeds": 1}
    with pytest.raises(ConfigError) as caught:
        check_sweep(sweep)
    assert str(caught.value) == f"configuration: learners[0].name: {message}"
