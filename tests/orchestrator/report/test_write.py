"""The report's files and their content."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from orchestrator.errors import OrchestratorError
from orchestrator.plan.fate import INTERRUPTED, failed
from orchestrator.plan.plan import Trial
from orchestrator.protocol.metrics import Interval, interval
from orchestrator.report import __main__, charts, comparison, figures, tables, write
from orchestrator.report.charts import Chart, Panel, Series
from orchestrator.report.comparison import NO_INTERVAL, ComparisonRow, PairedDifference, PointsTo
from orchestrator.report.figures import FigureStyle
from orchestrator.report.html_charts import Toggles, plot
from orchestrator.report.html_page import page
from orchestrator.tracking.reader import ConfigurationRuns, SeedRun, SweepRuns, load_curves
from orchestrator.tracking.writer import Writer
from tests.orchestrator import synthetic_sweep as synthetic

CHARTS = ["adaptation", "cost", "learning_curves"]
FILES = sorted(
    ["curves.csv", "curves.parquet", "report.html", "summary.csv", "summary.parquet", "summary.tex"]
    + [f"{chart}.{ending}" for chart in CHARTS for ending in ("png", "svg")]
)


def three_learners(root):
    """`tfs` has the lowest error but a diverged seed; then FOML, then `online`."""
    trials = [
        Trial(synthetic.configuration(learner, **options), (0, 1, 2))
        for learner, options in (("online", {}), ("foml", {"K": 5}), ("tfs", {}))
    ]
    one = synthetic.make_sweep(root, "sweep", *trials)
    for trial, level in zip(trials, (0.6, 0.4, 0.2), strict=True):
        one.whole[trial.key] = synthetic.curves_of(trial, level=level)
    diverged = one.whole[trials[2].key]
    diverged.diverged[1] = 35
    for curve in diverged.by_batch.values():
        curve[1, 35:] = math.nan
    for column in ("error", "test_error"):
        diverged.evaluations[column][(diverged.evaluations["seed"] == 1) & (diverged.evaluations["batch"] >= 35)] = (
            math.nan
        )
    return one


@pytest.fixture
def sweep(tmp_path):
    return three_learners(tmp_path / "results")


@dataclass
class Finished:
    """A sweep in MLflow, and a report on it."""

    sweep: synthetic.SyntheticSweep
    uri: str
    parent_id: str
    out: Path
    report: write.Report


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    sweep, uri = three_learners(folder / "results"), synthetic.new_database(folder)
    parent_id = synthetic.write_all(sweep, uri)
    return Finished(sweep, uri, parent_id, folder / "out", write.write_report("sweep", uri, folder / "out"))


def by_seed(sweep, trial):
    """Held-out errors [task, seed]."""
    return sweep.whole[trial.key].evaluations["error"].reshape(6, 3)


def painted(path):
    """The share of a picture's pixels that are neither white nor grey."""
    pixels = matplotlib.image.imread(path)[..., :3]
    return float((np.ptp(pixels, axis=-1) > 0.1).mean())


def test_files_and_their_content(finished):
    sweep, out, written = finished.sweep, finished.out, finished.report
    assert sorted(path.name for path in out.iterdir()) == FILES == sorted(path.name for path in written.paths)
    kept = MlflowClient(finished.uri).list_artifacts(finished.parent_id, "report")
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
    diverged = summary.loc["tfs"]
    assert float(diverged.objective_mean) == pytest.approx(by_seed(sweep, tfs)[:, [0, 2]].mean())
    assert diverged.n == 2 and not diverged.usable and str(diverged.diverged_seeds) == "1" and diverged.needs_boundaries
    pd.testing.assert_frame_equal(written.summary.set_index("label")[["n", "usable"]], summary[["n", "usable"]])

    points = pd.read_csv(out / "curves.csv")
    loaded = load_curves("sweep", finished.uri)
    columns = ["configuration", "seed", "metric", "step", "value"]
    measured, late = (points[(points.metric == "adaptation_late") == derived] for derived in (False, True))
    pd.testing.assert_frame_equal(measured[columns], loaded[columns], check_dtype=False, check_exact=True)
    binary = pd.read_parquet(out / "curves.parquet")[columns]
    pd.testing.assert_frame_equal(binary[: len(loaded)], loaded[columns], check_exact=True)
    assert len(late) == (3 + 3 + 2) * 10, "seed 1 of tfs diverged"
    of_seed = late[(late.label == "foml K=5") & (late.seed == 2)]
    assert of_seed.step.tolist() == list(range(0, 100, 10))
    last_of_six = sweep.whole[foml.key].by_batch["online_error"][2, 50:]
    assert of_seed.value.tolist() == pytest.approx(last_of_six.tolist())
    assert pd.read_parquet(out / "summary.parquet").label.tolist() == list(summary.index)
    assert (out / "summary.tex").read_text(encoding="utf-8").count("\\\\\n") == 4


def test_runs_have_the_colours_of_the_report(finished):
    client = MlflowClient(tracking_uri=finished.uri)
    for row, colour in zip(finished.report.rows, figures.COLOURS, strict=False):
        runs = [row.configuration.run_id, *(seed.run_id for seed in row.configuration.seeds)]
        assert [client.get_run(run_id).data.tags["mlflow.runColor"] for run_id in runs] == [colour] * 4


