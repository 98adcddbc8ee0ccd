"""Files of a sweep that are cut, emptied or overwritten: correct results nevertheless, or one line.

The folders are real: computed by the protocol, or by the complete command on a real Ray.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from learners import checkpoint
from orchestrator.errors import OrchestratorError
from orchestrator.plan.plan import Trial
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.sweep.api import run_sweep
from orchestrator.sweep.result import SweepResult
from orchestrator.tracking import reader
from orchestrator.tracking.database import TrackingError
from tests.orchestrator.protocol_sweep import compute, empty, flip, garble, halve, spoil_a_value
from tests.orchestrator.sweep_command import (
    TINY,
    assert_same,
    curves_of,
    folder_with,
    run,
    statuses,
    uri,
    with_database,
)

Computed = tuple[Path, tuple[Trial, ...], dict[str, Curves]]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All four trials computed, and sent to MLflow by the command."""
    folder = folder_with(tmp_path_factory.mktemp("computed"), TINY)
    compute(folder)
    with_database(folder)
    result = resumed(folder)
    assert result.exit_code == 0, result.text
    return folder


@pytest.fixture
def folder(computed: Path, tmp_path: Path) -> Path:
    """A copy of `computed`; MLflow's artifacts are those of the original."""
    shutil.copytree(computed, tmp_path / "copy")
    return tmp_path / "copy"


def resumed(folder: Path) -> SweepResult:
    """Resume a sweep whose trials are all computed: no Ray is started."""
    return run_sweep(overrides=overrides(folder), resume="tiny")


def overrides(folder: Path) -> list[str]:
    return [f"storage={folder / 'results'}", f"tracking.uri={uri(folder)}"]


def assert_complete(folder: Path, before: Path) -> None:
    assert statuses(folder) == ["FINISHED"] * (1 + 4 + 8)
    ours, theirs = (reader.load_curves("tiny", uri(each)) for each in (folder, before))
    columns = ["configuration", "seed", "metric", "step"]
    ours, theirs = (each.sort_values(columns).reset_index(drop=True) for each in (ours, theirs))
    assert ours[[*columns, "value"]].equals(theirs[[*columns, "value"]])
    assert not ours.duplicated(columns).any()


@pytest.mark.slow
def test_both_journals_lost_is_one_line_and_the_file_resumes_the_sweep(folder: Path, computed: Path) -> None:
    root = folder / "results/tiny"
    halve(root / "sweep.json")
    garble(root / "sweep-copy.json")
    for arguments in ({"resume": "tiny"}, {"sweep": folder / "sweep.yaml"}):
        with pytest.raises(OrchestratorError, match=r"sweep.json: must be .* damaged: .* move these files") as caught:
            run_sweep(**arguments, overrides=overrides(folder))  # type: ignore[arg-type]
        assert caught.value.exit_code == 2
        assert len(str(caught.value).splitlines()) == 1
    (root / "sweep.json").rename(folder / "away")
    (root / "sweep-copy.json").unlink()
    assert run_sweep(folder / "sweep.yaml", overrides(folder)).exit_code == 0
    assert resumed(folder).exit_code == 0
    assert_complete(folder, computed)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_an_empty_or_missing_database_is_created_again_from_the_folder(
    folder: Path, computed: Path, damage: Callable[[Path], None]
) -> None:
    damage(folder / "mlflow.db")
    assert resumed(folder).exit_code == 0
    assert_complete(folder, computed)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [halve, garble, spoil_a_value])
def test_a_damaged_database_is_one_line_and_can_be_created_again(
    folder: Path, computed: Path, damage: Callable[[Path], None]
) -> None:
    damage(folder / "mlflow.db")
    for ask in (lambda: resumed(folder), lambda: reader.load_curves("tiny", uri(folder))):
        with pytest.raises(
            TrackingError, match=r"the file is damaged, or not a database: .*; move mlflow.db away"
        ) as caught:
            ask()
        assert caught.value.exit_code == 2
        assert len(str(caught.value).splitlines()) == 1
    (folder / "mlflow.db").rename(folder / "away")
    assert resumed(folder).exit_code == 0
    assert_complete(folder, computed)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [halve, flip])
