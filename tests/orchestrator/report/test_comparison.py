"""Paired differences, Holm's correction and excluded seeds, against values computed by hand."""

import doctest
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from orchestrator.plan.fate import Ending
from orchestrator.protocol.metrics import interval
from orchestrator.report import comparison, tables
from orchestrator.report.comparison import compare, difference, holm
from orchestrator.report.tables import columns, complete
from orchestrator.tracking.reader import ConfigurationRuns, SeedRun, SweepRuns


def test_doctests():
    result = doctest.testmod(comparison)
    assert result.failed == 0 and result.attempted >= 2


def configuration(label, seeds=(0, 1, 2), status="FINISHED", diverged=None, complete=True, **options):
    runs = tuple(SeedRun(f"{label}{s}", s, status, (diverged or {}).get(s), ()) for s in seeds)
    return ConfigurationRuns(label, label, label, label.split()[0], False, complete, tuple(seeds), options, {}, runs)


def sweep_of(*configurations, objective="cumulative_error"):
    return SweepRuns(None, "parent", "sweep", objective, "min", configurations)


def curves(values, metric="cumulative_error", step=3):
    """Points of one step: label → error by seed."""
    rows = [
        (label, label, label.split()[0], seed, metric, step, error)
        for label, errors in values.items()
        for seed, error in errors.items()
    ]
    return pd.DataFrame(rows, columns=["configuration", "label", "learner", "seed", "metric", "step", "value"])


def test_differences_are_paired_by_seed_and_corrected_by_holm():
    errors = {
        "a": {0: 0.10, 1: 0.20, 2: 0.30},
        "b": {0: 0.14, 1: 0.26, 2: 0.35},  # 0.04, 0.06, 0.05 above: half-width 4.3027 · 0.01 / √3
        "c": {0: 0.30, 1: 0.25, 2: 0.50},
    }
    a, b, c = compare(sweep_of(*map(configuration, errors)), curves(errors))
    assert [row.configuration.label for row in (a, b, c)] == ["a", "b", "c"] and a.difference is None
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert b.difference.interval.mean == pytest.approx(0.05)
    assert b.difference.interval.high - 0.05 == pytest.approx(half, rel=1e-5) and b.difference.interval.n == 3
    p_b = stats.ttest_rel(list(errors["b"].values()), list(errors["a"].values())).pvalue
    p_c = stats.ttest_rel(list(errors["c"].values()), list(errors["a"].values())).pvalue
    assert p_b < p_c
    assert b.difference.p == pytest.approx(2 * p_b) and c.difference.p == pytest.approx(max(p_c, 2 * p_b))


def test_another_objective_is_read_from_its_own_point_and_may_be_maximised():
    values = {"a": {0: 0.1, 1: 0.2}, "b": {0: 0.3, 1: 0.5}}
    sweep = replace(
        sweep_of(*(configuration(label, (0, 1)) for label in values), objective="forward_transfer"), mode="max"
    )
    by_task = curves({"a": {0: 9.0, 1: 9.0}, "b": {0: 0.0, 1: 0.0}}, "forward_transfer", step=1)
    b, a = compare(sweep, pd.concat([curves(values, "objective", step=0), by_task]))
    assert (b.configuration.label, b.values, a.values) == ("b", values["b"], values["a"])
    assert a.difference.interval.mean == pytest.approx(-0.25)


def test_a_configuration_without_the_objective_of_each_seed_is_not_the_best():
    """A function of the user's own returned infinity for two of three seeds."""
    values = {"a": {0: 5.0}, "b": {0: 6.0, 1: 6.5, 2: 6.2}, "c": {}}
    rows = compare(sweep_of(*map(configuration, values), objective="my.steps_to"), curves(values, "objective", step=0))
    assert [(row.configuration.label, row.usable) for row in rows] == [("b", True), ("a", False), ("c", False)]
    assert [row.notes for row in rows] == ["", "no objective for seeds 1 2", "no objective for seeds 0 1 2"]
    assert rows[1].difference.interval.n == 1 and rows[1].difference.interval.mean == -1.0
    ended = "finished with an objective for every seed"
    assert tables.result_sentence(rows, "my.steps_to") == (
        f"b is the only configuration that {ended}: its my.steps to is {tables.shown(rows[0].objective)}."
    )
    assert tables.result_sentence(rows[1:], "my.steps_to") == f"No configuration {ended}."


def test_of_equal_configurations_the_first_of_the_plan_leads():
    values = {0: 0.1, 1: 0.2, 2: 0.3}
    for labels in (["b", "c", "a"], ["a", "c", "b"]):
        rows = compare(sweep_of(*map(configuration, labels)), curves(dict.fromkeys("abc", values)))
        assert [row.configuration.label for row in rows] == labels