def test_a_seed_without_a_run_gets_no_colour():
    tagged = []

    class Client:
        def set_tag(self, run_id, key, value):
            tagged.append((run_id, key, value))

    seeds = (SeedRun("", 0, "FINISHED", None, ()), SeedRun("seed 1", 1, "FINISHED", None, ()))
    runs = ConfigurationRuns("run", "x", "foml", "foml", False, True, (0, 1), {}, {}, seeds)
    row = ComparisonRow(runs, Interval(0.5, 0.4, 0.6, 2), Interval(0.5, 0.4, 0.6, 2))
    write._colour_runs(SweepRuns(Client(), "x", "sweep", "cumulative_error", "min", (runs,)), [row])
    assert tagged == [(run_id, "mlflow.runColor", figures.COLOURS[0]) for run_id in ("run", "seed 1")]


def test_the_figures_show_something(finished, tmp_path):
    png, svg = (finished.out / f"learning_curves.{ending}" for ending in ("png", "svg"))
    assert matplotlib.image.imread(png).shape[1] == 2160
    assert painted(png) > 0.01
    assert svg.read_text().count("<path") > 50
    write.write_report("sweep", finished.uri, tmp_path / "again")
    assert (tmp_path / "again" / svg.name).read_text() == svg.read_text(), "the same curves give the same file"
    for chart in CHARTS:
        assert painted(finished.out / f"{chart}.png") > 0.0005, chart


def test_the_table(finished):
    lines = finished.report.table.splitlines()
    means = [by_seed(finished.sweep, trial).mean(axis=0) for trial in finished.sweep.plan.trials]
    final = by_seed(finished.sweep, finished.sweep.plan.trials[1])[-1].mean()
    head = "learner hyper-parameters cumulative error difference to best p final error gradients/datapoint seconds boundaries notes"
    assert " ".join(lines[0].split()) == head
    best, apart = interval(means[1]), interval(means[0] - means[1])
    row = f"foml K=5 {best.mean:.4f} ± {best.high - best.mean:.4f} (n=3) – – {final:.4f} 3.00 1.50 no"
    assert " ".join(lines[2].split()) == row
    assert lines[3].startswith("online   –  ")
    assert f"  {apart.mean:+.4f} ± {apart.high - apart.mean:.4f}  " in lines[3]
    assert lines[4].startswith("tfs      –  ") and "(n=2)" in lines[4]
    assert lines[4].endswith("  yes         seed 1 diverged at batch 35")


def runs(label, planned=(0,), **changes):
    standard = {
        "run_id": "x", "hash": label, "label": label, "learner": label.split()[0], "needs_boundaries": False,
        "complete": True, "planned": planned, "parameters": {}, "metrics": {}, "seeds": (),
    }  # fmt: skip
    return ConfigurationRuns(**{**standard, **changes})


INCOMPLETE = ComparisonRow(
    runs("online", (0, 1, 2)), NO_INTERVAL, NO_INTERVAL, {0: INTERRUPTED, 2: INTERRUPTED, 1: failed("broken")}
)
ALONE = ComparisonRow(runs("foml K=5"), Interval(0.25, None, None, 1), Interval(0.5, None, None, 1), values={0: 0.25})


def test_the_table_of_incomplete_configurations():
    assert tables.text([ALONE, INCOMPLETE], "online_error").splitlines() == [
        "learner  hyper-parameters  online error  difference to best  p  final error  gradients/datapoint  seconds  boundaries  notes",
        "-------  ----------------  ------------  ------------------  -  -----------  -------------------  -------  ----------  "
        + "-" * len("seeds 0 2 interrupted, seed 1 failed"),
        "foml     K=5               0.2500 (n=1)  –                   –       0.5000                    –        –  no",
        "online   –                 –             –                   –            –                    –        –  no          "
        "seeds 0 2 interrupted, seed 1 failed",
    ]


def test_tables_in_other_forms_hold_the_same_cells():
    nasty = ComparisonRow(
        runs("foml a=50%_x|<b>", metrics={"seconds": 1234.5}), Interval(0.5, 0.25, 0.75, 3), NO_INTERVAL,
        difference=PairedDifference(Interval(0.25, 0.0, 0.5, 3), 0.0004), test_error=Interval(0.75, 0.5, 1.0, 3),
        points_to={
            0.2: PointsTo(Interval(30, 20, 40, 3), 3, 3), 0.1: PointsTo(NO_INTERVAL, 1, 3), 0.05: PointsTo(NO_INTERVAL, 0, 3)
        },
    )  # fmt: skip
    table = tables.columns([nasty], "cumulative_error")
    assert [column.name for column in table][3:6] == ["difference to best", "p", "test error"]
    assert [column.cell(0, 3) for column in table] == [
        "foml", "a=50%_x|<b>", "0.500 ± 0.250", "+0.250 ± 0.250", "<0.001", "0.750 ± 0.250", "–", "–", "1234", "no",
    ]  # fmt: skip
    assert table[2].cell(0, usual_n=5) == "0.500 ± 0.250 (n=3)"
    sweep = SweepRuns(None, "x", "sweep", "cumulative_error", "min", ())
    html = page(sweep, [nasty], [])
    assert "a=50%_x|&lt;b&gt;</td>" in html
    assert 'data-key="0.5"' in html and "0.500 ± 0.250</td>" in html and 'data-key="1234.5"' in html
    assert "| foml | a=50%_x\\|<b> |" in tables.markdown([nasty], "cumulative_error", 4_000)
    assert tables.points_to([nasty]) == [
        ("configuration", "points to 0.2", "points to 0.1"),
        ("foml a=50%_x|<b>", "30 ± 10", "not reached (1 of 3 seeds)"),
    ], "no seed reached 0.05"


