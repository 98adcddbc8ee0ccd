"""The tables of docs/reproduction.md, computed from curves."""

import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks import reproduction

LATE = [0.5] * 4 + [0.1] * 12  # eight tasks with two of the bad ones have a mean of 0.2: after ten tasks
EARLY = [0.1] * 16


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


def test_the_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for label, curves in {"foml": [LATE, EARLY], "online": [EARLY, EARLY]}.items():
        for seed, errors in enumerate(curves):
            cumulative = np.cumsum(errors) / np.arange(1, 17)
            for step, (error, mean) in enumerate(zip(errors, cumulative, strict=True)):
                rows += [(label, seed, "validation_error", step, error), (label, seed, "cumulative_error", step, mean)]
            rows += [(label, seed, "gradient_evaluations_per_datapoint", 0, 10.0), (label, seed, "seconds", 0, 7.0)]
    frame = pd.DataFrame(rows, columns=["label", "seed", "metric", "step", "value"])
    monkeypatch.setattr(reproduction, "load_curves", lambda name, uri: frame)
    monkeypatch.setattr(sys, "argv", ["reproduction", "sweep"])
    reproduction.main()
    lines = capsys.readouterr().out.splitlines()
    heads = "method | cumulative error | last 8 tasks | 8 tasks at 10 % | gradients/datapoint | seconds | tasks | n"
    assert lines[0] == f"| {heads} |"
    assert lines[2] == "| online | 0.100 ± 0.000 | 0.100 ± 0.000 | 8 | 10.0 | 7 | 16 | 2 |"
    assert lines[3] == "| foml | 0.150 ± 0.635 | 0.100 ± 0.000 | 10 | 10.0 | 7 | 16 | 2 |"  # 12 and 8 tasks
    assert lines[-1] == "| online | -0.050 ± 0.635 |"
