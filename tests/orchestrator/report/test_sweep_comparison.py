"""Two sweeps, or two versions of one, paired by configuration and by seed."""

from dataclasses import replace

import pytest
from scipy import stats

from orchestrator.errors import OrchestratorError
from orchestrator.report import sweep_comparison, tables
from orchestrator.report.comparison import compare
from orchestrator.report.sweep_comparison import SweepPart
from tests.orchestrator.report.test_comparison import configuration, curves, sweep_of

BEFORE = {
    "foml K=1": {0: 0.30, 1: 0.40, 2: 0.50},
    "foml K=5": {0: 0.20, 1: 0.30, 2: 0.40},
    "toe a=1": {0: 0.60, 1: 0.61, 2: 0.66},
    "toe a=2": {0: 0.50, 1: 0.51, 2: 0.56},
    "tfs": {0: 0.9, 1: 0.9, 2: 0.9},
}
AFTER = {
    "foml K=5": {1: 0.25, 2: 0.37, 3: 0.10},
    "foml K=9": {1: 0.10, 2: 0.10, 3: 0.10},
    "toe a=3": {0: 0.45, 1: 0.50, 2: 0.50},
    "online": {0: 0.1, 1: 0.1, 2: 0.1},
}


def part(name, errors, objective="cumulative_error", **options):
    runs = [configuration(label, tuple(values), **options) for label, values in errors.items()]
    return SweepPart(name, replace(sweep_of(*runs, objective=objective), run_id=name), curves(errors))


def compared(first, second):
    both = sweep_comparison.merged(first, second)
    return both, sweep_comparison.pairs(first, second, compare(both.sweep, both.curves))


def test_equal_labels_are_paired_and_of_other_learners_the_best():
    both, pairs = compared(part("A", BEFORE, alpha1=0.1), part("B", AFTER, alpha1=0.2, beta1=3))
    assert both.name == "A and B"
    assert [pair.label for pair in pairs] == ["foml K=5", "toe a=2 → toe a=3"], "tfs and online are in one sweep only"
    foml, toe = pairs
    assert foml.difference.interval.n == 2 and foml.difference.interval.mean == pytest.approx((-0.05 - 0.03) / 2)
    assert toe.difference.interval.mean == pytest.approx((-0.05 - 0.01 - 0.06) / 3)
    p_foml = stats.ttest_rel([0.25, 0.37], [0.30, 0.40]).pvalue
    p_toe = stats.ttest_rel([0.45, 0.50, 0.50], [0.50, 0.51, 0.56]).pvalue
    small, large = sorted((p_foml, p_toe))
    corrected = {small: 2 * small, large: max(large, 2 * small)}
    assert (foml.difference.p, toe.difference.p) == pytest.approx((corrected[p_foml], corrected[p_toe]))
    assert foml.options == "alpha1: 0.1 → 0.2, beta1: – → 3"
    table = {column.name: column for column in sweep_comparison.columns(part("A", BEFORE), part("B", AFTER), pairs)}
    assert table["A"].cell(0, 3) == "0.300 ± 0.248" and table["B − A"].cell(0, 3).startswith("-0.040 ± ")
    assert table["common seeds"].cell(0, 3) == "2"
    numbers = sweep_comparison.numbers(pairs)
    assert numbers.difference_mean.tolist() == pytest.approx([-0.04, -0.04]) and numbers.difference_n.tolist() == [2, 3]


def test_a_configuration_of_an_earlier_version_is_in_no_pair():
    """Neither where the present version has its label, nor where it is the only one of its learner."""
    errors = {"a": {0: 0.3, 1: 0.4}, "b": {0: 0.9, 1: 0.8}, "toe": {0: 0.1, 1: 0.1}}
    now, before, gone = (configuration(name, (0, 1)) for name in errors)
    now, before = replace(now, label="foml", learner="foml"), replace(before, label="foml", learner="foml")
    sweep = sweep_of(now, replace(before, removed=True), replace(gone, removed=True))
    first = SweepPart("A", replace(sweep, run_id="A"), curves(errors))
    _, (pair,) = compared(first, part("B", {"foml": {0: 0.2, 1: 0.3}, "toe": {0: 0.2, 1: 0.2}}))
    assert pair.label == "foml" and pair.first.values == {0: 0.3, 1: 0.4}
    assert pair.difference.interval.mean == pytest.approx(-0.1)


def test_the_latex_table_of_pairs_has_ascii_characters_only():
    first, second = part("A", BEFORE, alpha1=0.1), part("B", AFTER, alpha1=0.2)
    _, pairs = compared(first, second)
    text = tables.tabular(sweep_comparison.columns(first, second, pairs), 0)
    assert r"toe a=2 $\rightarrow$ toe a=3" in text and r"alpha1: 0.1 $\rightarrow$ 0.2" in text
    assert text.isascii(), "others are errors in pdflatex"


def test_other_streams_are_mentioned():
    same, other = (compared(part("A", BEFORE, stream="x"), part("B", AFTER, stream=stream))[1] for stream in ("x", "y"))
    assert sweep_comparison.warning(same) == ""
    assert sweep_comparison.warning(other).startswith("The streams differ: ")


def test_other_objectives_cannot_be_compared():
    with pytest.raises(OrchestratorError) as error:
        sweep_comparison.merged(part("A", BEFORE), part("B", AFTER, objective="online_error"))
    assert list(error.value.faults) == [
        "report: both sweeps must have the same objective (got cumulative_error and online_error)"
    ]


def test_a_sweep_is_compared_with_the_newest_earlier_configuration_of_each_label():
    errors = {"a": {0: 0.5, 1: 0.7}, "b": {0: 0.3, 1: 0.4}, "c": {0: 0.2, 1: 0.25}}
    old, newer, now = (replace(configuration(name, (0, 1)), label="foml") for name in errors)
    sweep = sweep_of(replace(old, removed=True), replace(newer, removed=True), now)
    first, second = sweep_comparison.versions(sweep, curves(errors))
    both, (pair,) = compared(first, second)
    assert both.name == "sweep, earlier and current" and pair.label == "foml"
    assert pair.difference.interval.mean == pytest.approx((-0.1 - 0.15) / 2), "of b, which is newer than a"
    assert pair.first.usable and set(both.curves.seed) == {0, 1}
    with pytest.raises(OrchestratorError, match="no configurations of an earlier version"):
        sweep_comparison.versions(sweep_of(now), curves(errors))