def test_the_table_for_a_paper_has_aligned_digits_and_the_best_of_each_column_in_bold():
    rows = [
        ComparisonRow(runs("foml K=5_%", (0, 1, 2)), Interval(0.31249, 0.3, 0.325, 3), Interval(0.3, 0.2, 0.4, 3)),
        ComparisonRow(
            runs("toe", (0, 1, 2)), Interval(0.5, 0.4, 0.6, 3), Interval(0.25, 0.2, 0.3, 3),
            difference=PairedDifference(Interval(0.18751, 0.1, 0.27502, 3), 0.0123),
        ),
        ComparisonRow(
            runs("tfs", (0, 1, 2)), Interval(0.125, 0.12, 0.13, 2), Interval(0.125, 0.12, 0.13, 2), {1: INTERRUPTED}
        ),
    ]  # fmt: skip
    assert tables.latex(rows, "cumulative_error").splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{llr@{}lr@{}lrrrrll}",
        r"\toprule",
        r"learner & hyper-parameters & \multicolumn{2}{c}{cumulative error} & \multicolumn{2}{c}{difference to best} & p & "
        r"final error & gradients/datapoint & seconds & boundaries & notes \\",
        r"\midrule",
        r"foml & K=5\_\% & \textbf{0.312} & \textbf{\,$\pm$\,0.013} & -- &  & -- & 0.300 & -- & -- & no &  \\",
        r"toe & -- & 0.500 & \,$\pm$\,0.100 & +0.188 & \,$\pm$\,0.088 & 0.012 & \textbf{0.250} & -- & -- & no &  \\",
        r"tfs & -- & 0.125 & \,$\pm$\,0.005 (n=2) & -- &  & -- & 0.125 & -- & -- & no & seed 1 interrupted \\",
        r"\bottomrule",
        r"\end{tabular}",
    ], "a configuration with a missing seed is never the best"


def test_the_page_names_its_origin():
    row = ComparisonRow(
        runs("foml K=5", (0, 1, 2, 7), parameters={"stream": "rainbow_digits"}), Interval(0.5, 0.4, 0.6, 4), NO_INTERVAL
    )
    tags = {
        "foml.git_commit": "0123456789abcdef",
        "foml.git_dirty": "true",
        "foml.hostname": "node<1>",
        "foml_internal.store": "ab12",
    }
    started = 1_764_000_000_000  # 2025-11-24 16:00 UTC
    sweep = SweepRuns(
        None, "x", "sweep", "accuracy", "max", (), tags=tags, started_ms=started, ended_ms=started + 3_725_000
    )
    html = page(sweep, [row], [])
    assert (
        "rainbow_digits · seeds 0-2,7 · 2025-11-24 16:00 UTC · 1:02:05 from first start to last end · node&lt;1&gt; · "
        "commit 0123456789ab with changes</p>"
    ) in html
    assert "<td>store</td><td>ab12</td>" in html and 'id="mlflow"' not in html
    assert "Objective: accuracy, higher is better." in html
    assert "foml K=5 is the only configuration that finished with every seed" in html


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("https://me:secret@host:5000/base/", '<a href="https://host:5000/base/#/a?b=1&amp;c=2">'),
        ("sqlite:///mlflow.db", "in MLflow: <code>foml ui &#39;a &lt;sweep&gt;&#39;</code>"),
        ("postgresql://me:secret@host/db", "foml ui --tracking-uri &#39;postgresql://***@host/db&#39; "),
    ],
)
def test_the_page_links_to_mlflow_or_names_the_command(uri, line):
    row = ComparisonRow(runs("foml", (0, 1)), Interval(0.5, 0.4, 0.6, 2), NO_INTERVAL)
    client = SimpleNamespace(tracking_uri=uri)
    html = page(SweepRuns(client, "x", "a <sweep>", "accuracy", "max", (), charts="#/a?b=1&c=2"), [row], [])
    assert line in html and html.count('id="mlflow"') == 1 and "secret" not in html


def test_the_sentence_says_who_leads_and_whether_the_seeds_suffice():
    def row(label, values, **changes):
        at = runs(label, tuple(range(len(values))), **changes)
        return ComparisonRow(at, interval(np.array(values)), NO_INTERVAL, values=dict(enumerate(values)))

    def sentence(*rows):
        return tables.result_sentence(comparison.with_differences(list(rows)), "cumulative_error")

    best = row("foml K=5", [0.30, 0.31, 0.29])
    near, far = row("foml K=1", [0.301, 0.316, 0.293]), row("toe", [0.40, 0.42, 0.39])
    assert sentence(best, near, far) == (
        "foml K=5 leads: its cumulative error of 0.3000 is 0.1033 ± 0.0143 below that of toe, the best of the other "
        "learners. The difference is significant with 3 seeds (p = 0.002, corrected for 2 comparisons)."
    )
    # Differences of 0.001, 0.006 and 0.003: mean by standard deviation is 1.325.
    assert sentence(best, near) == (
        "foml K=5 leads: its cumulative error of 0.3000 is 0.0033 ± 0.0063 below that of foml K=1, the next configuration. "
        "The difference is not significant with 3 seeds (p = 0.149); if it is real, about 7 seeds would show it."
    )
    tiny = sentence(best, row("toe", [0.40, 0.215, 0.2851]))
    assert tiny.endswith("if it is real, more than 1,000 seeds would show it.")
    alone = row("foml K=5", [0.25])
    assert sentence(alone, row("toe", [0.5])) == (
        "foml K=5 leads: its cumulative error of 0.2500 is 0.2500 below that of toe, the best of the other learners. "
        "Whether the difference is significant cannot be tested: one seed allows no test."
    )
    assert sentence(row("foml K=5", [0.25, 0.5]), row("toe", [0.5, 0.75])).endswith(
        "cannot be tested: the difference is the same for every seed."
    )
    assert sentence(alone, row("toe", [0.25])).startswith(
        "foml K=5 leads: its cumulative error of 0.2500 is equal to that of toe, "
    )
    assert sentence(row("foml", [0.9, 0.8]), row("toe", [0.5, 0.3])).startswith(
        "foml leads: its cumulative error of 0.8500 is 0.4500 ± 0.6353 above that of toe, "
    ), "of an objective that is maximised"
    assert sentence(alone) == (
        "foml K=5 is the only configuration that finished with every seed: its cumulative error is 0.2500 ± – (n=1)."
    )
    assert sentence(row("toe", [0.5], complete=False)) == "No configuration finished with every seed."
    apart = ComparisonRow(runs("toe", (7,)), Interval(0.5, None, None, 1), NO_INTERVAL, values={7: 0.5})
    assert sentence(alone, apart).endswith("is the best; no other configuration has seeds in common with it.")