def test_removed_configurations_are_not_in_the_table_for_a_paper():
    errors = {"a": {0: 0.1, 1: 0.2}, "b": {0: 0.3, 1: 0.4}}
    kept, earlier = configuration("a", (0, 1)), replace(configuration("b", (0, 1)), removed=True)
    latex = tables.latex(compare(sweep_of(earlier, kept), curves(errors)), "cumulative_error").splitlines()
    assert latex[1] == "% without 1 of an earlier version of this sweep"
    assert [line.partition(" &")[0] for line in latex if line.endswith("\\\\")] == ["learner", "a"]
    alone = tables.latex(compare(sweep_of(kept), curves(errors)), "cumulative_error").splitlines()
    assert alone == [line for line in latex if not line.startswith("% without")]


def test_past_tasks_have_columns_where_they_were_evaluated():
    errors = {"a": {0: 0.1, 1: 0.2}, "b": {0: 0.3, 1: 0.5}}
    early, late = ({"a": {0: x, 1: x + 0.2}} for x in (0.9, 0.1))
    points = pd.concat([curves(errors), curves(early, "forgetting", step=1), curves(late, "forgetting", step=2)])
    sweep = sweep_of(*(configuration(label, (0, 1)) for label in errors))
    a, b = compare(sweep, points)
    assert a.past["forgetting"].mean == pytest.approx(0.2) and a.past.keys() == {"forgetting"} and b.past == {}
    wide = {column.name: column for column in tables.columns([a, b], "cumulative_error", wide=True, digits=4)}
    assert "backward transfer" not in wide
    assert [wide["forgetting"].cell(row, usual_n=2)[:9] for row in (0, 1)] == ["0.2000 ± ", "–"]
    assert "forgetting" not in [column.name for column in tables.columns([a, b], "cumulative_error")]
    means = comparison.summary(sweep, [a, b])["forgetting_mean"]
    assert means[0] == pytest.approx(0.2) and np.isnan(means[1])


def test_only_common_seeds_are_compared():
    errors = {"a": {0: 0.1, 1: 0.2, 2: 0.3}, "b": {1: 0.5, 2: 0.4, 5: 0.0}}
    a, b = compare(sweep_of(configuration("a"), configuration("b", (1, 2, 5))), curves(errors))
    assert (a.configuration.label, b.difference.interval.n) == ("a", 2) and b.difference.interval.mean == pytest.approx(
        0.2
    )


def test_no_test_without_spread_or_with_one_seed():
    assert difference({0: 0.5}, {0: 0.25}) == comparison.PairedDifference(interval(np.array([0.25])), None)
    same = difference({0: 0.5, 1: 0.6}, {0: 0.25, 1: 0.35})
    assert same.p is None and same.interval.mean == pytest.approx(0.25)
    assert difference({0: 0.5}, {1: 0.25}).interval.n == 0


def test_holm_keeps_the_order_and_is_never_above_one():
    assert holm([0.04, 0.001, 0.5, 0.03]) == pytest.approx([0.09, 0.004, 0.5, 0.09])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_share_of_distilled_targets_is_noted():
    errors = {"a": {0: 0.1}, "b": {0: 0.2}, "c": {0: 0.3}}
    shares = curves({"a": {0: 0.0}, "b": {0: 0.025}}, metric="diagnostics/distilled")
    rows = compare(sweep_of(*(configuration(each, seeds=(0,)) for each in errors)), pd.concat([curves(errors), shares]))
    assert [row.notes for row in rows] == ["nothing distilled", "2.5 % of targets distilled", ""]


def test_excluded_seeds_are_named_and_their_configuration_is_not_usable():
    errors = {"a": {0: 0.1, 1: 0.1, 2: 0.1}, "b": {0: 0.5, 1: 0.4, 2: 0.6}, "c": {0: 0.2}}
    sweep = sweep_of(
        configuration("a", diverged={1: 7}),
        configuration("b"),
        configuration("c", status="RUNNING", complete=False),
    )
    best, *others = compare(sweep, curves(errors))
    assert best.configuration.label == "b" and best.usable
    by_label = {row.configuration.label: row for row in others}
    assert by_label["a"].notes == "seed 1 diverged at batch 7" and set(by_label["a"].values) == {0, 2}
    assert by_label["a"].difference.interval.n == 2 and by_label["a"].difference.interval.mean == pytest.approx(-0.45)
    assert by_label["c"].notes == "seeds 0 1 2 unfinished" and by_label["c"].objective.n == 0
    assert by_label["c"].difference is None
    none_usable = compare(sweep_of(configuration("a", diverged={1: 7})), curves(errors))
    assert not none_usable[0].usable and none_usable[0].difference is None


