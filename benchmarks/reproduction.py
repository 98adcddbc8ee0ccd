"""The tables and pictures of docs/reproduction.md and the pages below it, from the curves in docs/results.

    foml sweep rainbow_mnist [stream.data=FOLDER]
    python -m benchmarks.reproduction --keep rainbow-mnist [--tracking-uri sqlite:///mlflow.db]
    python -m benchmarks.reproduction                  # writes the tables of all pages and the pictures
    python -m benchmarks.reproduction --check          # exit code 1 if a page does not agree with the curves

`--keep` copies the curves of a finished sweep from MLflow to docs/results/NAME.parquet. A table of a page is the text
between `<!-- table KIND NAME … -->` and `<!-- end -->`, where KIND is a function of `TABLES` and NAME one or more files
of docs/results: with `A+B`, B's configurations are `B:LABEL` and only compared with; with `A+B:LABEL`, that one of B is
among A's, and with `A+B:*` all of B are. Intervals are 95 % t-intervals over seeds, those of differences over pairs of
the same seed, with the p value of a paired t-test, which is not corrected for the number of comparisons.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.stats import ttest_1samp

from benchmarks.reproduction_picture import (
    ABLATIONS,
    CIFAR,
    COST,
    ERRORS,
    IMAGES,
    PIXELS,
    RAINBOW,
    RECURRING,
    Row,
    draw_cost,
    draw_curves,
    draw_errors,
)
from orchestrator.protocol.metrics import Interval, interval
from orchestrator.tracking.reader import curves_of, find_sweep

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
PAGES = [ROOT / "docs/reproduction.md", *sorted((ROOT / "docs/reproduction").glob("*.md"))]
"""The summary, and the pages that it leads to."""
LAST = 8
"""Number of tasks in a mean error: one task has 170 validation digits, and a standard error of 2.3 points at 10 %."""
ALL = "*"
"""Stands for all labels of a file."""
COST_ROWS = "cost+ablations:*+rainbow-mnist:foml+rainbow-mnist:online+rainbow-mnist:replay+rainbow-mnist:moca"
"""The configurations of the picture of error against cost."""
BEST = 3
"""Number of trials of each learner in a table of a search."""
CURVES = ("validation_error", "online_error", "gradient_evaluations_per_datapoint", "seconds")
"""The curves that are kept; the cumulative error is the mean of the validation errors."""
SAME_SIGN, RUN_LENGTH = "diagnostics/meta_gradient_same_sign", "diagnostics/run_length"
"""Diagnostics of every batch, of which the mean over the stream is kept, as step 0."""
_PROVENANCE = ("foml.command", "foml.git_commit", "foml.versions", "foml.platform", "foml_internal.identity_json")
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/'\"]+/)*")
"""The folders of an absolute path, of which the provenance keeps the last part only: they are those of one machine."""
_PAIRED = ("cumulative error", "p", f"last {LAST} tasks", "p")
_NUMBERED = " #"
_KNOB = re.compile(r" (updates_per_batch|K)=\S+")
"""The options that set a learner's gradient evaluations, in a label."""
_TABLE = re.compile(r"(<!-- table (?P<kind>\w+) (?P<arguments>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Curves:
    """Kept curves.

    Attributes:
        frame: one row for each value, with the columns label, seed, metric, step, value.
        rows: the labels that have a row in tables: those of the first sweep.
    """

    frame: pd.DataFrame
    rows: list[str]

    @cached_property
    def labels(self) -> list[str]:
        """The labels that have a row, the lowest cumulative error first."""
        return sorted(self.rows, key=lambda label: self.cumulative(label).mean())

    def metrics(self, label: str) -> set[str]:
        """The metrics that a configuration has."""
        return set(self.frame["metric"][self.frame["label"] == label])

    def by_seed(self, label: str, metric: str) -> np.ndarray:
        """One row per seed, in order of seeds, one column per step, of the steps that all seeds have."""
        rows = self.frame[(self.frame["label"] == label) & (self.frame["metric"] == metric)]
        return rows.pivot(index="seed", columns="step", values="value").dropna(axis=1).to_numpy(dtype=float)

    def cumulative(self, label: str) -> np.ndarray:
        """The cumulative error of each seed, shape [seeds]."""
        return self.by_seed(label, "validation_error").mean(1)

    def last(self, label: str) -> np.ndarray:
        """The mean error of the last `LAST` tasks of each seed, shape [seeds]."""
        return self.by_seed(label, "validation_error")[:, -LAST:].mean(1)


def keep(name: str, tracking_uri: str, file: str | None = None, by_task: bool = False) -> Path:
    """Copy the curves of a finished sweep's complete configurations from MLflow to `RESULTS`.

    Args:
        name: the sweep.
        tracking_uri: of MLflow.
        file: the name in `RESULTS`, if it is not that of the sweep.
        by_task: leave out the online error, which has a value for each batch.
    """
    runs = find_sweep(name, tracking_uri)
    if runs.status != "FINISHED":
        sys.exit(f"{name}: only the curves of a finished sweep are kept, and this one is {runs.status}")
    frame = curves_of(replace(runs, configurations=tuple(each for each in runs.configurations if each.complete)))
    frame = frame[frame["seed"].notna()].assign(label=_distinct_labels(frame))
    diagnostics = frame[frame["metric"].isin((SAME_SIGN, RUN_LENGTH))]
    means = diagnostics.groupby(["label", "seed", "metric"], as_index=False, observed=True)["value"].mean()
    frame = pd.concat(
        [
            frame[frame["metric"].isin(set(CURVES) - {"online_error"} if by_task else CURVES)],
            means.assign(step=0),
        ]
    )
    frame = frame[["label", "seed", "metric", "step", "value"]].sort_values(["label", "metric", "seed", "step"])
    table = pa.Table.from_pandas(frame.astype({"seed": "int16", "step": "int32"}), preserve_index=False)
    provenance = {key: _FOLDERS.sub("", runs.tags[key]) for key in _PROVENANCE if key in runs.tags}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{file or name}.parquet"
    pq.write_table(
        table.replace_schema_metadata({"provenance": json.dumps(provenance, sort_keys=True)}),
        path, compression="zstd", compression_level=19, use_dictionary=["label", "metric", "value"],
        column_encoding={"seed": "DELTA_BINARY_PACKED", "step": "DELTA_BINARY_PACKED"},
    )  # fmt: skip
    return path


def _distinct_labels(frame: pd.DataFrame) -> pd.Series:
    """The labels, numbered where configurations share one: a search may draw values alike in four digits."""
    numbers = frame.groupby("label", observed=True)["configuration"].rank("dense").astype(int)
    return frame["label"].astype(str) + numbers.map(lambda number: f"{_NUMBERED}{number}" if number > 1 else "")


def load(name: str) -> Curves:
    """The kept curves of a sweep, or of several; see the module's text."""
    frames, rows = [], []
    for place, part in enumerate(name.split("+")):
        file, _, only = part.partition(":")
        frame = pq.read_table(RESULTS / f"{file}.parquet").to_pandas()
        if only:
            frame = frame if only == ALL else frame[frame["label"] == only]
        elif place:
            frame["label"] = f"{file}:" + frame["label"].astype(str)
        if only or not place:
            rows += sorted(frame["label"].unique())
        frames.append(frame)
    if len(set(rows)) < len(rows):
        sys.exit(f"{name}: two configurations have the same label: {', '.join(rows)}")
    return Curves(pd.concat(frames), rows)


def shown(value: Interval, digits: int = 3) -> str:
    """Mean ± half-width, with a minus sign of its own width."""
    half = "–" if value.high is None else f"{value.high - value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {half}".replace("-", "−")


def tasks_to(error: np.ndarray, threshold: float) -> str:
    """Mean over seeds of the first task with which the mean error of `LAST` tasks is at most the threshold.

    "not reached" unless every seed reaches it.
    """
    reached = []
    for row in error:
        means = np.convolve(row, np.full(LAST, 1 / LAST), mode="valid")
        reached.append(np.flatnonzero(means <= threshold + 1e-9))
    return "not reached" if any(len(r) == 0 for r in reached) else f"{np.mean([r[0] + LAST for r in reached]):.0f}"


def methods(name: str) -> list[str]:
    """Each configuration's errors and costs, and the number of tasks in which its mean error is the lowest."""
    curves, rows = load(name), []
    means_by_task = np.stack([curves.by_seed(label, "validation_error").mean(0) for label in curves.labels])
    lowest = np.bincount(means_by_task.argmin(0), minlength=len(curves.labels))
    for label, tasks in zip(curves.labels, lowest, strict=True):
        error = curves.by_seed(label, "validation_error")
        cost, seconds = (curves.by_seed(label, metric).mean() for metric in CURVES[2:])
        means = [shown(interval(curves.cumulative(label))), shown(interval(curves.last(label)))]
        reached = tasks_to(error, 0.10)
        rows.append([label, *means, reached, str(tasks), f"{cost:.1f}", f"{seconds:.0f}", str(len(error))])
    heads = ["method", "cumulative error", f"last {LAST} tasks", f"{LAST} tasks at 10 %", "lowest in tasks"]
    return _markdown([*heads, "gradients/datapoint", "seconds", "n"], rows)


def differences(name: str, reference: str) -> list[str]:
    """Each configuration's errors minus the reference's, paired by seed."""
    curves = load(name)
    rows = [[label, *_paired(curves, label, curves, reference)] for label in curves.labels if label != reference]
    return _markdown([f"minus {reference}", *_PAIRED], rows)


def changes(name: str, other: str) -> list[str]:
    """Each configuration's errors minus those of the same label in another sweep, paired by seed."""
    curves, others = load(name), load(other)
    rows = [[label, *_paired(curves, label, others, label)] for label in curves.labels]
    return _markdown([f"minus {other}", *_PAIRED], rows)


def _paired(curves: Curves, label: str, others: Curves, other: str) -> list[str]:
    """The cells of `_PAIRED`: errors minus others of the same seeds, and the p values of paired t-tests."""
    cells = []
    for of in (Curves.cumulative, Curves.last):
        pairs = of(curves, label) - of(others, other)
        p = float(ttest_1samp(pairs, 0).pvalue) if pairs.std() > 0 else np.nan
        cells += [shown(interval(pairs)), "–" if np.isnan(p) else f"{p:.3f}" if p >= 0.001 else "<0.001"]
    return cells


def signs(name: str) -> list[str]:
    """The share of live parameters whose meta-gradient has the sign of its direct β₂ part, mean over the stream."""
    return _means(load(name), SAME_SIGN, "same sign", digits=3)


def run_lengths(name: str) -> list[str]:
    """The expected number of datapoints in the current task according to MOCA's belief, mean over the stream."""
    return _means(load(name), RUN_LENGTH, "run length", digits=1)


def _means(curves: Curves, metric: str, heading: str, digits: int) -> list[str]:
    """The kept mean of a diagnostic, of the methods that have it."""
    rows = []
    for label in curves.labels:
        if metric in curves.metrics(label):
            values = curves.by_seed(label, metric)[:, 0]
            lowest, highest = (f"{value:.{digits}f}" for value in (values.min(), values.max()))
            rows.append([label, shown(interval(values), digits), lowest, highest])
    return _markdown(["method", heading, "lowest seed", "highest seed"], rows)


def by_cost(curves: Curves) -> dict[str, dict[int, Interval]]:
    """The cumulative error of each method by gradient evaluations per datapoint, rounded.

    Configurations that differ only in an option of `_KNOB` are one method.
    """
    errors: dict[str, dict[int, Interval]] = {}
    for label in curves.labels:
        evaluations = round(curves.by_seed(label, "gradient_evaluations_per_datapoint").mean())
        of_method = errors.setdefault(_KNOB.sub("", label), {})
        if evaluations in of_method:
            sys.exit(f"{label}: another configuration of this method has {evaluations} gradients per datapoint, too")
        of_method[evaluations] = interval(curves.cumulative(label))
    return errors


def cost(name: str) -> list[str]:
    """Each method's cumulative error, a column for each number of gradient evaluations per datapoint."""
    errors = by_cost(load(name))
    columns = sorted({evaluations for of_method in errors.values() for evaluations in of_method})
    rows = [
        [method, *(shown(of_method[column]) if column in of_method else "" for column in columns)]
        for method, of_method in errors.items()
    ]
    return _markdown(["gradients/datapoint", *map(str, columns)], rows)


def seeds(name: str) -> list[str]:
    """Each configuration's cumulative error on each seed."""
    curves = load(name)
    numbers = [str(seed) for seed in sorted(curves.frame["seed"].unique())]
    rows = [[label, *(f"{error:.3f}" for error in curves.cumulative(label))] for label in curves.labels]
    return _markdown(["seed", *numbers], rows)


def course(name: str, tasks: str = str(LAST)) -> list[str]:
    """Each configuration's mean error over seeds in stretches of `tasks` tasks."""
    curves, rows, length = load(name), [], int(tasks)
    for label in curves.labels:
        error = curves.by_seed(label, "validation_error").mean(0)
        starts = range(0, len(error), length)
        rows.append([label, *(f"{error[start : start + length].mean():.3f}" for start in starts)])
    return _markdown(["tasks", *(f"{start + 1}–{min(start + length, len(error))}" for start in starts)], rows)


def tuning(name: str) -> list[str]:
    """Each learner's number of trials, and its best ones with their values."""
    curves, rows = load(name), []
    for learner in sorted({label.split()[0] for label in curves.labels}):
        trials = [label for label in curves.labels if label.split()[0] == learner]
        errors = np.array([curves.cumulative(label).mean() for label in trials])
        finite = [(error, label) for error, label in zip(errors, trials, strict=True) if np.isfinite(error)]
        for place, (error, label) in enumerate(sorted(finite)[:BEST], 1):
            values = label.partition(" ")[2].partition(_NUMBERED)[0]
            rows.append([learner, str(len(trials)), str(place), values, f"{error:.3f}"])
    return _markdown(["method", "trials", "place", "values", "cumulative error"], rows)


TABLES: dict[str, Callable[..., list[str]]] = {
    "methods": methods,
    "differences": differences,
    "changes": changes,
    "seeds": seeds,
    "course": course,
    "signs": signs,
    "run_lengths": run_lengths,
    "cost": cost,
    "tuning": tuning,
}


def _markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def with_tables(page: str) -> str:
    """The page with every table computed again."""

    def table(match: re.Match[str]) -> str:
        lines = TABLES[match["kind"]](*match["arguments"].split(maxsplit=1))  # a label may have spaces
        return match[1] + "\n" + "\n".join(lines) + "\n\n" + match[4]

    return _TABLE.sub(table, page)


def _errors(name: str) -> dict[str, np.ndarray]:
    """The validation errors [seeds, tasks] of each configuration of kept curves, the lowest mean first."""
    curves = load(name)
    return {label: curves.by_seed(label, "validation_error") for label in curves.labels}


def draw(folder: Path = IMAGES) -> None:
    """Draw the pictures of the reproduction again, in `docs/images` or another folder."""
    curves = load("rainbow-mnist")
    rows = [
        Row(
            label,
            interval(curves.cumulative(label)),
            curves.by_seed(label, "gradient_evaluations_per_datapoint").mean(),
        )
        for label in curves.labels
    ]
    errors = _errors("rainbow-mnist")
    draw_errors(rows, next(iter(errors.values())).shape[1], folder / ERRORS.name)
    draw_curves(errors, LAST, folder / RAINBOW.name)
    ablations = _errors("ablations+rainbow-mnist:foml")
    names = {label: label.removeprefix("foml ") for label in ablations}
    names |= {"foml": "K=5", "foml meta_updates=False": "θ fixed"}
    draw_curves({names[label]: error for label, error in ablations.items()}, LAST, folder / ABLATIONS.name, top=0.5)
    draw_cost(by_cost(load(COST_ROWS)), folder / COST.name)
    draw_curves(_errors("online-cifar100-150+online-cifar100-150-ftml:*"), 25, folder / CIFAR.name, bottom=0.3, top=0.6)
    recurring = _errors("recurring-labels") | _errors("recurring-labels-moca")
    recurring["online, 2 steps"] = _errors("recurring-labels-steps")["online"]
    draw_curves(recurring, LAST, folder / RECURRING.name, top=0.55)
    pixels = _errors("permuted-mnist+permuted-mnist-more:*")
    pixels["online, 2 steps"] = _errors("permuted-mnist-steps")["online"]
    draw_curves(pixels, 50, folder / PIXELS.name, bottom=0.3, top=0.8)


def main() -> None:
    """Keep the curves of a sweep, or write or check the pages."""
    parser = argparse.ArgumentParser(description="Write the tables and pictures of the reproduction.")
    parser.add_argument("--keep", metavar="NAME", help="copy this sweep's curves from MLflow to docs/results")
    parser.add_argument("--as", dest="file", metavar="FILE", help="the name that they get there")
    parser.add_argument("--by-task", action="store_true", help="leave out the curves by batch")
    parser.add_argument("--tracking-uri", default="sqlite:///mlflow.db")
    parser.add_argument("--check", action="store_true", help="compare the pages with the curves, and write nothing")
    arguments = parser.parse_args()
    if arguments.keep:
        print(keep(arguments.keep, arguments.tracking_uri, arguments.file, arguments.by_task))
        return
    expected = {path: with_tables(path.read_text(encoding="utf-8")) for path in PAGES}
    if arguments.check:
        wrong = [path.name for path, page in expected.items() if page != path.read_text(encoding="utf-8")]
        sys.exit(f"not in agreement with docs/results: {', '.join(wrong)}" if wrong else 0)
    for path, page in expected.items():
        path.write_text(page, encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
