"""Each sweep in tune_configs/, reduced, from its first batch to its report."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from benchmarks import reproduction
from learners.registry import learner_class
from orchestrator.config.load import default_file
from orchestrator.config.strict_yaml import read_yaml
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import folder_with, run, run_here, uri, with_database

FOLDER = default_file().parent
BENCHMARKS = FOLDER.parent / "benchmarks/sweeps"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
POPULATIONS = [name for name in NAMES if name.startswith("pbt")]
SEARCHES = ["quickstart_tune"]
"""Sweeps whose configurations are drawn while they run, which needs Ray."""
MARKS = dict.fromkeys(
    ("rainbow_mnist", "rainbow_mnist_tuned", "recurring_labels", "online_cifar100", "online_celeba"), pytest.mark.slow
)
"""Sweeps of many learners, 20 s for each learner."""
PBT = {"scheduler": {"name": "pbt", "interval": 20}}
SMALL = {
    "stream": {"name": "rainbow_digits", "tasks": 2, "train": 30, "validation": 10, "test": 10},
    "seeds": 2,
    "chunk": 3,
}


def ready(name: str) -> dict[str, Any]:
    return read_yaml(FOLDER / f"{name}.yaml", name)


def small(name: str, folder: Path, **search: Any) -> None:
    """Write the sweep's learners on a few digits into the folder."""
    document = ready(name) | SMALL
    if "search" in document:
        document["search"] = document["search"] | {"samples": 3} | search
    folder_with(folder, yaml.safe_dump(document))


def reported(folder: Path, name: str) -> pd.DataFrame:
    report = folder / "results" / ready(name)["name"] / "report"
    files = {path.name for path in report.iterdir()}
    assert {"report.html", "summary.tex", "learning_curves.png", "learning_curves.svg", "curves.parquet"} <= files
    return pd.read_csv(report / "summary.csv")


def test_all_are_known() -> None:
    assert {"quickstart", "rainbow_mnist", "online_cifar100", "online_celeba", "ablation_K"} <= set(NAMES)
    assert {"ablation_meta_updates", "tune_foml", *SEARCHES} <= set(NAMES) and POPULATIONS == ["pbt_foml"]
    algorithms = {name: ready(name).get("search", {}).get("algorithm", "random") for name in NAMES}
    assert [name for name in NAMES if algorithms[name] == "optuna"] == SEARCHES


def test_the_quickstart_has_the_rates_that_were_found_on_other_seeds() -> None:
    """Its stream and learners are those of the sweep that found its rates, with the same rates for each learner."""
    quickstart, trials, search = (ready(name) for name in ("quickstart", "quickstart_rates", "quickstart_tune"))
    for key in ("stream", "network"):
        assert quickstart[key] == trials[key] == search[key]
    assert quickstart["seeds"] == 5 and {*range(5)}.isdisjoint([*trials["seeds"], *search["seeds"]])
    grids = []
    for shown, tried in zip(quickstart["learners"], trials["learners"], strict=True):
        assert shown.keys() == tried.keys()
        varied = {option: value["grid"] for option, value in tried.items() if isinstance(value, dict)}
        assert all(shown[option] in rates for option, rates in varied.items())
        assert {**shown, **varied} == {**tried, **varied}
        grids += varied.values()
    assert len(grids) == 4 and all(rates == grids[0] for rates in grids)


def _shown(value: str | float) -> str:
    """A value as in the labels of trials."""
    return value if isinstance(value, str) else f"{value:.4g}"


def options_of(learner: dict[str, Any]) -> dict[str, Any]:
    """A learner of a sweep, with the values of its preset."""
    preset = learner_class(learner["name"]).presets[learner["preset"]] if "preset" in learner else {}
    return {option: value for option, value in {**preset, **learner}.items() if option != "preset"}