def test_a_long_description_ends_with_the_number_of_rows_left_out():
    markdown = tables.markdown([ALONE] * 100, "cumulative_error", 1_000)
    shown = markdown.count("| foml | K=5 |")
    assert len(markdown) <= 1_000 and shown > 3
    assert markdown.endswith(f"\n\n… and {100 - shown} more configurations: see the report.")


def test_an_interrupted_sweep_can_be_reported_on(sweep, tracking_uri, tmp_path, capsys):
    online, foml, _ = sweep.plan.trials
    writer = Writer(tracking_uri, "experiment", sweep.plan, sweep.root, {}, synthetic.START_MS)
    writer.start()
    assert writer.drain() == []
    empty = write.write_report("sweep", tracking_uri, tmp_path / "empty")
    assert empty.best is None and len(empty.table.splitlines()) == 2 and len(empty.summary) == 0
    assert "Cumulative error: no task is finished yet" in (tmp_path / "empty" / "report.html").read_text(
        encoding="utf-8"
    )
    assert capsys.readouterr().err == ""
    sweep.write_chunk(foml)
    writer.finished(foml.key)
    writer.results(online.key, sweep.part(online, 0, 20))
    writer.failed(online.key, "broken")
    assert writer.drain() == []
    writer.close("KILLED")
    written = write.write_report("sweep", tracking_uri, tmp_path / "out")
    assert written.best == "foml K=5"
    assert written.table.splitlines()[3].endswith("seeds 0 1 2 failed")
    points = pd.read_csv(tmp_path / "out" / "curves.csv")
    under_way = points[(points.label == "online") & (points.metric == "adaptation") & (points.seed == 0)]
    two_tasks = sweep.whole[online.key].by_batch["online_error"][0, :20].reshape(2, 10).mean(axis=0)
    assert under_way.value.tolist() == pytest.approx(two_tasks.tolist())
    assert under_way.step.tolist() == list(range(0, 100, 10))
    assert written.summary.missing_seeds.tolist() == ["", "0,1,2"]
    assert painted(tmp_path / "out" / "learning_curves.png") > 0.01


def test_no_best_configuration_if_each_has_a_diverged_seed(sweep, tracking_uri, tmp_path):
    for trial in sweep.plan.trials:
        sweep.whole[trial.key].diverged[0] = 59
    synthetic.write_all(sweep, tracking_uri)
    written = write.write_report("sweep", tracking_uri, tmp_path / "out")
    assert written.best is None
    assert written.summary.n.tolist() == [1, 2, 2] and written.summary.label.tolist()[0] == "tfs"


def line(label, style, low=None, kind="line"):
    curve = np.linspace(0.8, 0.2, 20) - 0.03 * (style or 0)
    nan = np.full(20, math.nan)
    return Series(label, np.arange(1, 21), curve, nan if low is None else low, curve + 0.05, style, kind=kind)


def test_grey_lines_add_no_colour(tmp_path):
    def drawn(name, *series):
        figures.draw(
            Chart(name, "many of them, and a $ in the name", (Panel("", "", "", series),)), [tmp_path / "a.png"]
        )
        return painted(tmp_path / "a.png")

    grey = [line(str(k), None) for k in range(11)]
    one = drawn("one", line("best", 0))
    assert one > 0.002
    assert drawn("with grey", line("best", 0), *grey) == pytest.approx(one, rel=0.3)
    assert drawn("all", *[line(str(k), k) for k in range(12)]) > 2 * one
    assert drawn("none", *grey) < 0.1 * one


def rows_of(*configurations):
    """Rows from (learner, options, objective)."""
    return [
        ComparisonRow(
            runs(f"{learner} {options}", parameters=options), Interval(mean, mean - 0.1, mean + 0.1, 3), NO_INTERVAL
        )
        for learner, options, mean in configurations
    ]


def charted(rows):
    points = [
        (row.configuration.hash, seed, metric, step, 0.5)
        for row in rows
        for seed in (0,)
        for metric in ("cumulative_error", "validation_error")
        for step in (0, 1)
    ]
    curves = pd.DataFrame(points, columns=["configuration", "seed", "metric", "step", "value"])
    all_charts = charts.all_charts(SweepRuns(None, "x", "sweep", "cumulative_error", "min", ()), rows, curves)
    return {chart.name: chart for chart in all_charts}


