"""The content of MLflow after interruptions and failures of every kind."""

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.plan.plan import Plan, Trial
from orchestrator.tracking import writer as tracking
from orchestrator.tracking.names import parameters
from orchestrator.tracking.sync import SweepSync
from orchestrator.tracking.writer import TrackingError, TrackingProblem, Writer, prepare
from tests.orchestrator import synthetic_sweep as synthetic
from tests.orchestrator.tracked_sweep import TrackedRuns, assert_seed_runs_hold, writer_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def sweep(tmp_path):
    """FOML and `tfs`, three seeds each."""
    trials = [Trial(synthetic.configuration("foml", K=5), (0, 1, 2)), Trial(synthetic.configuration("tfs"), (0, 1, 2))]
    return synthetic.make_sweep(tmp_path / "results", "sweep", *trials)


def texts(writer: Writer) -> list[str]:
    problems = writer.drain()
    assert not any(problem.resolved for problem in problems)
    return [problem.text for problem in problems]


def test_overlapping_slices_give_each_step_once(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    for start, stop in ((0, 20), (0, 20), (10, 30), (20, 40), (5, 15), (40, 60)):
        writer.results(trial.key, sweep.part(trial, start, stop))
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_a_gap_is_filled_from_the_chunk_file(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    sweep.write_chunk(trial, 60)
    writer.results(trial.key, sweep.part(trial, 40, 60))
    writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_a_gap_that_no_file_fills_is_reported_and_filled_later(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    writer.results(trial.key, sweep.part(trial, 40, 60))
    (line,) = texts(writer)
    where = trial.folder(sweep.root)
    assert line == f"tracking: foml K=5: 60 batches were reported, but no chunk file in {where} has them (ValueError)"
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    assert [problem.resolved for problem in writer.drain()] == [True]
    assert writer.drain() == []
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_points_are_written_after_a_temporary_failure_of_the_database(sweep, tracking_uri):
    trial = sweep.plan.trials[0]
    path = tracking_uri.removeprefix("sqlite:///")
    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 0, 20))
    assert writer.drain() == []
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE latest_metrics RENAME TO away")
    sweep.write_chunk(trial, 40)
    writer.results(trial.key, sweep.part(trial, 20, 40))
    (line,) = texts(writer)
    assert line.startswith("tracking: foml K=5: ") and "latest_metrics" in line and "\n" not in line
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE away RENAME TO latest_metrics")
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    assert writer.drain() == [TrackingProblem(f"{line}; everything was written by a retry", resolved=True)]
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)


def test_parameters_and_tags_are_not_lost_when_the_database_fails(sweep, tracking_uri):
    """Runs are created, then their first points fail: the retry writes parameters and tags too."""
    trial = sweep.plan.trials[0]
    path = tracking_uri.removeprefix("sqlite:///")
    writer = writer_of(tracking_uri, sweep)
    assert writer.drain() == []
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE metrics RENAME TO away")
    sweep.write_chunk(trial)
    writer.finished(trial.key)
    (line,) = texts(writer)
    assert line.startswith("tracking: foml K=5: (sqlite3.OperationalError) no such table: ") and "metrics" in line
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE away RENAME TO metrics")
    assert writer.drain() == [TrackingProblem(f"{line}; everything was written by a retry", resolved=True)]
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)
    tracked = TrackedRuns(tracking_uri)
    assert tracked.one("configuration").data.params == parameters(trial.configuration)
    assert tracked.one("seed", seed=1).data.params == {**parameters(trial.configuration), "seed": "1"}
    assert tracked.statuses() == {"FINISHED": 5}


FEED = """
import os, pickle, signal, sys, time
from orchestrator.tracking import requests
from orchestrator.tracking.writer import Writer
uri, experiment, plan, root, slices = pickle.load(open(sys.argv[1], "rb"))
sent, insert = [], requests._insert
def counted(session, table, rows):
    insert(session, table, rows)
    if table.name == "metrics":
        if "die" in sys.argv and len(sent) >= 500:
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of a transaction
        sent.extend(rows)
requests._insert = counted
writer = Writer(uri, experiment, plan, root, {}, 1)
writer.start()
first = slices[0][0]
for key, part in slices:
    if key != first and first:
        first = ""
        writer.drain()
        print("in the middle", flush=True)
        sys.stdin.readline()
    writer.results(key, part)
    if "die" in sys.argv:
        writer.drain()
print(writer.drain(), flush=True)
if "close" in sys.argv:
    for trial in plan.trials:
        writer.finished(trial.key)
    print(writer.drain(), writer.close("FINISHED"))
"""


