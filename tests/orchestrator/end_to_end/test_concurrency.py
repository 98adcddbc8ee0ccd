"""Concurrency: parallel trials, sweeps on one database, and commands for the same sweep."""

import subprocess
from pathlib import Path

import pytest
import yaml

from orchestrator.config.load import check_sweep
from orchestrator.console.output import Output
from orchestrator.execution.ray_session import Cluster
from orchestrator.sweep.api import run_sweep
from orchestrator.tracking import writer
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import (
    LEARNERS,
    LONG,
    TINY,
    assert_same,
    command,
    curves_of,
    folder_with,
    points,
    reached,
    run,
    running,
    statuses,
    trials,
    uri,
    wait_for,
    with_database,
)

EIGHT = TINY.replace(
    LEARNERS,
    "[{name: online, alpha1: {grid: [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008]}}]",
)


@pytest.mark.parametrize(
    ("cpus", "gpus", "parallel"), [(0.25, 0, 8), (0.5, 0, 4), (1, 0, 2), (3, 0, 1), (0.25, 0.5, 2)]
)
def test_fractions_of_processors_make_slots(cpus: float, gpus: float, parallel: int) -> None:
    of = check_sweep(yaml.safe_load(EIGHT) | {"resources": {"cpus": cpus, "gpus": gpus}})
    assert Cluster(cpus=2, gpus=1, node_cpus=2, node_gpus=1, local=True).slots(of) == parallel


def test_a_command_sees_trials_that_another_finished_during_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other adds a seed, as a separate stack, after this one has read the journal and before it has the lock."""
    text = TINY.replace(LEARNERS, "[{name: online}]")
    folder = folder_with(tmp_path, text)
    with_database(folder)
    prepare, lines = writer.prepare, []

    def another_comes_first(uri: str) -> None:
        for seeds in ("seeds: 2", "seeds: 3"):
            compute(folder_with(tmp_path, text.replace("seeds: 2", seeds)))
        prepare(uri)

    monkeypatch.setattr(writer, "prepare", another_comes_first)
    monkeypatch.setattr(Output, "say", lambda self, line: lines.append(line))
    overrides = ["seeds=3", f"storage={folder / 'results'}", f"tracking.uri={uri(folder)}"]
    assert run_sweep(folder / "sweep.yaml", overrides).exit_code == 0
    assert lines == ["tiny: 2 trials, 2 of them ended before"]
    assert statuses(folder) == ["FINISHED"] * (1 + 1 + 3)


@pytest.mark.slow
def test_eight_parallel_trials_are_eight_complete_runs(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "work", EIGHT)
    done = run(folder, "sweep.yaml", slots=8, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "tiny: 8 trials, 8 at a time" in done.stderr
    assert statuses(folder) == ["FINISHED"] * (1 + 8 + 16)
    _, _, expected = compute(folder_with(tmp_path / "bare", EIGHT))
    computed = curves_of(folder, "tiny")
    assert computed.keys() == expected.keys() and len(expected) == 8
    for key, curves in computed.items():
        assert_same(curves, expected[key])
    online = points(folder, "tiny", "online_error").groupby(["configuration", "seed"]).step
    assert [sorted(steps) for _, steps in online] == [list(range(15))] * 16
    # Tune may assign a trial to a free actor while another one still starts for it: the first is fenced off.
    assert len(trials(folder, "tiny")) == 8


@pytest.mark.slow
def test_two_sweeps_on_one_fresh_database_and_a_third_of_the_same_name(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG.replace("train: 150", "train: 900"))  # still running when the third starts
    (folder / "tiny.yaml").write_text(TINY)
    with running(folder, "sweep.yaml", fresh=True) as one, running(folder, "tiny.yaml", fresh=True) as two:
        wait_for(lambda: reached(folder, "long", 2), one)
        third = run(folder, "--resume", "long", timeout=120)
        assert third.returncode == 2, third.stderr
        (line,) = third.stderr.strip().splitlines()
        assert line.startswith(f"results/long: one command at a time runs a sweep (got process {one.pid} on ")
        assert line.endswith("; wait for it, or stop it")
        for process in (one, two):
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
    assert statuses(folder) == ["FINISHED"] * ((1 + 1 + 2) + (1 + 4 + 8))
    _, _, expected = compute(folder_with(tmp_path / "bare", TINY))
    for key, curves in curves_of(folder, "tiny").items():
        assert_same(curves, expected.pop(key))
    assert not expected
    online = points(folder, "tiny", "online_error").groupby(["configuration", "seed"]).step
    assert [sorted(steps) for _, steps in online] == [list(range(15))] * 8
    long = points(folder, "long", "online_error")
    assert sorted(long[long["seed"] == 0]["step"]) == list(range(360))


@pytest.mark.slow
def test_six_sweeps_start_on_a_fresh_database_simultaneously(tmp_path: Path) -> None:
    """Six complete commands; all trials are computed already, so that the commands meet at MLflow."""
    names = [f"sweep {number}" for number in range(6)]
    for name in names:
        compute(folder_with(tmp_path, EIGHT.replace("name: tiny", f"name: {name}")))
    processes = [
        subprocess.Popen(
            command("--resume", name), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in names
    ]
    for process in processes:
        _, errors = process.communicate(timeout=400)
        assert process.returncode == 0, errors
        assert errors.strip().endswith("8 trials, 8 of them ended before")
    assert statuses(tmp_path) == ["FINISHED"] * 6 * (1 + 8 + 16)
    for name in names:
        assert len(points(tmp_path, name, "online_error")) == 16 * 15