def test_an_ablation_among_many_has_colours_of_its_own_and_a_legend_on_the_page():
    rows = rows_of(*(("foml", {"K": K}, 0.1 * K) for K in range(1, 10)))
    curves, *_ = charted(rows)["ablation_K"].panels
    assert [series.style for series in curves.series] == list(range(9)) and curves.own_colours
    (legend,) = plot(curves, (0.0, 1.0), Toggles()).legend
    assert [item.label.value for item in legend.items] == [row.configuration.label for row in rows]
    overview, *_ = charted(rows)["learning_curves"].panels
    assert not overview.own_colours and not plot(overview, (0.0, 1.0), Toggles()).legend


def test_an_ablation_has_configurations_that_differ_in_one_option_only():
    rows = rows_of(
        ("foml", {"K": 5, "beta1": 0.1}, 0.2),
        ("foml", {"K": 10, "beta1": 0.1}, 0.3),
        ("foml", {"K": 10, "beta1": 0.5}, 0.4),
        ("foml", {"K": 1, "beta1": 0.1}, 0.5),
        ("online", {"beta1": 0.1}, 0.6),
    )
    by_name = charted(rows)
    assert "ablation_meta_updates" not in by_name
    curves, _, effect = by_name["ablation_K"].panels
    assert [series.label for series in curves.series] == [
        rows[3].configuration.label,
        rows[0].configuration.label,
        rows[1].configuration.label,
    ]
    assert [series.style for series in curves.series] == [3, 0, 1] and not curves.own_colours, "as in every other chart"
    (joined,) = effect.series
    assert joined.x.tolist() == [1, 5, 10] and joined.y.tolist() == [0.5, 0.2, 0.3]
    assert effect.ticks == ((1.0, "1"), (5.0, "5"), (10.0, "10"))


def test_effects_have_a_panel_for_each_option_that_varies():
    drawn = np.random.default_rng(0).uniform(-3, -1, 12)
    rows = rows_of(
        *(
            ("foml", {"beta1": float(10**b), "K": 1 + 4 * (i % 2), "gamma": i % 3 == 0, "alpha1": 0.1}, 0.2 - b / 10)
            for i, b in enumerate(drawn)
        ),
        ("online", {"alpha1": 0.2}, 0.5),
    )
    panels = {panel.x_label: panel for panel in charted(rows)["effects"].panels}
    assert list(panels) == ["K", "beta1", "gamma"], "alpha1 varies between the learners, not within one"
    beta1 = panels["beta1"]
    assert beta1.log_x and beta1.title == "beta1 (ρ = -1.00, n = 12)"
    assert [text for _, text in beta1.ticks] == ["0.003", "0.01", "0.03"]
    assert [series.kind for series in beta1.series] == ["points"]
    assert beta1.series[0].x == pytest.approx(10**drawn)
    _, means = panels["K"].series
    assert means.label == "foml, mean" and means.x.tolist() == [1, 5]
    assert means.y == pytest.approx([(0.2 - drawn[start::2] / 10).mean() for start in (0, 1)])
    assert panels["gamma"].ticks == ((0.0, "false"), (1.0, "true"))
    assert set(panels["gamma"].series[0].x) == {0.0, 1.0}


def test_effects_are_of_options_that_every_configuration_keeps() -> None:
    """Members of a population have only initial values; another configuration of the learner has constant ones."""
    members = [("foml", {"K": K, "alpha1_at_first": rate}, 0.3) for K, rate in ((1, 0.01), (5, 0.02), (1, 0.03))]
    panels = charted(rows_of(*members, ("foml", {"K": 5, "alpha1": 0.01}, 0.2)))["effects"].panels
    assert [panel.x_label for panel in panels] == ["K"]


def test_a_constant_objective_has_no_correlation(recwarn: pytest.WarningsRecorder) -> None:
    rows = rows_of(*(("foml", {"beta1": 10.0**-number}, 0.5) for number in range(6)))
    (panel,) = charted(rows)["effects"].panels
    assert panel.title == "beta1" and not recwarn.list


def curved(planned):
    """The learning curve of one configuration with these seeds: 0.0, 0.1, … and 1.0, 0.9, … by task."""
    row = ComparisonRow(runs("foml", planned), Interval(0.5, -0.2, 1.2, len(planned)), NO_INTERVAL)
    points = [
        ("foml", seed, "cumulative_error", step, abs(seed % 2 - step / 10)) for seed in planned for step in range(3)
    ]
    curves = pd.DataFrame(points, columns=["configuration", "seed", "metric", "step", "value"])
    chart, *_ = charts.all_charts(SweepRuns(None, "x", "sweep", "cumulative_error", "min", ()), [row], curves)
    return chart, chart.panels[0].series[0]


def test_few_seeds_are_thin_lines_and_many_a_band_within_zero_and_one():
    chart, series = curved((0, 1))
    assert series.by_seed.tolist() == [[0.0, 0.1, 0.2], [1.0, 0.9, 0.8]] and np.isnan(series.low).all()
    assert series.y == pytest.approx([0.5] * 3) and chart.panels[0].y_limits == (0.0, 1.02)
    assert chart.title == "sweep: mean over 2 seeds, and each of them as a thin line"
    chart, series = curved((0, 1, 2, 3, 4))
    assert not series.by_seed.size and chart.title == "sweep: mean and 95 % interval over 5 seeds"
    values = interval(np.array([0.0, 1.0, 0.0, 1.0, 0.0]))
    assert values.low < 0 and series.low[0] == 0.0 and series.high[0] == pytest.approx(min(1.0, values.high))
    chart, series = curved((0,))
    assert not series.by_seed.size and chart.title == "sweep: one seed each"


def test_limits_of_y_are_the_means():
    panel = Panel("", "", "", (line("a", 0),))
    assert panel.y_limits == (0, pytest.approx(1.12 * 0.8))
    close = Panel("", "", "", (line("a", 0), line("b", 1)), from_zero=False)
    assert close.y_limits == pytest.approx((0.17 - 0.315, 0.8 + 0.315))
    assert Panel("", "", "", ()).y_limits is None