def test_a_removed_configuration_is_shown_and_not_compared():
    errors = {"a": {0: 0.1, 1: 0.1, 2: 0.1}, "b": {0: 0.5, 1: 0.4, 2: 0.6}, "c": {0: 0.6, 1: 0.6, 2: 0.6}}
    earlier = replace(configuration("a"), removed=True)
    rows = compare(sweep_of(earlier, configuration("b"), configuration("c")), curves(errors))
    assert [(row.configuration.label, row.usable, row.notes) for row in rows] == [
        ("b", True, ""), ("c", True, ""), ("a", False, "of an earlier version of this sweep"),
    ]  # fmt: skip
    alone = compare(sweep_of(configuration("b"), configuration("c")), curves(errors))
    assert [row.difference for row in rows] == [*(row.difference for row in alone), None]
    assert rows[2].objective.mean == pytest.approx(0.1)
    assert complete(rows) == "2 of 2 configurations complete, and 1 of an earlier version of this sweep"
    none_usable = compare(sweep_of(earlier, configuration("b", diverged={1: 7})), curves(errors))
    assert [(row.configuration.label, row.usable, row.difference) for row in none_usable] == [
        ("b", False, None),
        ("a", False, None),
    ]


def test_a_stopped_configuration_is_not_compared():
    row = configuration("a", status="KILLED", complete=False)
    stopped = replace(row, seeds=tuple(replace(run, stopped_at=40) for run in row.seeds))
    errors = {"a": {0: 0.1, 1: 0.1, 2: 0.1}, "b": {0: 0.5, 1: 0.4, 2: 0.6}}
    best, other = compare(sweep_of(stopped, configuration("b")), curves(errors))
    assert best.configuration.label == "b" and best.usable
    assert other.notes == "seeds 0 1 2 stopped at batch 40" and other.objective.n == 0


def test_the_error_so_far_of_an_interrupted_configuration_is_shown_and_in_no_comparison():
    errors = {"a": {0: 0.1, 1: 0.3}, "b": {0: 0.5, 1: 0.4, 2: 0.6}, "c": {0: 0.7, 1: 0.1}}
    killed = configuration("a", seeds=(0, 1), status="KILLED", complete=False)
    diverged = configuration("c", seeds=(0, 1), status="KILLED", complete=False, diverged={1: 5})
    later = curves({"a": {0: 0.2, 1: 0.4}}, step=4)
    table = pd.concat([curves(errors), later, curves({"b": {0: 0.3}}, "online_error")])
    best, *others = compare(sweep_of(killed, configuration("b"), diverged), table)
    assert (best.configuration.label, best.so_far) == ("b", None)
    a, c = sorted(others, key=lambda row: row.configuration.label)
    assert a.so_far == interval(np.array([0.2, 0.4])) and a.notes == "seeds 0 1 interrupted"
    assert c.so_far == interval(np.array([0.7])) and c.notes == "seed 0 interrupted, seed 1 diverged at batch 5"
    for row in (a, c):
        assert row.objective.n == 0 and row.difference is None and not row.usable and row.values == {}
    column = columns([best, a, c], "cumulative_error", digits=4)[2]
    objectives = [column.cell(row, usual_n=0) for row in range(3)]
    assert objectives == [str(best.objective), f"{a.so_far} so far", "0.7000 (n=1) so far"]
    assert [column.key(row) for row in range(3)] == [best.objective.mean, "", ""], "not sorted among finished ones"
    half = configuration("a", seeds=(0, 1), diverged={})
    half = replace(half, complete=False, seeds=(half.seeds[0], replace(half.seeds[1], status="KILLED")))
    (row,) = compare(sweep_of(half), curves(errors))
    assert row.values == {0: 0.1} and row.so_far is None  # one seed has finished: its value is shown
    (online,) = compare(sweep_of(killed, objective="online_error"), curves({"a": {0: 0.8, 1: 0.6}}, "online_error"))
    assert online.so_far is not None and online.so_far.mean == pytest.approx(0.7)
    (nothing,) = compare(sweep_of(killed), table[table.configuration == "b"])
    assert nothing.so_far is None and columns([nothing], "cumulative_error")[2].cell(0, 0) == "–"