def test_damaged_tables_in_mlflow_are_never_read(
    folder: Path, computed: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    (folder / "mlflow.db").unlink()  # for separate artifacts
    shutil.rmtree(folder / "mlartifacts")
    assert resumed(folder).exit_code == 0
    before = reader.test_errors_of(reader.find_sweep("tiny", uri(folder)))
    tables = sorted(folder.glob("mlartifacts/*/*/artifacts/*.parquet"))
    assert [path.name for path in tables] == ["curves.parquet", "test_error.parquet"] * 4
    for path in tables[:2]:
        damage(path)
    read, expected = (reader.load_curves("tiny", uri(each)) for each in (folder, computed))
    columns = ["configuration", "seed", "metric", "step", "value"]
    assert len(read) < len(expected)  # MLflow has the mean of ten values of a diagnostic
    differing = read[read.merge(expected[columns], on=columns, how="left", indicator=True)._merge == "left_only"]
    assert differing.configuration.nunique() == 1
    assert not set(differing.metric) & {"online_error", "online_loss", "validation_error", "cumulative_error"}
    online = [frame[frame.metric == "online_error"] for frame in (read, expected)]
    assert len(online[0]) == len(online[1]) == 4 * 2 * 15
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == ["curves.parquet"]
    remaining = reader.test_errors_of(reader.find_sweep("tiny", uri(folder)))
    assert remaining["configuration"].nunique() == 3
    assert "; python -m orchestrator.sweep --resume tiny writes it again" in caplog.records[-1].getMessage()
    caplog.clear()
    assert resumed(folder).exit_code == 0  # the command of the line
    messages = [record.getMessage() for record in caplog.records]
    assert [line.split(" of ")[0] for line in messages] == ["curves.parquet", "test_error.parquet"]
    assert all(line.endswith("; written again from the chunk files") for line in messages)
    caplog.clear()
    order = ["configuration", "seed", "step"]
    again, before = (
        each.sort_values(order).reset_index(drop=True)
        for each in (reader.test_errors_of(reader.find_sweep("tiny", uri(folder))), before)
    )
    assert again.equals(before)
    assert_complete(folder, computed)
    assert not caplog.records


def test_a_sweep_with_every_kind_of_damage_ends_like_an_undamaged_one(tmp_path: Path) -> None:
    """With a real Ray: chunks of four trials, a learner, a journal and the database are damaged, then the command runs."""
    folder = folder_with(tmp_path, TINY)
    root, trials, expected = compute(folder, until=lambda index: (None, None, 8, None)[index])
    folders = [trial.folder(root) for trial in trials]
    newest = [sorted(each.glob("chunk-*"))[-1] for each in folders]
    flip(newest[0])  # finished: its last chunk is computed again
    for path in folders[1].glob("chunk-*"):  # all: the trial starts from its first batch
        garble(path)
    empty(newest[2])  # half way
    halve(folders[3] / "learner.pt")  # only the learner is damaged
    halve(root / "sweep.json")
    empty(folder / "mlflow.db")
    done = run(folder, "--resume", "tiny")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("results/tiny/sweep.json: damaged (")
    for line, path, consequence in (
        (lines[1], newest[0], "resumes at batch 12, from an older chunk"),
        (lines[2], sorted(folders[1].glob("damaged-*"))[-1], "has no older intact chunk"),
        (lines[4], newest[2], "resumes at batch 4, from an older chunk"),
    ):
        assert line.startswith(f"results/tiny/{path.parent.name}/{path.name.removeprefix('damaged-')}: damaged (")
        assert f"the trial {consequence}; quarantined as damaged-chunk-" in line
    assert lines[5].startswith("tiny: 4 trials, 1 at a time")
    assert sorted(len(list(each.glob("damaged-*"))) for each in folders) == [0, 1, 1, 2]
    assert "Traceback" not in done.stderr
    computed = curves_of(folder, "tiny")
    assert computed.keys() == expected.keys()
    for key, curves in computed.items():
        assert_same(curves, expected[key])
    assert statuses(folder) == ["FINISHED"] * (1 + 4 + 8)
    assert all(checkpoint.is_intact(each / chunk_files.LEARNER_FILE) for each in folders)