def test_points_show_their_intervals_as_far_as_an_error_goes():
    """A difference far below the intervals must not fill the panel: 0.73 ± 0.56 and 0.72 ± 0.26 of two seeds."""
    x, y = np.array([1.0, 5.0]), np.array([0.73, 0.72])
    half = np.array([0.56, 0.26])
    points = Series("foml", x, y, y - half, y + half, 0, kind="both")
    low, high = Panel("", "", "", (points,), from_zero=False).y_limits
    assert low == pytest.approx(0.17 - 0.05 * 0.83) and high == pytest.approx(1.0 + 0.05 * 0.83)
    nan = np.full(2, np.nan)
    alone = Panel("", "", "", (Series("one seed", x, y, nan, nan, 0, kind="points"),), from_zero=False)
    assert alone.y_limits == pytest.approx((0.70, 0.75))


@pytest.mark.parametrize("values", [(70.0, 140.0), (-0.3, -0.1)], ids=["datapoints", "a negative transfer"])
def test_an_objective_that_is_no_error_is_inside_its_charts(values):
    costs = {"gradient_evaluations_per_datapoint": 3.0, "seconds": 2.0}
    rows = [
        ComparisonRow(
            runs(f"foml K={K}", parameters={"K": K}, metrics=costs), Interval(mean, mean - 5, mean + 5, 3), NO_INTERVAL
        )
        for K, mean in zip((1, 5), values, strict=True)
    ]
    sweep = SweepRuns(None, "x", "sweep", "points_to_0.3", "min", ())
    no_curves = pd.DataFrame(columns=["configuration", "seed", "metric", "step", "value"])
    all_charts = {chart.name: chart for chart in charts.all_charts(sweep, rows, no_curves)}
    for panel in (*all_charts["cost"].panels, *all_charts["effects"].panels):
        low, high = panel.y_limits
        assert low < values[0] - 5 and values[1] + 5 < high, panel.title
    one = ComparisonRow(runs("foml", metrics=costs), Interval(0.5, 0.1, 1.4, 3), NO_INTERVAL)
    sweep = SweepRuns(None, "x", "sweep", "cumulative_error", "min", ())
    cost = next(chart for chart in charts.all_charts(sweep, [one], no_curves) if chart.name == "cost")
    assert [panel.y_limits for panel in cost.panels] == [(0.0, pytest.approx(0.56))] * 2, "an error's are from zero"


def searched(count, **changes):
    """Rows of a search in which the objective is |log10 β₁ + 2| / 10 + 0.3, in the order of their start."""
    drawn = np.random.default_rng(0).uniform(-3, -1, count)
    options = [
        {"beta1": float(10**b), "alpha1": float(a), "optimiser": ("sgd", "adam")[number % 2]}
        for number, (b, a) in enumerate(zip(drawn, np.random.default_rng(1).uniform(0.1, 0.2, count), strict=True))
    ]
    rows = rows_of(*(("foml", each, 0.3 + abs(b + 2) / 10) for each, b in zip(options, drawn, strict=True)))
    order = tuple(row.configuration for row in rows)
    best_first = sorted(rows, key=lambda row: row.objective.mean)
    sweep = SweepRuns(None, "x", "sweep", "cumulative_error", changes.get("mode", "min"), order)
    points = pd.DataFrame(columns=["configuration", "seed", "metric", "step", "value"])
    return drawn, best_first, {chart.name: chart for chart in charts.all_charts(sweep, best_first, points)}


def test_a_search_has_its_course_the_importance_of_its_options_and_parallel_coordinates():
    drawn, rows, by_name = searched(20)
    objectives = 0.3 + np.abs(drawn + 2) / 10
    course, importance = by_name["search"].panels
    each, best = course.series
    assert each.x.tolist() == list(range(1, 21)) and each.y == pytest.approx(objectives), "in the order of their start"
    assert best.y == pytest.approx(np.minimum.accumulate(objectives))
    (shares,) = importance.series
    assert importance.ticks[0] == (0.0, "beta1") and 0.7 < shares.y[0] <= shares.y.sum() <= 1
    (parallel,) = by_name["parallel_coordinates"].panels
    low, high = (f"{10**end:.2g}" for end in (drawn.min(), drawn.max()))
    assert parallel.ticks[0] == (0.0, f"beta1\n{low}\n{high}") and parallel.ticks[2] == (2.0, "optimiser\nadam\nsgd")
    assert [series.style is None for series in parallel.series] == [False] * 2 + [True] * 18, "the best tenth in colour"
    lowest = int(np.argmin(objectives))
    first = parallel.series[0]
    assert first.owner == 0 and first.hint == rows[0].configuration.label
    assert first.y[0] == pytest.approx((drawn[lowest] - drawn.min()) / np.ptp(drawn)), "on a logarithmic scale"
    assert first.y[2] == (0.0 if lowest % 2 else 1.0) and first.y[3] == 0.0
    _, _, highest = searched(20, mode="max")
    assert highest["search"].panels[0].series[1].y == pytest.approx(np.maximum.accumulate(objectives))


def test_few_configurations_or_a_grid_are_no_search():
    assert "search" not in searched(7)[2]
    grid = rows_of(*(("foml", {"K": K, "beta1": b}, 0.1 * K * b) for K in (1, 2, 3) for b in (0.1, 0.2, 0.3)))
    assert "search" not in charted(grid)