@pytest.mark.parametrize(
    ("tuned", "searches"),
    [
        (
            [
                FOLDER / "rainbow_mnist_tuned.yaml",
                *(BENCHMARKS / f"rainbow_mnist_tuned_{name}.yaml" for name in ("ftml", "moca")),
            ],
            ["tuning", "tuning_more", "tuning_ftml", "tuning_moca"],
        ),
        ([BENCHMARKS / "rainbow_mnist_tuned_steps.yaml"], ["tuning_steps"]),
        ([FOLDER / "recurring_labels.yaml"], ["label_permuted_recurring_tuning"]),
        ([BENCHMARKS / "label_permuted.yaml"], ["label_permuted_tuning"]),
        ([BENCHMARKS / "label_permuted_40_steps.yaml"], ["label_permuted_40_steps_tuning"]),
        ([BENCHMARKS / "recurring_labels_steps.yaml"], ["label_permuted_recurring_steps_tuning"]),
        ([BENCHMARKS / "label_permuted_newer.yaml"], ["label_permuted_newer_tuning"]),
        ([BENCHMARKS / "permuted_mnist.yaml", BENCHMARKS / "permuted_mnist_more.yaml"], ["permuted_mnist_tuning"]),
        ([BENCHMARKS / "permuted_mnist_steps.yaml"], ["permuted_mnist_steps_tuning"]),
    ],
)
def test_a_tuned_sweep_has_the_best_trial_of_each_learner(tuned: list[Path], searches: list[str]) -> None:
    """With the four digits of its label, from searches on other seeds with as many trials for each learner."""
    parts = [read_yaml(path, path.name) for path in tuned]
    documents = [read_yaml(BENCHMARKS / f"{name}.yaml", name) for name in searches]
    spaces, best = [], {}
    for part in parts:
        assert {**part, "learners": [], "name": ""} == {**parts[0], "learners": [], "name": ""}
    for searched in documents:
        assert {*range(parts[0]["seeds"])}.isdisjoint(searched["seeds"])
        assert {**searched, "learners": [], "name": ""} == {**documents[0], "learners": [], "name": ""}
        rows = [row.split(" | ") for row in reproduction.tuning(searched["name"])[2:] if " | 1 | " in row]
        assert {row[1] for row in rows} == {str(searched["search"]["samples"])}
        best |= {row[0][2:]: row for row in rows}
        spaces += searched["learners"]
    for learner in (options_of(learner) for part in parts for learner in part["learners"]):
        (space,) = [each for each in spaces if each["name"] == learner["name"]]
        drawn = {option for option, value in space.items() if isinstance(value, dict)}
        values = dict(value.split("=") for value in best.pop(learner["name"])[3].split())
        chosen = {option: learner[option] for option in drawn}
        assert {option: _shown(value) for option, value in chosen.items()} == values
        assert {option: value for option, value in learner.items() if option not in drawn} == {
            option: value for option, value in space.items() if option not in drawn
        }
    assert best == {}


def test_the_comparison_over_40_tasks_has_the_best_trials_of_its_searches() -> None:
    """FOML was searched twice; the check repeats the values of the comparison whose search saw 20 tasks."""
    names = ("label_permuted_40_tuning", "label_permuted_40_again")
    rows = [row.split(" | ") for name in names for row in reproduction.tuning(name.replace("_", "-"))[2:]]
    best = sorted([row[0][2:], *sorted(row[3].split())] for row in rows if row[2] == "1")
    drawn = ("alpha1", "alpha2", "beta1", "beta2", "strength", "step")
    compared = read_yaml(BENCHMARKS / "label_permuted_40.yaml", "")["learners"]
    assert best == sorted(
        [each["name"], *sorted(f"{key}={_shown(value)}" for key, value in each.items() if key in drawn)]
        for each in compared
    )
    twenty = read_yaml(BENCHMARKS / "label_permuted.yaml", "")
    check = read_yaml(BENCHMARKS / "label_permuted_40_check.yaml", "")
    assert check["stream"] == twenty["stream"] and len(check["learners"]) == 2
    assert all(learner in twenty["learners"] for learner in check["learners"])