def test_points_to_counts_the_seeds_that_reach_it():
    within = pd.concat(
        [curves({"a": {0: first, 1: first}}, "adaptation", step) for step, first in ((0, 0.8), (10, 0.4), (20, 0.2))]
    )
    within.loc[(within.seed == 1) & (within.step == 20), "value"] = 0.35
    (row,) = compare(sweep_of(configuration("a", (0, 1))), within, (0.4, 0.3))
    assert row.points_to[0.4] == comparison.PointsTo(interval(np.array([10.0, 10.0])), 2, 2)
    assert row.points_to[0.3].reached == 1 and row.points_to[0.3].total == 2 and row.points_to[0.3].points.n == 0


def test_test_errors_are_shown_and_do_not_affect_the_order():
    errors = {"a": {0: 0.1, 1: 0.2, 2: 0.3}, "b": {0: 0.2, 1: 0.3, 2: 0.4}}
    tested = pd.concat(
        [
            curves({"a": {0: 0.9, 1: 0.9, 2: 0.9}, "b": {0: x, 1: x, 2: x}}, "test_error", t)
            for t, x in ((0, 0.1), (1, 0.3))
        ]
    )
    a, b = compare(sweep_of(*map(configuration, errors)), pd.concat([curves(errors), tested]))
    assert a.configuration.label == "a" and a.test_error.mean == pytest.approx(0.9)
    assert b.test_error.mean == pytest.approx(0.2) and b.test_error.n == 3
    assert compare(sweep_of(configuration("a")), curves(errors))[0].test_error is None


def test_an_objective_by_batch_is_a_mean():
    online = pd.concat([curves({"a": {0: x, 1: x}}, "online_error", j) for j, x in enumerate((0.5, 0.1))])
    (row,) = compare(sweep_of(configuration("a", (0, 1)), objective="online_error"), online)
    assert row.objective.mean == pytest.approx(0.3) and row.objective.n == 2


def test_a_point_by_batch_counts_for_each_batch_since_the_one_before():
    """Blocks of four, four and one batches; the points are in no order."""
    online = pd.concat([curves({"a": {0: x}}, "online_error", j) for j, x in ((8, 0.9), (3, 0.5), (7, 0.1))])
    (row,) = compare(sweep_of(configuration("a", (0,)), objective="online_error"), online)
    assert row.objective.mean == pytest.approx((4 * 0.5 + 4 * 0.1 + 0.9) / 9)


def test_final_error_forward_transfer_and_regret_of_a_row():
    """The last error and regret, and the mean transfer of the tasks after the first one."""
    points = pd.concat(
        [
            curves({"a": {0: 0.5, 1: 0.7}}),
            curves({"a": {0: 0.2, 1: 0.4}}, "validation_error", step=2),
            curves({"a": {0: 0.9, 1: 0.9}}, "validation_error", step=1),
            curves({"a": {0: 0.8, 1: 0.8}}, "forward_transfer", step=0),
            curves({"a": {0: 0.1, 1: 0.3}}, "forward_transfer", step=1),
            curves({"a": {0: 0.3, 1: 0.3}}, "forward_transfer", step=2),
            curves({"a": {0: 5.0, 1: 7.0}}, "regret", step=2),
            curves({"a": {0: 1.0, 1: 1.0}}, "regret", step=1),
        ]
    )
    (row,) = compare(sweep_of(configuration("a", (0, 1))), points)
    means = [each.mean for each in (row.final_error, row.forward_transfer, row.regret)]
    assert means == pytest.approx([0.3, 0.25, 6.0])


def test_an_effect_is_the_mean_over_the_standard_deviation():
    values = np.array([0.04, 0.06, 0.05])  # standard deviation 0.01
    assert comparison.PairedDifference(interval(values), None).effect == pytest.approx(5.0)


def test_endings_of_seeds():
    one = configuration("a", seeds=(0, 1, 2, 3, 4))
    runs = (
        replace(one.seeds[0], status="FAILED"),
        replace(one.seeds[1], status="KILLED", stopped_at=40, diverged_at=7),
        replace(one.seeds[2], stopped_at=40),  # it finished after it had been stopped once
        replace(one.seeds[3], status="RUNNING"),
    )
    (row,) = compare(sweep_of(replace(one, seeds=runs)), curves({"a": dict.fromkeys(range(5), 0.5)}))
    endings = {seed: fate.ending for seed, fate in row.excluded.items()}
    assert endings == {0: Ending.FAILED, 1: Ending.DIVERGED, 3: Ending.UNFINISHED, 4: Ending.MISSING}
    assert row.values == {2: 0.5} and row.diverged_seeds == [1] and row.missing_seeds == [0, 3, 4]
