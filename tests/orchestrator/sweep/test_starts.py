"""Learners that start from a checkpoint: a file, or that of a run in MLflow."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from learners import checkpoint
from orchestrator import run_one
from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Trial
from orchestrator.protocol import online
from orchestrator.sweep.api import checked_sweep
from orchestrator.sweep.starts import keep_starts, with_starts
from streams.store.task_store import TaskStore
from tests.orchestrator import synthetic_sweep as synthetic
from tests.orchestrator.tracked_sweep import TrackedRuns

STREAM = {"name": "rainbow_digits", "tasks": 3, "train": 25, "validation": 12, "test": 12}


@pytest.fixture
def path(store: TaskStore, tmp_path: Path) -> Path:
    """The checkpoint of plain online learning after the stream, seeds 0 and 1."""
    run = online.assemble(store, "online", {}, [0, 1])
    run.advance(1_000)
    checkpoint.save(tmp_path / "learner.pt", "online", run.learner, "rainbow", store.shape)
    return tmp_path / "learner.pt"


def document(start: str, **change: object) -> dict[str, object]:
    learners = [{"name": "foml", "start": start}, {"name": "foml"}]
    return {"name": "warm", "stream": STREAM, "learners": learners, "seeds": 2} | change


def test_run_one_starts_from_a_checkpoint(store: TaskStore, path: Path) -> None:
    stream = STREAM | {"store": str(store.path)}
    warm = run_one("online", stream=stream, seeds=2, start=path, progress=False)
    cold = run_one("online", stream=stream, seeds=2, progress=False)
    learned = checkpoint.load(path)
    first = online.assemble(store, "online", {}, [0, 1]).batch(0)[0][0]
    wrong = (learned.predict(first.x).argmax(-1) != first.y).double().mean(1)
    assert np.array_equal(warm.measured.by_batch["online_error"][:, 0], wrong.numpy())
    assert not np.array_equal(warm.measured.by_batch["online_loss"], cold.measured.by_batch["online_loss"])
    assert warm.configuration.hash != cold.configuration.hash
    assert warm.configuration.label == f"online start={path.parent.name}/learner.pt"
    assert warm.configuration.start == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_sweep_copies_its_checkpoints_and_identifies_configurations_by_their_content(
    path: Path, tmp_path: Path
) -> None:
    sweep = checked_sweep(document(str(path)), (), None)
    warm, cold = (trial.configuration for trial in make_plan(sweep, "store").trials)
    plain = check_sweep(document("x") | {"learners": [{"name": "foml"}]})
    assert cold.hash == make_plan(plain, "store").trials[0].configuration.hash
    assert warm.hash != cold.hash and warm.label.startswith("foml start=") and cold.label == "foml"
    keep_starts(sweep, tmp_path)
    copy, nothing = warm.start_file(tmp_path), cold.start_file(tmp_path)
    assert copy is not None and copy.read_bytes() == path.read_bytes() and nothing is None
    elsewhere = tmp_path / "other.pt"
    elsewhere.write_bytes(path.read_bytes())
    moved = make_plan(checked_sweep(document(str(elsewhere)), (), None), "store").trials[0].configuration
    assert moved.hash == warm.hash


def test_a_run_in_mlflow_is_a_checkpoint(
    path: Path, tmp_path: Path, tracking_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOML_CACHE", str(tmp_path / "cache"))
    trial = Trial(synthetic.configuration("online"), (0, 1))
    sweep = synthetic.make_sweep(tmp_path / "results", "pretraining", trial)
    write_chunk = synthetic.SyntheticSweep.write_chunk

    def with_checkpoint(self: synthetic.SyntheticSweep, trial: Trial, stop: int | None = None) -> None:
        write_chunk(self, trial, stop)
        (trial.folder(self.root) / "learner.pt").write_bytes(path.read_bytes())

    monkeypatch.setattr(synthetic.SyntheticSweep, "write_chunk", with_checkpoint)
    synthetic.write_all(sweep, tracking_uri)
    tracked = TrackedRuns(tracking_uri)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for run in (tracked.one("configuration"), tracked.one("seed", seed=1)):
        checked = check_sweep(document(run.info.run_id, tracking={"uri": tracking_uri}))
        start = with_starts(checked).learners[0].start
        assert start is not None and (start.digest, start.label) == (digest, run.info.run_id[:8])
        assert torch.equal(checkpoint.load(start.path).weights().phi, checkpoint.load(path).weights().phi)


def test_what_is_no_checkpoint_for_the_learner_is_one_line_each(path: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"nothing")
    learners = [
        {"name": "foml", "start": str(tmp_path / "none.pt")},
        {"name": "online", "start": str(path)},
        {"name": "replay", "start": str(tmp_path / "bad.pt")},
    ]
    with pytest.raises(ConfigError) as caught:
        checked_sweep(document("x", learners=learners, seeds=3), (), None)
    none, seeds, bad = caught.value.faults
    assert none == (
        f"configuration: learners[0].start: must be a readable checkpoint (No such file or directory) (got {tmp_path}/none.pt)"
    )
    rule = "must have one seed, or every seed of the sweep: [2] are not among [0, 1]"
    assert seeds == f"configuration: learners[1].start: {rule} (got {path})"
    assert bad.startswith(
        "configuration: learners[2].start: must be an intact file written by learners.checkpoint.save"
    )
    with pytest.raises(ConfigError) as caught:
        check_sweep(document("x", learners=[{"name": "tfs", "start": str(path)}, {"name": "foml", "start": 3}]))
    assert caught.value.faults == (
        f"configuration: learners[0].start: tfs cannot start from the weights of a learner (got {path}); leave it out",
        "configuration: learners[1].start: must be a checkpoint file that ends in .pt, or the id of a run (got 3)",
    )
    torch.save(torch.load(path, weights_only=True) | {"learner": "own.learner"}, tmp_path / "own.pt")
    with pytest.raises(ConfigError) as caught:
        checked_sweep(document(str(tmp_path / "own.pt")), (), None)
    remedy = f"a learner of your own starts only entries of itself) (got {tmp_path}/own.pt)"  # not an option of predict
    assert caught.value.faults[0].endswith(f"(got 'own.learner'); {remedy}")
    with pytest.raises(ConfigError, match="storage: must be a folder where a learner has a start"):
        checked_sweep(document(str(path), storage="s3://bucket/results"), (), None)
