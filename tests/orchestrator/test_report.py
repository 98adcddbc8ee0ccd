"""The report's files, and what stands in them."""

import json
import math
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from orchestrator import figures, report
from orchestrator.errors import OrchestratorError
from orchestrator.metrics import Interval, interval
from orchestrator.plan import Trial
from orchestrator.results import ConfigurationRuns, load_curves
from orchestrator.tracking import Writer

sys.path.insert(0, str(Path(__file__).parent))  # pytest imports tests by path, and what they share not at all

import made_sweep as made

FILES = ["curves.csv", "learning_curves.png", "learning_curves.svg", "summary.csv"]


@pytest.fixture
def tracking_uri(tmp_path_factory, tmp_path):
    return made.new_database(tmp_path_factory, tmp_path)


@pytest.fixture
def sweep(tmp_path):
    """`tfs` would win, had it not lost a seed; then FOML, then `online`."""
    trials = [
        Trial(made.configuration(learner, **options), (0, 1, 2))
        for learner, options in (("online", {}), ("foml", {"K": 5}), ("tfs", {}))
    ]
    one = made.make_sweep(tmp_path / "results", "sweep", *trials)
    for trial, level in zip(trials, (0.6, 0.4, 0.2), strict=True):
        one.whole[trial.key] = made.curves_of(trial, level=level)
    lost = one.whole[trials[2].key]
    lost.diverged[1] = 35
    for curve in lost.by_batch.values():
        curve[1, 35:] = math.nan
    lost.evaluations["error"][(lost.evaluations["seed"] == 1) & (lost.evaluations["batch"] >= 35)] = math.nan
    return one


def by_seed(sweep, trial):
    """Held-out errors [task, seed]."""
    return sweep.whole[trial.key].evaluations["error"].reshape(6, 3)


def painted(path):
    """The share of a picture's pixels that are neither white nor grey."""
    pixels = matplotlib.image.imread(path)[..., :3]
    return float((np.ptp(pixels, axis=-1) > 0.1).mean())


def test_files_and_what_is_in_them(sweep, tracking_uri, tmp_path):
    parent_id = made.write_all(sweep, tracking_uri)
    out = tmp_path / "out"
    written = report.write_report("sweep", tracking_uri, out)
    assert sorted(path.name for path in out.iterdir()) == FILES == sorted(path.name for path in written.paths)
    kept = MlflowClient(tracking_uri).list_artifacts(parent_id, "report")
    assert sorted(file.path for file in kept) == [f"report/{name}" for name in FILES]
    assert written.problems == ()

    online, foml, tfs = sweep.plan.trials
    summary = pd.read_csv(out / "summary.csv", keep_default_na=False).set_index("label")
    assert list(summary.index) == ["foml K=5", "online", "tfs"]
    assert written.best == "foml K=5"
    for trial in (online, foml):
        row = summary.loc[trial.configuration.label]
        objective, final = interval(by_seed(sweep, trial).mean(axis=0)), interval(by_seed(sweep, trial)[-1])
        for name, value in (("objective", objective), ("final_error", final)):
            got = [float(row[f"{name}_{part}"]) for part in ("mean", "low", "high")]
            assert got == pytest.approx([value.mean, value.low, value.high])
        assert row.n == 3 and row.usable and row.diverged_seeds == "" and row.missing_seeds == ""
        assert float(row.seconds) == 1.5 and float(row.gradient_evaluations_per_datapoint) == 3.0
        assert json.loads(row.options)["alpha1"] == 0.001
        assert row.configuration == trial.configuration.hash and row.seeds == "0,1,2"
    lost = summary.loc["tfs"]
    assert float(lost.objective_mean) == pytest.approx(by_seed(sweep, tfs)[:, [0, 2]].mean())
    assert lost.n == 2 and not lost.usable and str(lost.diverged_seeds) == "1" and lost.needs_boundaries
    pd.testing.assert_frame_equal(written.summary.set_index("label")[["n", "usable"]], summary[["n", "usable"]])

    points = pd.read_csv(out / "curves.csv")
    loaded = load_curves("sweep", tracking_uri)
    columns = ["configuration", "seed", "metric", "step", "value"]
    pd.testing.assert_frame_equal(points[columns], loaded[columns], check_dtype=False, check_exact=True)


def test_the_figure_shows_something(sweep, tracking_uri, tmp_path):
    made.write_all(sweep, tracking_uri)
    written = report.write_report("sweep", tracking_uri, tmp_path / "out")
    png, svg = written.paths[:2]
    assert matplotlib.image.imread(png).shape[1] == 2160
    assert painted(png) > 0.01
    drawing = svg.read_text()
    assert drawing.count("<path") > 50
    again = report.write_report("sweep", tracking_uri, tmp_path / "again")
    assert again.paths[1].read_text() == drawing, "the same curves give the same file"


