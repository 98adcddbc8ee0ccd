"""The table of docs/reproduction.md, from a finished sweep in MLflow.

    python -m orchestrator.sweep tune_configs/rainbow_mnist.yaml [stream.data=FOLDER]
    python -m benchmarks.reproduction rainbow-mnist [--tracking-uri sqlite:///mlflow.db] > table.md

Per method: cumulative error, mean error of the last eight tasks, the first task at which the mean error of eight tasks
is at most 10 %, cost; means over seeds with 95 % t-intervals. Then the differences to FOML by seed.
"""

import argparse

import numpy as np
import pandas as pd

from orchestrator.protocol.metrics import Interval, interval
from orchestrator.tracking.reader import load_curves

LAST = 8
"""Number of tasks in a mean error: one task has 170 validation digits, and a standard error of 2.3 points at 10 %."""


def by_seed(frame: pd.DataFrame, label: str, metric: str) -> np.ndarray:
    """One row per seed, in order of seeds, one column per step."""
    rows = frame[(frame["label"] == label) & (frame["metric"] == metric) & frame["seed"].notna()]
    table = rows.pivot(index="seed", columns="step", values="value")
    return table.dropna(axis=1).to_numpy(dtype=float)  # of an interrupted run: the steps of all seeds


def shown(value: Interval, digits: int = 3) -> str:
    """Mean ± half-width."""
    half = "–" if value.high is None else f"{value.high - value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {half}"


def tasks_to(error: np.ndarray, threshold: float) -> str:
    """Mean over seeds of the first task with which the mean error of `LAST` tasks is at most the threshold.

    "not reached" unless every seed reaches it.
    """
    reached = []
    for row in error:
        means = np.convolve(row, np.full(LAST, 1 / LAST), mode="valid")
        reached.append(np.flatnonzero(means <= threshold + 1e-9))
    return "not reached" if any(len(r) == 0 for r in reached) else f"{np.mean([r[0] + LAST for r in reached]):.0f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Print the reproduction's tables.")
    parser.add_argument("name")
    parser.add_argument("--tracking-uri", default="sqlite:///mlflow.db")
    parser.add_argument("--reference", default="foml", help="the label that the others are compared with")
    arguments = parser.parse_args()
    frame = load_curves(arguments.name, arguments.tracking_uri)
    cumulative = {label: by_seed(frame, label, "cumulative_error")[:, -1] for label in frame["label"].unique()}
    order = sorted(cumulative, key=lambda label: cumulative[label].mean())

    heads = ["method", "cumulative error", f"last {LAST} tasks", f"{LAST} tasks at 10 %", "gradients/datapoint"]
    print("| " + " | ".join([*heads, "seconds", "tasks", "n"]) + " |")
    print("|---|---|---|---|---|---|---|---|")
    for label in order:
        error = by_seed(frame, label, "validation_error")
        cost, seconds = (by_seed(frame, label, name) for name in ("gradient_evaluations_per_datapoint", "seconds"))
        cells = [
            label,
            shown(interval(cumulative[label])),
            shown(interval(error[:, -LAST:].mean(1))),
            tasks_to(error, 0.10),
            f"{cost.mean():.1f}" if cost.size else "not finished",
            f"{seconds.mean():.0f}" if seconds.size else "not finished",
            str(error.shape[1]),
            str(len(error)),
        ]
        print("| " + " | ".join(cells) + " |")
    print()
    print(f"| method | cumulative error minus {arguments.reference}'s, paired by seed |")
    print("|---|---|")
    for label in order:
        if label != arguments.reference:
            difference = interval(cumulative[label] - cumulative[arguments.reference])
            print(f"| {label} | {shown(difference)} |")


if __name__ == "__main__":
    main()
