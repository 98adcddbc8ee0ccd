"""The reference of regret: against plain PyTorch, and in a sweep."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.tracking import MlflowClient

from learners.networks import build
from orchestrator import regret
from orchestrator.config.load import load_sweep
from orchestrator.errors import OrchestratorError
from orchestrator.plan import task_store
from orchestrator.plan.expand import make_plan
from orchestrator.protocol import hindsight, metrics
from orchestrator.protocol import online as protocol
from orchestrator.report import __main__
from orchestrator.report.derived_curves import with_regret
from orchestrator.storage.journal import Journal
from orchestrator.tracking import reader
from orchestrator.tracking.database import report_command
from orchestrator.tracking.tables import HINDSIGHT_FILE
from streams import schedule
from streams.store.task_store import TaskStore
from streams.stream import Stream
from tests.orchestrator.protocol_sweep import compute, flip
from tests.orchestrator.sweep_command import PATIENCE_S, curves_of, folder_with, run_here, uri, with_database

SMALL = """
name: small
stream: {name: rainbow_digits, tasks: 2, train: 50, validation: 12, test: 12}
learners: [{name: online}, {name: icarl}]
seeds: 2
report: false
"""


def test_the_reference_is_plain_adam_on_each_task_alone(store: TaskStore) -> None:
    # Double precision: Adam's first steps are signs of gradients, those of rounding too.
    network = build.build("rainbow", store.shape, store.classes, dtype=torch.float64)
    reference = hindsight.reference(store, network, [0, 2], schedule.Sequential(), 10, epochs=2)
    assert reference[["seed", "task", "last_batch"]].to_numpy().tolist() == [
        [0, 0, 2],
        [2, 0, 2],
        [0, 1, 4],
        [2, 1, 4],
        [0, 2, 7],
        [2, 2, 7],
    ]
    images = protocol.image_table(store, "cpu", torch.float64)
    for seed in (0, 2):
        points = Stream(store, seed).read(25, 25)
        x = images.gather(torch.from_numpy(points.image_ids)[None])
        y = torch.from_numpy(points.labels)[None]
        phi, statistics = network.initial([seed])
        phi = phi.clone().requires_grad_()
        adam = torch.optim.Adam([phi], lr=0.001)
        for _ in range(2):
            for at in range(0, 25, 10):
                logits, _ = network.training_logits(phi, statistics, x[:, at : at + 10])
                adam.zero_grad()
                torch.nn.functional.cross_entropy(logits[0], y[0, at : at + 10]).backward()
                adam.step()
        loss = torch.nn.functional.cross_entropy(network.logits(phi.detach(), statistics, x)[0], y[0])
        got = reference[(reference.seed == seed) & (reference.task == 1)].loss.item()
        assert got == pytest.approx(float(loss), rel=1e-7)


def test_a_stream_without_boundaries_has_no_regret(store: TaskStore) -> None:
    network = build.build("rainbow", store.shape, store.classes)
    with pytest.raises(
        OrchestratorError, match="regret: needs a stream with sharp boundaries, which markov does not have"
    ):
        hindsight.reference(store, network, [0], schedule.Markov(), 10)


def test_regret_in_closed_form() -> None:
    loss = np.array([3.0, 1.0, 2.0, 2.0, 0.5])
    got = metrics.regret(loss, np.array([1, 4]), np.array([0.5, 1.0]))
    np.testing.assert_allclose(got, [2.0 - 0.5, 1.5 + 1.5 - 1.0])
    assert metrics.regret(loss, np.array([1, 4, 9]), np.array([0.5, 1.0, 0.1])).shape == (2,)  # still running
    loss[3] = np.nan
    assert np.isnan(metrics.regret(loss, np.array([1, 4]), np.array([0.5, 1.0]))).tolist() == [False, True]


def test_regret_computes_with_the_threads_of_a_trial(
    store: TaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path, f"{SMALL}resources: {{cpus: 2}}\n")
    of = load_sweep(folder / "sweep.yaml")
    Journal.look(folder / "results/small", make_plan(of, store.hash)).take()
    threads = []

    def reference(*of: object) -> pd.DataFrame:
        threads.append(torch.get_num_threads())
        raise OrchestratorError("enough")

    runs = SimpleNamespace(configurations=[SimpleNamespace(complete=True)], tags={})
    monkeypatch.setattr(reader, "find_sweep", lambda *of: runs)
    monkeypatch.setattr(task_store, "open_store", lambda of, **more: store)
    monkeypatch.setattr(hindsight, "reference", reference)
    try:
        with pytest.raises(OrchestratorError, match="enough"):
            regret.add_regret("small", str(folder / "results"))
    finally:
        torch.set_num_threads(1)
    assert threads == [2]


def test_regret_of_a_sweep(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = folder_with(tmp_path, f"{SMALL}tracking: {{uri: 'sqlite:///{tmp_path}/mlflow.db'}}\n")
    compute(folder)  # then the command starts no Ray
    with_database(folder)
    assert run_here(folder, "--resume", "small").returncode == 0
    command = [sys.executable, "-m", "orchestrator.regret", "small", "--epochs", "3"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"shown in the report: {report_command(uri(folder), 'small')}"
    sweep = reader.find_sweep("small", uri(folder))
    online = next(of for of in sweep.configurations if of.learner == "online")
    client = MlflowClient(uri(folder))
    path = client.download_artifacts(sweep.run_id, HINDSIGHT_FILE, str(tmp_path))
    reference = pd.read_parquet(path)
    curves = next(each for key, each in curves_of(folder, "small").items() if key.startswith(online.hash))
    last = []
    for row, run_ in enumerate(online.seeds):
        loss = curves.by_batch["online_loss"][row]
        hind = reference[reference.seed == run_.seed].sort_values("task").loss.to_numpy()
        expected = [loss[:5].mean() - hind[0], loss[:5].mean() - hind[0] + loss[5:].mean() - hind[1]]
        points = sorted(client.get_metric_history(run_.run_id, "regret"), key=lambda point: point.step)
        assert [point.step for point in points] == [0, 1]
        np.testing.assert_allclose([point.value for point in points], expected, atol=1e-9)
        last.append(expected[1])
    assert f"online: {metrics.interval(np.array(last))}" in done.stdout
    assert "icarl" not in done.stdout
    of_configuration = client.get_metric_history(online.run_id, "regret")
    assert max(of_configuration, key=lambda point: point.step).value == pytest.approx(np.mean(last))
    monkeypatch.chdir(folder)
    out = ["--out", "results/small/report"]
    assert __main__.main(["small", "--tracking-uri", uri(folder), *out]) == 0
    summary = pd.read_csv(folder / "results/small/report/summary.csv").set_index("learner")
    assert summary.regret_mean["online"] == pytest.approx(np.mean(last))
    assert np.isnan(summary.regret_mean["icarl"])
    assert np.isfinite(summary.forward_transfer_mean).all()
    page = (folder / "results/small/report/report.html").read_text()
    assert "Regret against hindsight" in page and "Forward transfer" in page
    assert (folder / "results/small/report/transfer.png").exists()
    flip(next(folder.glob(f"mlartifacts/*/{sweep.run_id}/artifacts/{HINDSIGHT_FILE}")))
    curves_before = reader.load_curves("small", uri(folder))
    caplog.clear()
    again = with_regret(reader.find_sweep("small", uri(folder)), curves_before)
    assert again.equals(curves_before)  # without regret
    (line,) = (record.getMessage() for record in caplog.records)
    curves = with_regret(reader.find_sweep("small", uri(folder)), curves_before, reference)  # not the one in MLflow
    curves = curves[(curves.metric == "regret") & (curves.configuration == online.hash)].sort_values(["seed", "step"])
    np.testing.assert_allclose(curves.value.to_numpy()[1::2], last, atol=1e-9)
    assert line.startswith(f"{HINDSIGHT_FILE} of the sweep (run {sweep.run_id}): damaged (its SHA-256 differs); ")
    assert line.endswith("python -m orchestrator.regret small fits it again")
    torch.set_num_threads(2)
    assert regret.main(["small", "--epochs", "3"]) == 0
    assert torch.get_num_threads() == 1
    path = client.download_artifacts(sweep.run_id, HINDSIGHT_FILE, str(tmp_path))
    assert pd.read_parquet(path).equals(reference)  # bit for bit, in another process
    capsys.readouterr()
    assert regret.main(["small", "--epochs", "4"]) == 2
    assert capsys.readouterr().err.startswith("--epochs: this sweep's regret was computed with 3")
    assert regret.main(["nowhere"]) == 2


def test_regret_is_of_the_sweep_in_this_folder_and_of_its_present_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another sweep of the same name, in another experiment and started later, is left as it is."""
    folder = tmp_path / "folder"
    database = f"sqlite:///{folder}/mlflow.db"
    for alpha1, storage, experiment in (("0.001", "results", ""), ("0.1", "results", ""), ("0.1", "more", "second")):
        text = SMALL.replace("{name: online}, {name: icarl}", f"{{name: online, alpha1: {alpha1}}}")
        text += f"storage: {storage}\ntracking: {{uri: '{database}', experiment: {experiment or 'null'}}}\n"
        with_database(folder_with(folder, text))
        compute(folder)
        assert run_here(folder, "sweep.yaml").returncode == 0
    monkeypatch.chdir(folder)
    assert regret.main(["small", "--epochs", "1"]) == 0
    (line, _) = capsys.readouterr().out.splitlines()
    first, second = (reader.find_sweep("small", database, experiment) for experiment in ("small", "second"))
    assert [runs.removed for runs in first.configurations] == [False, True]
    client = MlflowClient(database)
    present, earlier = (client.get_run(runs.run_id).data.metrics["regret"] for runs in first.configurations)
    assert line.startswith(f"online: {present:.4f} ± ") and abs(present - earlier) > 1e-3
    assert "foml_internal.hindsight_epochs" in first.tags and "foml_internal.hindsight_epochs" not in second.tags
    assert all("regret" not in runs.metrics for runs in second.configurations)