def test_one_configuration_each_has_no_effects():
    assert set(charted(rows_of(("foml", {"K": 5}, 0.2), ("online", {}, 0.3)))) == {"learning_curves"}


def test_every_kind_of_chart_can_be_drawn(tmp_path):
    rows = rows_of(
        *(
            ("foml", {"K": k, "meta_updates": on, "beta1": b}, 0.1 * k)
            for k in (1, 2)
            for on in (True, False)
            for b in (0.1, 3.0)
        )
    )
    for chart in charted(rows).values():
        figures.draw(chart, [tmp_path / f"{chart.name}.png", tmp_path / f"{chart.name}.svg"], FigureStyle(100))
        assert painted(tmp_path / f"{chart.name}.png") > 0.001, chart.name
    for name in ("search", "parallel_coordinates"):
        chart = searched(20)[2][name]
        figures.draw(chart, [tmp_path / f"{chart.name}.png"], FigureStyle(100))
        assert painted(tmp_path / f"{chart.name}.png") > 0.0005, chart.name
    assert matplotlib.image.imread(tmp_path / "parallel_coordinates.png").shape[1] == 720
    assert {path.stem for path in tmp_path.iterdir()} == {
        "search",
        "parallel_coordinates",
        "learning_curves",
        "ablation_K",
        "ablation_meta_updates",
        "effects",
    }


def test_test_errors_are_shown_when_asked_for(finished, tmp_path, capsys):
    assert "test error" not in finished.report.table
    assert "test_error" not in (finished.out / "curves.csv").read_text()
    assert __main__.main(["sweep", "--tracking-uri", finished.uri, "--out", str(tmp_path / "out"), "--test"]) == 0
    foml = finished.sweep.plan.trials[1]
    expected = interval(finished.sweep.whole[foml.key].evaluations["test_error"].reshape(6, 3).mean(axis=0))
    assert f"  {expected}  " in capsys.readouterr().out
    summary = pd.read_csv(tmp_path / "out" / "summary.csv").set_index("label")
    assert summary.test_error_mean["foml K=5"] == pytest.approx(expected.mean)
    points = pd.read_csv(tmp_path / "out" / "curves.csv")
    assert (points.metric == "test_error").sum() == 3 * 3 * 6 - 3, "seed 1 of tfs diverged in its fourth task"


def test_the_sweeps_description_is_its_table(finished):
    note = MlflowClient(finished.uri).get_run(finished.parent_id).data.tags["mlflow.note.content"]
    best = interval(by_seed(finished.sweep, finished.sweep.plan.trials[1]).mean(axis=0))
    assert note.startswith(f"Best: **foml K=5**, {best}. 3 of 3 configurations complete;")
    assert "| foml | K=5 | " in note and "seed 1 diverged at batch 35" in note


def test_the_page_needs_no_network(finished):
    page = (finished.out / "report.html").read_text(encoding="utf-8")
    assert len(page) < 2_000_000
    tags = [tag for tag in re.findall(r"<(?:script|link|img|iframe)[^>]*>", page) if "src=" in tag or "href=" in tag]
    assert tags == []
    assert "seed 1 diverged at batch 35" in page and "points to 0.3" in page
    assert "points to 0.2" not in page, "no seed reached it"


