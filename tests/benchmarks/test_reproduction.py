"""The tables of docs/reproduction.md and the pages below it, computed from curves."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import reproduction
from benchmarks.reproduction_picture import PICTURES, Row, draw_cost, draw_curves, draw_errors
from orchestrator.protocol.metrics import interval

LATE = [0.5] * 4 + [0.1] * 12  # eight tasks with two of the bad ones have a mean of 0.2: after ten tasks
EARLY = [0.1] * 16
PAGES = {path: path.read_text(encoding="utf-8") for path in reproduction.PAGES}

FROM_PROGRAMS = {"reproduction": {"0.663"}, "rainbow-mnist": {"0.108", "0.349"}, "permuted-tasks": {"0.830"}}
"""Numbers of the text that are in no table: of programs named there, of runs whose curves are not kept, of one seed."""


@pytest.mark.parametrize(
    ("errors", "threshold", "expected"),
    [
        ([LATE], 0.2, "10"),
        ([EARLY], 0.1, "8"),  # the first mean of eight
        ([LATE, EARLY], 0.2, "9"),
        ([[0.05, *[0.5] * 15]], 0.1, "not reached"),  # one good task is no evidence
        ([EARLY, [0.5] * 16], 0.2, "not reached"),
    ],
)
def test_a_threshold_is_reached_by_the_mean_of_eight_tasks(
    errors: list[list[float]], threshold: float, expected: str
) -> None:
    assert reproduction.tasks_to(np.array(errors), threshold) == expected


@dataclass
class Runs:
    """What the kept curves need of a sweep in MLflow."""

    status: str = "FINISHED"
    configurations: tuple[SimpleNamespace, ...] = (SimpleNamespace(complete=False), SimpleNamespace(complete=True))

    @property
    def tags(self) -> dict[str, str]:
        command = "foml sweep /home/of/a/user/toy.yaml stream.data=/mnt/data folder=a/b/c"
        return {"foml.command": command, "foml.hostname": "a-name"}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The curves of a sweep of two configurations and two seeds, kept in a folder."""
    rows: list[tuple[str, float, str, int, float]] = []
    for label, curves in {"foml": [LATE, EARLY], "online": [EARLY, EARLY]}.items():
        for seed, errors in enumerate(curves):
            for step, error in enumerate(errors):
                rows += [(label, seed, "validation_error", step, error), (label, seed, "online_error", step, 1 / 3)]
            rows += [(label, seed, "gradient_evaluations_per_datapoint", 0, 10.0), (label, seed, "seconds", 0, 7.0)]
            rows.append((label, seed, "diagnostics/meta_gradient_norm", 0, 1.0))
            for batch in (0, 1) if label == "foml" else ():
                rows.append((label, seed, reproduction.SAME_SIGN, batch, 0.5 + 0.1 * seed + 0.5 * batch))
                rows.append((label, seed, reproduction.RUN_LENGTH, batch, 1.0 + 3 * seed + 4 * batch))
        rows.append((label, np.nan, "validation_error", 0, 9.0))  # the mean over seeds
    frame = pd.DataFrame(rows, columns=["label", "seed", "metric", "step", "value"])
    frame = frame.assign(configuration=frame["label"])
    monkeypatch.setattr(reproduction, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(reproduction, "find_sweep", lambda name, uri: Runs())

    def curves_of(runs: Runs) -> pd.DataFrame:
        assert [each.complete for each in runs.configurations] == [True]
        return frame

    monkeypatch.setattr(reproduction, "curves_of", curves_of)
    reproduction.keep("toy", "sqlite:///toy.db")
    return tmp_path / "results"


def test_kept_curves_are_those_of_the_seeds(results: Path) -> None:
    table = pq.read_table(results / "toy.parquet")
    frame = table.to_pandas()
    assert set(frame["metric"]) == {*reproduction.CURVES, reproduction.SAME_SIGN, reproduction.RUN_LENGTH}
    assert len(frame) == 2 * 2 * (2 * 16 + 2) + 2 * 2
    assert frame["value"][frame["metric"] == "online_error"].unique().tolist() == [1 / 3]  # bit for bit
    command = json.loads(table.schema.metadata[b"provenance"])["foml.command"]
    assert command == "foml sweep toy.yaml stream.data=data folder=a/b/c", "no folder of this machine"


def test_committed_curves_name_no_folder_of_a_machine() -> None:
    paths = sorted(reproduction.RESULTS.glob("*.parquet"))
    provenance = {path.name: json.loads(pq.read_schema(path).metadata[b"provenance"]) for path in paths}
    commands = {name: each["foml.command"] for name, each in provenance.items()}
    assert len(commands) > 20 and not [name for name, command in commands.items() if "/" in command]


def test_an_unfinished_sweep_is_not_kept(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "find_sweep", lambda name, uri: Runs("KILLED"))
    with pytest.raises(SystemExit, match="part: only the curves of a finished sweep are kept, and this one is KILLED"):
        reproduction.keep("part", "")
    assert [path.name for path in results.iterdir()] == ["toy.parquet"]


def test_the_tables_of_a_page(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = results / "page.md"
    page.write_text(
        "before\n<!-- table methods toy -->\nold\n<!-- end -->\nbetween\n<!-- table differences toy foml -->\n"
        "<!-- end -->\n<!-- table seeds toy -->\n<!-- end -->\nafter\n"
    )
    other = results / "other.md"
    other.write_text("a page without a table\n")
    monkeypatch.setattr(reproduction, "PAGES", [page, other])
    monkeypatch.setattr(reproduction, "draw", lambda: None)
    monkeypatch.setattr(sys, "argv", ["reproduction", "--check"])
    with pytest.raises(SystemExit, match=r"^not in agreement with docs/results: page\.md$"):
        reproduction.main()
    monkeypatch.setattr(sys, "argv", ["reproduction"])
    reproduction.main()
    lines = page.read_text().splitlines()
    heads = "method | cumulative error | last 8 tasks | 8 tasks at 10 % | lowest in tasks | gradients/datapoint | seconds | n"
    assert lines[:4] == ["before", "<!-- table methods toy -->", "", f"| {heads} |"]
    assert lines[5] == "| online | 0.100 ± 0.000 | 0.100 ± 0.000 | 8 | 16 | 10.0 | 7 | 2 |"
    assert lines[6] == "| foml | 0.150 ± 0.635 | 0.100 ± 0.000 | 10 | 0 | 10.0 | 7 | 2 |"  # 12 and 8 tasks
    assert lines[7:10] == ["", "<!-- end -->", "between"]
    assert "| online | −0.050 ± 0.635 | 0.500 | 0.000 ± 0.000 | – |" in lines
    assert lines[-5:] == ["| online | 0.100 | 0.100 |", "| foml | 0.200 | 0.100 |", "", "<!-- end -->", "after"]
    monkeypatch.setattr(sys, "argv", ["reproduction", "--check"])
    with pytest.raises(SystemExit) as stopped:
        reproduction.main()
    assert stopped.value.code == 0


def test_the_course_of_errors(results: Path) -> None:
    assert reproduction.course("toy") == [
        "| tasks | 1–8 | 9–16 |",
        "| --- | --- | --- |",
        "| online | 0.100 | 0.100 |",
        "| foml | 0.200 | 0.100 |",  # (0.3 + 0.1) / 2
    ]
    assert reproduction.course("toy", "12")[0] == "| tasks | 1–12 | 13–16 |"


def test_a_sweep_is_compared_with_another_one(results: Path) -> None:
    (results / "other.parquet").write_bytes((results / "toy.parquet").read_bytes())
    assert reproduction.differences("toy+other", "other:foml")[2:] == [
        "| online | −0.050 ± 0.635 | 0.500 | 0.000 ± 0.000 | – |",
        "| foml | 0.000 ± 0.000 | – | 0.000 ± 0.000 | – |",
    ]


def test_a_sweep_minus_another_one_with_the_same_labels(results: Path) -> None:
    toy = pq.read_table(results / "toy.parquet").to_pandas()
    errors = toy["metric"] == "validation_error"
    toy.assign(value=toy["value"] + 0.25 * errors * (1 + toy["seed"])).to_parquet(results / "worse.parquet")
    assert reproduction.changes("worse", "toy") == [
        "| minus toy | cumulative error | p | last 8 tasks | p |",
        "| --- | --- | --- | --- | --- |",
        "| online | 0.375 ± 1.588 | 0.205 | 0.375 ± 1.588 | 0.205 |",  # 0.25 and 0.5: t = 3, p = 1 - 2/π atan 3
        "| foml | 0.375 ± 1.588 | 0.205 | 0.375 ± 1.588 | 0.205 |",
    ]


def test_errors_by_cost(results: Path) -> None:
    """Three configurations, of which two differ in their number of updates; costs are rounded."""
    toy = pq.read_table(results / "toy.parquet").to_pandas()
    costs, parts = {"foml": 1.9, "online": 1.0}, []
    for name, label in (("foml K=1", "foml"), ("online", "online")):
        part = toy[toy["label"] == label].assign(label=name)
        part.loc[part["metric"] == "gradient_evaluations_per_datapoint", "value"] = costs[label]
        parts.append(part)
    pd.concat(parts).to_parquet(results / "one.parquet")
    other = toy[toy["label"] == "foml"].assign(label="online updates_per_batch=10")
    other.to_parquet(results / "two.parquet")
    assert reproduction.cost("one+two:*") == [
        "| gradients/datapoint | 1 | 2 | 10 |",
        "| --- | --- | --- | --- |",
        "| online | 0.100 ± 0.000 |  | 0.150 ± 0.635 |",
        "| foml |  | 0.150 ± 0.635 |  |",
    ]
    other.assign(label="online updates_per_batch=9").to_parquet(results / "three.parquet")
    with pytest.raises(SystemExit, match="another configuration of this method has 10 gradients per datapoint"):
        reproduction.cost("one+two:*+three:*")


def test_the_best_trials_of_a_search(results: Path) -> None:
    toy = pq.read_table(results / "toy.parquet").to_pandas()
    parts = [
        toy[toy["label"] == label].assign(label=name)
        for name, label in (("foml K=1 rate=3", "foml"), ("foml K=2 rate=1 #2", "online"), ("online rate=2", "online"))
    ]
    pd.concat(parts).to_parquet(results / "search.parquet")
    assert reproduction.tuning("search")[2:] == [
        "| foml | 2 | 1 | K=2 rate=1 | 0.100 |",
        "| foml | 2 | 2 | K=1 rate=3 | 0.150 |",
        "| online | 1 | 1 | rate=2 | 0.100 |",
    ]


def test_configurations_with_equal_labels_are_numbered(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search may draw two values that are alike in the four digits of a label."""
    curves_of = reproduction.curves_of
    monkeypatch.setattr(reproduction, "curves_of", lambda runs: curves_of(runs).assign(label="online rate=0.1"))
    reproduction.keep("alike", "sqlite:///toy.db")
    kept = reproduction.load("alike")
    assert {label: kept.cumulative(label).mean() for label in kept.labels} == pytest.approx(
        {"online rate=0.1 #2": 0.1, "online rate=0.1": 0.15}
    )


def test_curves_by_batch_may_be_left_out(results: Path) -> None:
    reproduction.keep("toy", "", file="short", by_task=True)
    kept = set(pq.read_table(results / "short.parquet").to_pandas()["metric"])
    assert kept == {*reproduction.CURVES, reproduction.SAME_SIGN, reproduction.RUN_LENGTH} - {"online_error"}


def test_one_configuration_of_another_sweep_is_a_row(results: Path) -> None:
    toy = pq.read_table(results / "toy.parquet").to_pandas()
    toy["label"] = toy["label"].replace({"foml": "foml K=1", "online": "online rate=2"})
    toy.to_parquet(results / "other.parquet")
    assert [row.split(" | ")[0] for row in reproduction.methods("other+toy:foml")[2:]] == [
        "| online rate=2",
        "| foml K=1",
        "| foml",
    ]
    with pytest.raises(SystemExit, match="toy\\+toy:foml: two configurations have the same label: foml, online, foml"):
        reproduction.load("toy+toy:foml")


def test_the_p_value_is_that_of_a_paired_t_test(results: Path) -> None:
    differences = np.array([0.1, 0.2, 0.3, 0.2])
    frame = pd.DataFrame(
        [
            (label, seed, "validation_error", step, 0.3 + (label == "b") * difference)
            for label in "ab"
            for seed, difference in enumerate(differences)
            for step in range(8)
        ],
        columns=["label", "seed", "metric", "step", "value"],
    )
    frame.to_parquet(results / "four.parquet")
    t = differences.mean() / (differences.std(ddof=1) / 2)  # 4.9, three degrees of freedom: p = 0.016
    p = 2 * (0.5 - (np.arctan(t / 3**0.5) + t / 3**0.5 / (1 + t * t / 3)) / np.pi)  # the distribution's closed form
    assert reproduction.differences("four", "a")[2:] == [f"| b | 0.200 ± 0.130 | {p:.3f} | 0.200 ± 0.130 | {p:.3f} |"]


def test_diagnostics_are_kept_as_means_over_the_stream(results: Path) -> None:
    frame = pq.read_table(results / "toy.parquet").to_pandas()
    for metric, expected in {reproduction.SAME_SIGN: [0.75, 0.85], reproduction.RUN_LENGTH: [3.0, 6.0]}.items():
        kept = frame[frame["metric"] == metric]
        assert kept[["label", "seed", "step"]].values.tolist() == [["foml", 0, 0], ["foml", 1, 0]]
        assert kept["value"].tolist() == pytest.approx(expected, rel=1e-15)
    assert reproduction.signs("toy")[2:] == ["| foml | 0.800 ± 0.635 | 0.750 | 0.850 |"]
    assert reproduction.run_lengths("toy")[2:] == ["| foml | 4.5 ± 19.1 | 3.0 | 6.0 |"]


def test_the_pictures_have_the_numbers(tmp_path: Path) -> None:
    errors = {"foml": np.array([LATE, EARLY]), "tfs": np.array([EARLY, EARLY])}
    draw_errors([Row(name, interval(error.mean(1)), 2.0) for name, error in errors.items()], 16, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "0.150 ± 0.635" in text and "0.100 ± 0.000" in text and "over 16 tasks" in text
    draw_curves(errors, 8, tmp_path / "b.svg")
    drawn = (tmp_path / "b.svg").read_text()
    assert ">foml<" in drawn and ">tfs<" in drawn and "mean of 8 tasks" in drawn
    draw_cost(
        {name: {2: interval(error.mean(1)), 10: interval(error[:, 8:].mean(1))} for name, error in errors.items()},
        tmp_path / "d.svg",
    )
    drawn_cost = (tmp_path / "d.svg").read_text()
    assert all(f">{word}<" in drawn_cost for word in ("foml", "tfs", "2", "10", "gradient evaluations per datapoint"))
    draw_curves(errors, 8, tmp_path / "c.svg")
    assert (tmp_path / "c.svg").read_text() == drawn


@pytest.fixture(scope="module")
def drawn_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    reproduction.draw(folder)
    return folder


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_agrees_with_the_curves(path: Path, drawn_again: Path) -> None:
    """The same elements and words, and every coordinate within 0.01 points; names of elements are hashes of these."""
    number = re.compile(r"(?<![\w#.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
    kept, again = (
        re.sub(r'(?<=[#"])[mp][0-9a-f]{10}\b', "NAME", each.read_text(encoding="utf-8"))
        for each in (path, drawn_again / path.name)
    )
    assert number.sub("N", again) == number.sub("N", kept)
    coordinates = [[float(each) for each in number.findall(text)] for text in (kept, again)]
    assert len(coordinates[0]) > 200
    assert coordinates[1] == pytest.approx(coordinates[0], abs=0.01)


def test_each_picture_is_drawn_and_on_a_page(drawn_again: Path) -> None:
    words = "".join([*PAGES.values(), (reproduction.ROOT / "README.md").read_text(encoding="utf-8")])
    assert {path.name for path in drawn_again.iterdir()} == {path.name for path in PICTURES}
    assert [path.name for path in PICTURES if f"images/{path.name}" not in words] == []


@pytest.mark.parametrize("path", reproduction.PAGES, ids=lambda path: path.stem)
def test_a_page_agrees_with_the_curves(path: Path) -> None:
    assert "<!-- table methods " in PAGES[path]
    assert reproduction.with_tables(PAGES[path]) == PAGES[path]


def test_a_long_curve_is_drawn_with_fewer_points(tmp_path: Path) -> None:
    """Its last point is one of them: the axis ends there."""
    points = {}
    for tasks in (150, 800):
        path = tmp_path / f"{tasks}.svg"
        draw_curves({"online": np.random.default_rng(0).random((1, tasks))}, 1, path)
        (line,) = re.findall(r'<path d="([^"]+)"[^>]*stroke-dasharray', path.read_text().replace("\n", " "))
        places = {float(point.split()[0]) for point in line.removeprefix("M").split("L")}
        points[tasks] = len(places)
        assert max(places) == pytest.approx(576 * (0.08 + 0.72), abs=0.01)
    assert points == {150: 150, 800: 160}


def test_the_pictures_have_the_numbers_of_tables() -> None:
    tables = re.findall(r"<!-- table (.*) -->", "\n".join(PAGES.values()))
    assert {"methods rainbow-mnist", f"cost {reproduction.COST_ROWS}"} <= {*tables}


@pytest.mark.parametrize("path", reproduction.PAGES, ids=lambda path: path.stem)
def test_numbers_in_the_text_are_in_a_table(path: Path) -> None:
    """The numbers of a page's text are in its own tables, or on a page of the reproduction that it links to."""
    text = PAGES[path]
    linked = {(path.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+\.md)", text)} | {path}
    lines = [line for page in PAGES.keys() & linked for line in PAGES[page].splitlines()]
    in_tables = "\n".join(line for line in lines if line.startswith("|"))
    in_text = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))
    number = re.compile(r"(?<![\d.])\d\.\d{3}(?!\d)")
    assert {*number.findall(in_text)} - {*number.findall(in_tables)} <= FROM_PROGRAMS.get(path.stem, set())
    intervals = re.findall(r"−?\d\.\d{3} ± \d\.\d{3}", in_text)
    assert intervals
    assert [each for each in intervals if each not in in_tables] == []
    assert [p for p in re.findall(r"p = (0\.\d+)", in_text) if f"| {p} |" not in in_tables] == []


def test_the_sections_that_sweep_files_name_exist() -> None:
    """`docs/PAGE, "SECTION"`, perhaps in two lines of comment."""
    root, named = reproduction.ROOT, []
    for path in [*(root / "benchmarks/sweeps").glob("*.yaml"), *(root / "tune_configs").glob("*.yaml")]:
        comment = " ".join(line.removeprefix("#").strip() for line in path.read_text(encoding="utf-8").splitlines())
        named += re.findall(r'docs/(reproduction[\w/-]*\.md), "([^"]+)"', comment)
    assert ("reproduction/budgets.md", "Tuned alike") in named
    headings = {
        (path.relative_to(root / "docs").as_posix(), heading)
        for path, text in PAGES.items()
        for heading in re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    }
    assert [each for each in named if each not in headings] == []


def test_the_files_that_sweep_files_name_exist() -> None:
    root = reproduction.ROOT
    files = [*(root / "benchmarks/sweeps").glob("*.yaml"), *(root / "tune_configs").glob("*.yaml")]
    path_of_file = re.compile(r"\b(?:benchmarks|tune_configs|docs)/[\w/-]+\.\w+")
    named = {name for path in files for name in path_of_file.findall(path.read_text(encoding="utf-8"))}
    assert "tune_configs/recurring_labels.yaml" in named
    assert [name for name in sorted(named) if not (root / name).exists()] == []