def in_another_process(tmp_path: Path, uri, sweep, slices, *words: str) -> subprocess.Popen:
    """A writer of these slices in its own process, which pauses after the first trial until it reads a line.

    Args:
        words: `die`: it kills itself before a transaction with more points is complete; `close`: it ends the sweep.
    """
    file = tmp_path / f"{time.monotonic_ns()}.pickle"
    file.write_bytes(pickle.dumps((uri, "experiment", sweep.plan, sweep.root, slices)))
    return subprocess.Popen(
        [sys.executable, "-c", FEED, str(file), *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def count_points(uri: str) -> int:
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"), timeout=20)) as database:
        return int(database.execute("SELECT count(*) FROM metrics").fetchone()[0])


def test_a_writer_killed_in_the_middle_and_a_new_one(tmp_path, tracking_uri):
    trial = Trial(synthetic.configuration("foml", K=5), (0, 1, 2))
    sweep = synthetic.make_sweep(tmp_path / "results", "sweep", trial, batches=400)
    sweep.write_chunk(trial, 300)
    slices = [(trial.key, sweep.part(trial, at, at + 5)) for at in range(0, 300, 5)]
    process = in_another_process(tmp_path, tracking_uri, sweep, slices, "die")
    _, errors = process.communicate(timeout=540)
    assert process.returncode == -signal.SIGKILL, errors
    points = count_points(tracking_uri)
    assert 500 <= points < 300 * 3 * 3, "killed too late for this test"
    assert TrackedRuns(tracking_uri).statuses() == {"RUNNING": 5}

    writer = writer_of(tracking_uri, sweep)
    writer.results(trial.key, sweep.part(trial, 300, 320))  # its chunk file is newer than this slice
    sweep.write_chunk(trial)
    writer.results(trial.key, sweep.part(trial, 320, 400))
    writer.finished(trial.key)
    assert all(problem.resolved for problem in writer.drain())
    writer.close("FINISHED")
    assert_seed_runs_hold(tracking_uri, sweep, trial)
    assert TrackedRuns(tracking_uri).statuses() == {"FINISHED": 5}, "the same runs were continued"


def test_two_simultaneous_writers_of_two_sweeps(tmp_path, tracking_uri):
    def a_sweep(name):
        trials = [Trial(synthetic.configuration(learner), (0, 1)) for learner in ("foml", "tfs", "online")]
        one = synthetic.make_sweep(tmp_path / name, name, *trials, batches=200)
        one.plan.resolved["tracking"]["points"] = 200
        for trial in trials:
            one.write_chunk(trial)
        return one, [(trial.key, part) for trial in trials for part in one.slices(trial)]

    one, two = a_sweep("one"), a_sweep("two")
    other = in_another_process(tmp_path, tracking_uri, *two, "close")
    writer = writer_of(tracking_uri, one[0])
    for number, (key, part) in enumerate(one[1]):
        if number == len(one[1]) // 3:  # both have written a part, and continue together
            assert writer.drain() == []
            assert other.stdout.readline() == "in the middle\n"
            other.stdin.write("continue\n")
            other.stdin.flush()
        writer.results(key, part)
    for trial in one[0].plan.trials:
        writer.finished(trial.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    out, err = other.communicate(timeout=540)
    assert out.splitlines()[0] == "[]" and out.splitlines()[1].startswith("[] "), out + err
    tracked = TrackedRuns(tracking_uri)
    assert tracked.statuses() == {"FINISHED": 2 * (1 + 3 + 6)}
    for name, (each, _) in (("one", one), ("two", two)):
        mine = [run for run in tracked.of("seed") if run.data.tags["foml.sweep"] == name]
        assert len(mine) == 6
        for run in mine:
            trial = next(
                t for t in each.plan.trials if t.configuration.hash == run.data.tags["foml_internal.configuration"]
            )
            row = trial.seeds.index(int(run.data.tags["foml.seed"]))
            expected = dict(enumerate(each.whole[trial.key].by_batch["online_error"][row]))
            assert {step: value for step, (value, _) in tracked.points(run)["online_error"].items()} == expected


def test_a_missing_server_is_reported_and_does_not_block(sweep):
    started = time.monotonic()
    writer = writer_of("http://127.0.0.1:9", sweep)
    for trial in sweep.plan.trials:
        writer.results(trial.key, sweep.part(trial, 0, 20))
        writer.interrupted(trial.key)
    (line,) = texts(writer)
    assert line.startswith("tracking.uri: no server answers")
    with pytest.raises(TrackingError, match="the sweep's runs could not be ended"):
        writer.close("KILLED")
    assert time.monotonic() - started < 10


@pytest.fixture
def server(tmp_path):
    """A function that starts a real tracking server, always on the same port, and returns its URI and a function to stop it."""
    port, running = synthetic.free_port(), []

    def start():
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{tmp_path}/s.db", "--artifacts-destination", str(tmp_path / "a")]
        running.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        )
        uri, until = f"http://127.0.0.1:{port}", time.monotonic() + 200
        while True:
            try:
                prepare(uri)
                return uri, stop
            except TrackingError:
                assert time.monotonic() < until
                time.sleep(0.5)

    def stop():
        while running:
            process = running.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    yield start
    stop()


@pytest.mark.slow
def test_a_server_that_dies_and_is_started_again(sweep, server, capsys):
    trials = sweep.plan.trials
    uri, stop = server()
    writer = writer_of(uri, sweep)
    for trial in trials:
        sweep.write_chunk(trial, 40)
        writer.results(trial.key, sweep.part(trial, 0, 20))
    assert writer.drain() == []
    stop()
    started = time.monotonic()
    for trial in trials:
        writer.results(trial.key, sweep.part(trial, 20, 40))
    (line,) = texts(writer)
    assert line.startswith("tracking.uri: no server answers") and time.monotonic() - started < 30
    server()
    for trial in trials:
        sweep.write_chunk(trial)
        writer.finished(trial.key)
    assert writer.drain() == [TrackingProblem(f"{line}; everything was written by a retry", resolved=True)]
    writer.close("FINISHED")
    assert TrackedRuns(uri).statuses() == {"FINISHED": 9}
    for trial in trials:
        assert_seed_runs_hold(uri, sweep, trial)
        run = TrackedRuns(uri).one("configuration", trial.configuration.hash)
        learner = TrackedRuns(uri).client.download_artifacts(run.info.run_id, "checkpoint/learner.pt")
        assert Path(learner).read_bytes() == b"learner of " + trial.key.encode()
    assert capsys.readouterr().out == ""


def test_a_writer_that_was_never_started_reports_it(sweep, tracking_uri):
    writer = Writer(tracking_uri, "experiment", Plan("x", (), sweep.plan.resolved), sweep.root, {}, 0)
    assert texts(writer) == [f"tracking: not everything could be written to {tracking_uri}"]


def eventually(condition, timeout=120):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.01)


@pytest.fixture
def written(monkeypatch):
    """The calls that write curves, in order: (key, last batches of the slices)."""
    calls, write_results = [], SweepSync.write_results

    def noted(self, key, slices):
        write_results(self, key, slices)
        calls.append((key, [slice_.batches for slice_ in slices]))

    monkeypatch.setattr(SweepSync, "write_results", noted)
    return calls


def test_curves_that_arrive_within_a_pause_are_written_in_one_call(sweep, tracking_uri, written, monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE_S", 3_600.0)
    first, second = sweep.plan.trials
    writer = writer_of(tracking_uri, sweep)
    writer.results(first.key, sweep.part(first, 0, 10))
    eventually(lambda: len(written) == 1)
    writer.results(first.key, sweep.part(first, 10, 20))
    writer.results(second.key, sweep.part(second, 0, 10))  # each trial has its own pause
    eventually(lambda: len(written) == 2)
    writer.results(first.key, sweep.part(first, 20, 30))
    assert writer.drain() == []  # does not wait for a pause
    assert written == [(first.key, [10]), (second.key, [10]), (first.key, [20, 30])]
    writer.results(first.key, sweep.part(first, 30, 60))
    sweep.write_chunk(first)
    writer.finished(first.key)  # an end does not wait either
    writer.results(second.key, sweep.part(second, 10, 40))
    writer.close("KILLED")
    assert written[3:] == [(second.key, [40])]
    assert_seed_runs_hold(tracking_uri, sweep, first)
    tracked = TrackedRuns(tracking_uri)
    points = tracked.points(tracked.one("seed", second.configuration.hash, 2))
    assert sorted(points["online_error"]) == list(range(40))


def test_curves_are_written_automatically_after_a_pause(sweep, tracking_uri, written, monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE_S", 0.3)
    trial = sweep.plan.trials[0]
    writer = writer_of(tracking_uri, sweep)
    for stop in (10, 20, 30):
        writer.results(trial.key, sweep.part(trial, stop - 10, stop))
    eventually(lambda: written and written[-1][1][-1] == 30)
    assert sorted(stop for _, stops in written for stop in stops) == [10, 20, 30]
    writer.close("KILLED")