def test_the_table(sweep, tracking_uri, tmp_path):
    made.write_all(sweep, tracking_uri)
    lines = report.write_report("sweep", tracking_uri, tmp_path / "out").table.splitlines()
    objective = interval(by_seed(sweep, sweep.plan.trials[1]).mean(axis=0))
    final = by_seed(sweep, sweep.plan.trials[1])[-1].mean()
    head = "learner hyper-parameters cumulative error final error gradients/datapoint seconds boundaries notes"
    assert " ".join(lines[0].split()) == head
    half = objective.high - objective.mean
    row = f"foml     K=5               {objective.mean:.4f} ± {half:.4f} (n=3)       {final:.4f}                  3.0      1.5  no"
    assert lines[2] == row
    assert lines[3].startswith("online   –  ")
    assert lines[4].startswith("tfs      –  ") and "(n=2)" in lines[4]
    assert lines[4].endswith("  yes         seed 1 diverged at batch 35")


def runs(label, planned=(0,), **changes):
    standard = {
        "run_id": "x", "hash": label, "label": label, "learner": label.split()[0], "needs_boundaries": False,
        "complete": True, "planned": planned, "parameters": {}, "metrics": {}, "seeds": (),
    }  # fmt: skip
    return ConfigurationRuns(**{**standard, **changes})


def test_the_table_of_what_is_not_there():
    rows = [
        report.Row(runs("foml K=5"), Interval(0.25, None, None, 1), Interval(0.5, None, None, 1)),
        report.Row(
            runs("online", (0, 1, 2)),
            Interval(math.nan, None, None, 0),
            Interval(math.nan, None, None, 0),
            {0: "interrupted", 2: "interrupted", 1: "failed"},
        ),
    ]
    assert report.summary_table(rows, "online_error").splitlines() == [
        "learner  hyper-parameters  online error      final error  gradients/datapoint  seconds  boundaries  notes",
        "-------  ----------------  ----------------  -----------  -------------------  -------  ----------  "
        + "-" * len("seeds 0 2 interrupted, seed 1 failed"),
        "foml     K=5               0.2500 ± – (n=1)       0.5000                    –        –  no",
        "online   –                 –                           –                    –        –  no          "
        "seeds 0 2 interrupted, seed 1 failed",
    ]


def test_an_interrupted_sweep_can_be_reported_on(sweep, tracking_uri, tmp_path):
    online, foml, _ = sweep.plan.trials
    writer = Writer(tracking_uri, "experiment", sweep.plan, sweep.root, {}, made.START_MS)
    writer.start()
    assert writer.drain() == []
    empty = report.write_report("sweep", tracking_uri, tmp_path / "empty")
    assert empty.best is None and len(empty.table.splitlines()) == 2 and len(empty.summary) == 0
    sweep.write_chunk(foml)
    writer.finished(foml.key)
    writer.results(online.key, sweep.part(online, 0, 20))
    writer.failed(online.key, "broken")
    assert writer.drain() == []
    writer.close("KILLED")
    written = report.write_report("sweep", tracking_uri, tmp_path / "out")
    assert written.best == "foml K=5"
    assert written.table.splitlines()[3].endswith("seeds 0 1 2 failed")
    assert written.summary.missing_seeds.tolist() == ["", "0,1,2"]
    assert painted(tmp_path / "out" / "learning_curves.png") > 0.01


def test_no_winner_where_every_configuration_has_lost_a_seed(sweep, tracking_uri, tmp_path):
    for trial in sweep.plan.trials:
        sweep.whole[trial.key].diverged[0] = 59
    made.write_all(sweep, tracking_uri)
    written = report.write_report("sweep", tracking_uri, tmp_path / "out")
    assert written.best is None
    assert written.summary.n.tolist() == [1, 2, 2] and written.summary.label.tolist()[0] == "tfs"


def test_many_configurations_leave_the_best_of_each_learner_in_colour(tmp_path):
    curve = np.linspace(0.8, 0.2, 20)
    lines = [
        figures.Line(f"foml K={k}", {"cumulative_error": (curve + k / 100, curve, curve + k / 50)}, k == 0)
        for k in range(12)
    ]
    figures.learning_curves(lines, "many of them, and a $ in the name", [tmp_path / "a.png"])
    few = painted(tmp_path / "a.png")
    figures.learning_curves([line for line in lines if line.in_front], "one", [tmp_path / "b.png"])
    assert few == pytest.approx(painted(tmp_path / "b.png"), rel=0.5), "grey lines add no colour"
    all_in_front = [figures.Line(line.label, line.curves) for line in lines]
    figures.learning_curves(all_in_front, "all", [tmp_path / "c.png"])
    assert painted(tmp_path / "c.png") > 2 * few


def test_the_command(sweep, tracking_uri, tmp_path, capsys):
    made.write_all(sweep, tracking_uri)
    out = tmp_path / "from the command"
    assert report.main(["--tracking-uri", tracking_uri, "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.startswith("learner ") and str(out / "summary.csv") in told.out
    assert sorted(path.name for path in out.iterdir()) == FILES


def test_mistakes_of_the_user_are_one_line_and_exit_code_2(sweep, tracking_uri, tmp_path, capsys):
    made.write_all(sweep, tracking_uri)
    assert report.main(["other", "--tracking-uri", tracking_uri]) == 2
    assert capsys.readouterr().err == (f"sweep: {tracking_uri} has none of this name (got other); there are: sweep\n")
    assert report.main(["--tracking-uri", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "file").write_text("")
    assert report.main(["--tracking-uri", tracking_uri, "--out", str(tmp_path / "file" / "x")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/file/x: must be a folder that can be written")
    with pytest.raises(OrchestratorError):
        report.write_report("sweep", tracking_uri, tmp_path / "file")
