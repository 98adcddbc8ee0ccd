"""Two sweeps of one name: the same one from another folder is let in, another one is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from orchestrator.errors import ConfigError
from orchestrator.plan.plan import Trial
from orchestrator.tracking import ownership, runs
from orchestrator.tracking.writer import Writer
from tests.orchestrator import synthetic_sweep as synthetic

STREAM = {"name": "rainbow_digits", "options": {"tasks": 2}}


def sweep_at(root: Path, **change: object) -> synthetic.SyntheticSweep:
    sweep = synthetic.make_sweep(root, "same", Trial(synthetic.configuration("online"), (0, 1)))
    resolved = {**sweep.plan.resolved, "network": "rainbow", "batch_size": 10, "stream": STREAM, **change}
    return synthetic.SyntheticSweep(root, replace(sweep.plan, resolved=resolved), sweep.whole)


def test_every_difference_to_what_mlflow_has_is_told(tmp_path, tracking_uri):
    runs.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "A").plan)  # there is no experiment yet
    synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    other = sweep_at(tmp_path / "B", batch_size=5, stream=STREAM | {"options": {"tasks": 3}})
    with pytest.raises(ConfigError) as caught:
        runs.check_tracked(tracking_uri, "experiment", other.plan)
    where, remedy = f"{tracking_uri}, experiment experiment", "choose another name, or another tracking.experiment"
    assert caught.value.faults == (
        f'{where}: stream: another sweep has this name, with {{"name":"rainbow_digits","options":{{"tasks":2}}}} '
        f'(got {{"name":"rainbow_digits","options":{{"tasks":3}}}}); {remedy}',
        f"{where}: batch_size: another sweep has this name, with 10 (got 5); {remedy}",
    )
    runs.check_tracked(tracking_uri, "another experiment", other.plan)
    runs.check_tracked(tracking_uri, "experiment", replace(other.plan, name="another name"))


def test_the_same_sweep_may_come_from_another_folder_and_have_grown(tmp_path, tracking_uri):
    run_id = synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    moved = sweep_at(tmp_path / "B", seeds=[0, 1, 2, 3], learners=[{"name": "tfs"}])
    runs.check_tracked(tracking_uri, "experiment", moved.plan)
    assert synthetic.write_all(moved, tracking_uri) == run_id


def test_a_run_of_an_older_version_is_taken_as_it_is_and_then_known(tmp_path, tracking_uri):
    run_id = synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    for tag in (ownership.HASH, ownership.IDENTITY):
        MlflowClient(tracking_uri).delete_tag(run_id, tag)
    other = sweep_at(tmp_path / "B", batch_size=5)
    runs.check_tracked(tracking_uri, "experiment", other.plan)
    assert synthetic.write_all(other, tracking_uri) == run_id
    with pytest.raises(ConfigError, match=r"batch_size: another sweep has this name, with 5 \(got 10\)"):
        runs.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "A").plan)


def test_what_is_too_long_for_a_tag_is_refused_without_the_difference(tmp_path, tracking_uri):
    long = {"name": "images", "options": {"classes": [f"class {number}" for number in range(1_000)]}}
    synthetic.write_all(sweep_at(tmp_path / "A", stream=long), tracking_uri)
    runs.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "B", stream=long).plan)
    with pytest.raises(ConfigError) as caught:
        runs.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "B").plan)
    (line,) = caught.value.faults
    assert line.endswith("another sweep has this name (got same); choose another name, or another tracking.experiment")


def test_the_writer_leaves_another_sweeps_run_alone(tmp_path, tracking_uri):
    """One that was begun on another machine since this one looked."""
    run_id = synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    before = MlflowClient(tracking_uri).get_run(run_id).to_dictionary()
    other = sweep_at(tmp_path / "B", batch_size=5)
    writer = Writer(tracking_uri, "experiment", other.plan, other.root, {}, synthetic.START_MS)
    writer.start()
    (problem,) = writer.drain()
    assert "tracking: batch_size: another sweep has this name, with 10 (got 5); choose another name" in problem.text
    with pytest.raises(Exception, match="the sweep's runs could not be ended"):
        writer.close("FINISHED")
    assert MlflowClient(tracking_uri).get_run(run_id).to_dictionary() == before
