"""Two sweeps of one name: the same sweep from another folder is accepted, another sweep is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from orchestrator.errors import ConfigError
from orchestrator.plan.plan import Trial
from orchestrator.tracking import ownership
from orchestrator.tracking.writer import Writer
from tests.orchestrator import synthetic_sweep as synthetic

STREAM = {"name": "rainbow_digits", "options": {"tasks": 2}}


def sweep_at(root: Path, **change: object) -> synthetic.SyntheticSweep:
    sweep = synthetic.make_sweep(root, "same", Trial(synthetic.configuration("online"), (0, 1)))
    resolved = {**sweep.plan.resolved, "network": "rainbow", "batch_size": 10, "stream": STREAM, **change}
    return synthetic.SyntheticSweep(root, replace(sweep.plan, resolved=resolved), sweep.whole)


def test_every_difference_to_the_sweep_in_mlflow_is_reported(tmp_path, tracking_uri):
    ownership.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "A").plan)  # no experiment exists yet
    synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    other = sweep_at(tmp_path / "B", batch_size=5, stream=STREAM | {"options": {"tasks": 3}})
    with pytest.raises(ConfigError) as caught:
        ownership.check_tracked(tracking_uri, "experiment", other.plan)
    where, remedy = f"{tracking_uri}, experiment experiment", "choose another name, or another tracking.experiment"
    assert caught.value.faults == (
        f'{where}: stream: another sweep has this name, with {{"name":"rainbow_digits","options":{{"tasks":2}}}} '
        f'(got {{"name":"rainbow_digits","options":{{"tasks":3}}}}); {remedy}',
        f"{where}: batch_size: another sweep has this name, with 10 (got 5); {remedy}",
    )
    ownership.check_tracked(tracking_uri, "another experiment", other.plan)
    ownership.check_tracked(tracking_uri, "experiment", replace(other.plan, name="another name"))


def test_the_same_sweep_may_have_moved_and_grown(tmp_path, tracking_uri):
    run_id = synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    moved = sweep_at(tmp_path / "B", seeds=[0, 1, 2, 3], learners=[{"name": "tfs"}])
    ownership.check_tracked(tracking_uri, "experiment", moved.plan)
    assert synthetic.write_all(moved, tracking_uri) == run_id


def test_a_network_may_be_written_in_another_notation(tmp_path, tracking_uri):
    run_id = synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    other = sweep_at(tmp_path / "B", network={"name": "rainbow"})
    ownership.check_tracked(tracking_uri, "experiment", other.plan)
    assert synthetic.write_all(other, tracking_uri) == run_id


def test_a_run_of_an_older_version_is_accepted_and_gets_its_tags(tmp_path, tracking_uri):
    run_id = synthetic.write_all(sweep_at(tmp_path / "A"), tracking_uri)
    for tag in (ownership.HASH, ownership.IDENTITY):
        MlflowClient(tracking_uri).delete_tag(run_id, tag)
    other = sweep_at(tmp_path / "B", batch_size=5)
    ownership.check_tracked(tracking_uri, "experiment", other.plan)
    assert synthetic.write_all(other, tracking_uri) == run_id
    with pytest.raises(ConfigError, match=r"batch_size: another sweep has this name, with 5 \(got 10\)"):
        ownership.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "A").plan)


def test_an_identity_too_long_for_a_tag_is_refused_without_the_difference(tmp_path, tracking_uri):
    long = {"name": "images", "options": {"classes": [f"class {number}" for number in range(1_000)]}}
    synthetic.write_all(sweep_at(tmp_path / "A", stream=long), tracking_uri)
    ownership.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "B", stream=long).plan)
    with pytest.raises(ConfigError) as caught:
        ownership.check_tracked(tracking_uri, "experiment", sweep_at(tmp_path / "B").plan)
    (line,) = caught.value.faults
    assert line.endswith("another sweep has this name (got same); choose another name, or another tracking.experiment")


def test_the_writer_does_not_change_the_run_of_another_sweep(tmp_path, tracking_uri):
    """The other sweep was started on another machine after the check."""
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