def test_the_values_for_tasks_that_recur_or_drift_are_those_of_the_searches_on_tasks_that_do_not() -> None:
    names = ("recurring", "gradual", "40", "newer")
    recurring, gradual, *searched = (read_yaml(BENCHMARKS / f"label_permuted_{name}.yaml", "") for name in names)
    assert recurring["learners"] == gradual["learners"] and len(recurring["learners"]) == 5
    assert all(any(learner in each["learners"] for each in searched) for learner in recurring["learners"])


@pytest.mark.parametrize(
    ("ablations", "compared"),
    [
        (BENCHMARKS / "label_permuted_recurring_ablations.yaml", BENCHMARKS / "label_permuted_recurring.yaml"),
        (BENCHMARKS / "recurring_labels_ablations.yaml", FOLDER / "recurring_labels.yaml"),
    ],
)
def test_an_ablation_changes_one_part_of_foml(ablations: Path, compared: Path) -> None:
    changed, whole = (read_yaml(path, path.name) for path in (ablations, compared))
    assert {**changed, "learners": [], "name": ""} == {**whole, "learners": [], "name": ""}
    (foml,) = [each for each in whole["learners"] if each["name"] == "foml"]
    fixed = {option: value for option, value in foml.items() if option not in ("alpha2", "beta2")}
    assert changed["learners"] == [foml | {"alpha2": 1e-12}, foml | {"beta2": 0}, fixed | {"meta_updates": False}]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES if name not in (*POPULATIONS, *SEARCHES)],
)
def test_a_ready_sweep(name: str, tmp_path: Path) -> None:
    """The bare protocol computes its trials; the command finds them finished, and does the rest."""
    small(name, tmp_path)
    _, trials, _ = compute(tmp_path)
    with_database(tmp_path)
    done = run_here(tmp_path, "sweep.yaml", f"tracking.uri={uri(tmp_path)}")
    assert done.returncode == 0, done.stderr
    summary = reported(tmp_path, name)
    assert len(summary) == len({trial.configuration.hash for trial in trials}) == len(set(summary.label))
    assert summary.n.tolist() == [2] * len(summary)
    learners = {each["name"] for each in ready(name)["learners"]}
    assert set(summary.learner) == learners


@pytest.mark.parametrize(
    ("name", "of_it", "trials"),
    [
        ("quickstart_tune", {}, {"foml alpha1=? alpha2=? beta1=?": "3"}),
        ("pbt_foml", PBT, dict.fromkeys(("foml", "foml member 1", "foml member 2", "foml member 3"), "1")),
    ],
)
def test_a_ready_search_or_population_is_planned(
    name: str, of_it: dict[str, Any], trials: dict[str, str], tmp_path: Path
) -> None:
    """Its first batches run, without Ray; `sweep/test_main.py` and `test_population.py` have whole ones with Ray."""
    small(name, tmp_path, **of_it)
    done = run_here(tmp_path, "sweep.yaml", "--plan")
    assert done.returncode == 0, done.stderr
    _, *rows = done.stdout.splitlines()
    columns = [re.split(r"  +", row[14:].strip()) for row in rows[: len(trials)]]
    assert {label: count for label, count, *_ in columns} == trials
    count = sum(map(int, trials.values()))
    assert rows[len(trials)].startswith(f"{count} trials, {count} to run: ")


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_ready_search(name: str, tmp_path: Path) -> None:
    small(name, tmp_path)
    done = run(tmp_path, "sweep.yaml", f"tracking.uri={uri(tmp_path)}")
    assert done.returncode == 0, done.stderr
    summary = reported(tmp_path, name)
    assert summary.learner.tolist() == ["foml"] * 3 and summary.label.nunique() == 3
    assert summary.n.max() == 2 and summary.usable.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_a_ready_population(name: str, tmp_path: Path) -> None:
    """With Ray: members copy one another; beside them the same learner with constant values."""
    small(name, tmp_path, **PBT)
    done = run(tmp_path, "sweep.yaml", f"tracking.uri={uri(tmp_path)}")
    assert done.returncode == 0, done.stderr
    summary = reported(tmp_path, name)
    assert sorted(summary.label) == ["foml", "foml member 1", "foml member 2", "foml member 3"]
    assert summary.n.tolist() == [2] * 4