def test_the_command(sweep, tracking_uri, tmp_path, capsys):
    synthetic.write_all(sweep, tracking_uri)
    out = tmp_path / "from the command"
    assert __main__.main(["--tracking-uri", tracking_uri, "--out", str(out)]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "foml K=5 leads: its cumulative error of " in output.out
    assert output.out.startswith("learner ")  # the table first, then the names of the files
    assert output.out.index("foml K=5 leads: ") < output.out.index(str(out)) and str(out / "summary.csv") in output.out
    assert sorted(path.name for path in out.iterdir()) == FILES


def test_figures_for_a_paper_have_no_title_and_the_chosen_size_and_font(finished, tmp_path):
    words = ["sweep", "--tracking-uri", finished.uri, "--out", str(tmp_path), "--paper", "--size", "3.25x4.5"]
    assert __main__.main([*words, "--font", "serif", "--font-size", "7", "--dpi", "100"]) == 0
    assert sorted(path.name for path in tmp_path.glob("*.pdf")) == [f"{chart}.pdf" for chart in CHARTS]
    assert matplotlib.image.imread(tmp_path / "learning_curves.png").shape[:2] == (450, 325)
    svg, pdf = (tmp_path / f"learning_curves.{ending}" for ending in ("svg", "pdf"))
    assert 'width="234pt" height="324pt"' in svg.read_text(encoding="utf-8"), "72 points an inch"
    assert b"/MediaBox [ 0 0 234 324 ]" in pdf.read_bytes() and b"DejaVuSerif" in pdf.read_bytes()
    assert b"/Type3" not in pdf.read_bytes() and b"CreationDate" not in pdf.read_bytes()
    drawn = {ending: (finished.out / f"learning_curves.{ending}") for ending in ("svg", "pdf")}
    title = "<!-- sweep: mean over 3 seeds, and each of them as a thin line -->"
    assert title in drawn["svg"].read_text(encoding="utf-8") and title not in svg.read_text(encoding="utf-8")
    assert "<!-- Cumulative error -->" in svg.read_text(encoding="utf-8") and not drawn["pdf"].exists()


def test_a_later_report_replaces_the_figures_for_a_paper_too(finished, tmp_path):
    old = tmp_path / "learning_curves.pdf"
    old.write_bytes(b"of fewer seeds")
    report = write.write_report("sweep", finished.uri, tmp_path, style=FigureStyle(dpi=50))
    assert old.read_bytes().startswith(b"%PDF") and old in report.paths
    assert [path.name for path in tmp_path.glob("*.pdf")] == ["learning_curves.pdf"]


def test_two_sweeps_are_compared(finished, tmp_path, capsys):
    trials = [Trial(synthetic.configuration("foml", K=5), (0, 1, 2)), Trial(synthetic.configuration("toe"), (0, 1, 2))]
    other = synthetic.make_sweep(tmp_path / "results", "other", *trials)
    other.whole[trials[0].key] = synthetic.curves_of(trials[0], level=0.3)
    synthetic.write_all(other, finished.uri, "another experiment")
    out = tmp_path / "out"
    assert __main__.main(["sweep", "other", "--tracking-uri", finished.uri, "--out", str(out)]) == 0
    before, after = (by_seed(one, trials[0]).mean(axis=0) for one in (finished.sweep, other))
    apart = interval(after - before)
    head, _, line, *rest = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "configuration sweep other other − sweep p common seeds different options"
    cells = [f"{each.mean:.3f} ± {each.high - each.mean:.3f} (n=3)" for each in map(interval, (before, after))]
    assert " ".join(line.split()).startswith(
        f"foml K=5 {cells[0]} {cells[1]} {apart.mean:+.3f} ± {apart.high - apart.mean:.3f} "
    )
    assert rest[0] == "" and set(rest[1:]) == {str(path) for path in out.iterdir()}
    numbers = pd.read_csv(out / "pairs.csv")
    assert numbers.label.tolist() == ["foml K=5"], "online and tfs have no counterpart"
    assert numbers.difference_mean[0] == pytest.approx(apart.mean) and numbers.difference_n[0] == 3
    assert "foml K=5 (other) leads" in (out / "report.html").read_text(encoding="utf-8")
    assert r"\multicolumn{2}{c}{other $-$ sweep}" in (out / "pairs.tex").read_text(encoding="utf-8")
    labels = set(pd.read_csv(out / "summary.csv").label)
    assert labels == {"foml K=5 (sweep)", "online (sweep)", "tfs (sweep)", "foml K=5 (other)", "toe (other)"}

    words = ["--tracking-uri", finished.uri, "--out", str(tmp_path / "none")]
    assert __main__.main(["sweep", *words, "--earlier"]) == 2
    assert capsys.readouterr().err == (
        "--earlier: the sweep has no configurations of an earlier version (got sweep); change an option, and run it "
        "again\n"
    )
    assert __main__.main(["sweep", "other", "third", *words]) == 2
    assert capsys.readouterr().err == "NAME: must be at most two sweeps (got sweep other third)\n"
    assert __main__.main(["sweep", "other", *words, "--earlier", "--test"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "NAME: must be one sweep with --earlier (got sweep other)",
        "--test: shows the test errors of one sweep (got a comparison); leave it out",
    ]
    assert __main__.main(["sweep", "sweep", *words]) == 2
    assert capsys.readouterr().err == "NAME: must be two sweeps (got sweep sweep); or one, with --earlier\n"
    assert not (tmp_path / "none").exists()


def test_the_default_folder_is_that_of_the_sweeps_own_report(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert __main__.main(["sweep", "--tracking-uri", finished.uri]) == 0
    assert (tmp_path / "reports/sweep/report.html").exists()
    (tmp_path / "results/sweep/report").mkdir(parents=True)
    assert __main__.main(["sweep", "--tracking-uri", finished.uri]) == 0
    assert sorted(path.name for path in (tmp_path / "results/sweep/report").iterdir()) == FILES


def test_bad_input_is_one_line_and_exit_code_2(sweep, tracking_uri, tmp_path, capsys):
    synthetic.write_all(sweep, tracking_uri)
    assert __main__.main(["other", "--tracking-uri", tracking_uri]) == 2
    assert capsys.readouterr().err == (f"sweep: {tracking_uri} has none of this name (got other); there are: sweep\n")
    assert __main__.main(["sweep", "--tracking-uri", tracking_uri, "--experiment", "nix"]) == 2
    output = capsys.readouterr().err
    assert output == f"--experiment: {tracking_uri} has none of this name (got nix); there are: experiment\n"
    assert __main__.main(["sweep", "--tracking-uri", tracking_uri, "--points-to", "0.2", "3", "--dpi", "3"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--points-to: must be errors from 0 to below 1 (got [3.0])",
        "--dpi: must be from 30 to 1200 (got 3)",
    ]
    style = ["--size", "3.25x", "--font", "No Such Font", "--font-size", "2"]
    assert __main__.main(["sweep", "--tracking-uri", tracking_uri, *style]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--size: must be width x height in inches, each from 1 to 40 (got 3.25x)",
        "--font: must be a font of this machine (got No Such Font); serif is one on all",
        "--font-size: must be from 4 to 40 (got 2.0)",
    ]
    for table in (tmp_path / "store").rglob("test_error.parquet"):
        table.unlink()
    assert __main__.main(["sweep", "--tracking-uri", tracking_uri, "--test", "--out", str(tmp_path / "x")]) == 2
    assert (
        capsys.readouterr().err.startswith("--test: no configuration has test errors") and not (tmp_path / "x").exists()
    )
    assert __main__.main(["--tracking-uri", f"sqlite:///{tmp_path}/none.db"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "file").write_text("")
    assert __main__.main(["--tracking-uri", tracking_uri, "--out", str(tmp_path / "file" / "x")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/file/x: must be a folder that can be written")
    with pytest.raises(OrchestratorError):
        write.write_report("sweep", tracking_uri, tmp_path / "file")
