"""Curves and intervals against values computed by hand."""

import doctest
import math

import numpy as np
import pytest

from orchestrator.protocol import metrics
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.metrics import Interval

NAN = math.nan


def two_seeds() -> Curves:
    """Six batches, three tasks of two batches for seed 7; seed 9 leaves its first task a batch later."""
    return Curves(
        [7, 9],
        0,
        {"online_error": np.array([[1.0, 0.8, 0.6, 0.4, 0.2, 0.0], [0.5, 0.5, 0.5, 0.1, 0.1, 0.1]])},
        {
            "seed": np.array([0, 1, 0, 0, 1]),
            "task": np.array([0, 0, 1, 2, 1]),
            "batch": np.array([1, 2, 3, 5, 5]),
            "error": np.array([0.9, 0.4, 0.3, 0.0, 0.2]),
            "loss": np.array([2.0, 1.0, 1.5, 0.5, 0.25]),
        },
        {"batches": np.array([2, 4, 6]), "time_ms": np.array([10, 20, 30])},
    )


def test_doctests():
    assert doctest.testmod(metrics).failed == 0


def test_held_out_error_and_loss_by_task():
    np.testing.assert_array_equal(metrics.held_out(two_seeds()), [[0.9, 0.3, 0.0], [0.4, 0.2, NAN]])
    np.testing.assert_array_equal(metrics.held_out(two_seeds(), "loss"), [[2.0, 1.5, 0.5], [1.0, 0.25, NAN]])
    assert metrics.held_out(Curves([1, 2])).shape == (2, 0)


def test_cumulative_error_is_the_mean_so_far_and_nan_from_the_first_nan_on():
    error = np.array([[0.9, 0.3, 0.0], [0.4, NAN, 0.2]])
    np.testing.assert_allclose(metrics.cumulative(error), [[0.9, 0.6, 0.4], [0.4, NAN, NAN]])


def test_adaptation_is_over_the_tasks_that_are_long_enough():
    curves = two_seeds()
    expected = [[(1.0 + 0.2) / 2, (0.8 + 0.0) / 2, 0.6, 0.4], [(0.5 + 0.1) / 2, (0.5 + 0.1) / 2, 0.5, 0.1]]
    online, ends = curves.by_batch["online_error"], np.array([3, 5])
    np.testing.assert_allclose([metrics.adaptation(one, ends) for one in online], expected)
    np.testing.assert_allclose(metrics.adaptation(online[0], np.array([3])), online[0, :4], err_msg="an open task")
    online[1, 4:] = NAN  # it diverged there
    np.testing.assert_allclose(metrics.adaptation(online[1], ends), [NAN, NAN, 0.5, 0.1])
    assert metrics.adaptation(online[0], np.array([])).shape == (0,)
    np.testing.assert_allclose(metrics.adaptation(online[0], np.array([3, 3, 5]))[:2], expected[0][:2])


def test_intervals_of_a_curve_are_those_of_its_columns():
    curve = np.random.default_rng(0).random((5, 40))
    curve[:3, 1] = curve[:4, 2] = curve[:, 3] = curve[2, 4] = NAN
    mean, low, high = metrics.interval_curve(curve)
    each = [metrics.interval(column) for column in curve.T]
    np.testing.assert_allclose(mean, [one.mean for one in each], rtol=1e-12)
    np.testing.assert_allclose(low, [NAN if one.low is None else one.low for one in each], rtol=1e-12)
    np.testing.assert_allclose(high, [NAN if one.high is None else one.high for one in each], rtol=1e-12)
    assert [len(part) for part in metrics.interval_curve(np.empty((3, 0)))] == [0, 0, 0]


MATRIX = np.array([[0.9, NAN, NAN], [0.6, 0.8, NAN], [0.3, 0.7, 0.5]])
"""Accuracy on task j (column) after learning task i (row)."""


def test_average_accuracy_backward_transfer_and_forgetting_of_a_small_matrix():
    np.testing.assert_allclose(metrics.average_accuracy(MATRIX), [0.9, 0.7, 0.5])
    # (0.6 − 0.9) / 1; ((0.3 − 0.9) + (0.7 − 0.8)) / 2
    np.testing.assert_allclose(metrics.backward_transfer(MATRIX), [NAN, -0.3, -0.35])
    np.testing.assert_allclose(metrics.forgetting(MATRIX), [NAN, 0.3, 0.35])


def test_forgetting_is_from_the_best_evaluation_so_far_and_negative_after_an_improvement():
    matrix = MATRIX.copy()
    matrix[1, 0] = 1.0  # task 0 is better after task 1 than after itself
    np.testing.assert_allclose(metrics.forgetting(matrix), [NAN, -0.1, ((1.0 - 0.3) + (0.8 - 0.7)) / 2])
    np.testing.assert_allclose(metrics.backward_transfer(matrix), [NAN, 0.1, -0.35])


def test_with_one_evaluation_at_the_end_forgetting_is_minus_backward_transfer():
    matrix = MATRIX.copy()
    matrix[1, 0] = NAN
    np.testing.assert_allclose(metrics.average_accuracy(matrix), [0.9, NAN, 0.5])
    np.testing.assert_allclose(metrics.backward_transfer(matrix), [NAN, NAN, -0.35])
    np.testing.assert_allclose(metrics.forgetting(matrix), [NAN, NAN, 0.35])


def with_past() -> Curves:
    """Two seeds with three tasks, and `MATRIX` of the first one."""
    error = 1 - MATRIX
    other = np.array([[0.5, NAN, NAN], [0.5, 0.5, NAN], [0.5, 0.5, 0.5]])
    rows = [(s, i, j) for i in range(3) for j in range(i) for s in (0, 1)]
    errors = [(error, other)[s][i, j] for s, i, j in rows]
    seed, after, task = (np.array(column) for column in zip(*rows, strict=True))
    evaluations = {
        "seed": np.tile([0, 1], 3),
        "task": np.repeat([0, 1, 2], 2),
        "batch": np.repeat([1, 3, 5], 2),
        "error": np.array([0.1, 0.5, 0.2, 0.5, 0.5, 0.5]),
    }
    past = {"seed": seed, "after": after, "task": task, "batch": 2 * after + 1, "error": np.array(errors)}
    return Curves([7, 9], 0, {"online_error": np.ones((2, 6))}, evaluations, past=past)


def test_the_matrix_of_curves_and_its_curves():
    np.testing.assert_allclose(metrics.accuracies(with_past())[0], MATRIX)
    by_name = metrics.past_curves(with_past())
    np.testing.assert_allclose(by_name["average_accuracy"], [[NAN, 0.7, 0.5], [NAN, 0.5, 0.5]])
    np.testing.assert_allclose(by_name["backward_transfer"], [[NAN, -0.3, -0.35], [NAN, 0, 0]])
    np.testing.assert_allclose(by_name["forgetting"], [[NAN, 0.3, 0.35], [NAN, 0, 0]], atol=1e-12)
    assert metrics.past_curves(two_seeds()) == {}


@pytest.mark.parametrize("cut", range(7))
def test_evaluations_of_past_tasks_are_cut_and_extended_with_the_curves(cut):
    curves = with_past()
    first, rest = curves.until(cut), curves.since(cut)
    assert len(first.past["seed"]) + len(rest.past["seed"]) == 6
    first.extend(rest)
    for name, column in with_past().past.items():
        np.testing.assert_array_equal(first.past[name], column)


def test_regret_adds_the_excess_of_each_task_that_has_ended():
    """Tasks of two, one and three batches; the means of the online loss are 3, 1 and 2."""
    loss, last, reference = np.array([4.0, 2, 1, 3, 2, 1]), np.array([1, 2, 5]), np.array([1.0, 0.5, 0.25])
    assert metrics.regret(loss, last, reference).tolist() == [2.0, 2.5, 4.25]
    assert metrics.regret(loss[:5], last, reference).tolist() == [2.0, 2.5]
    loss[2] = np.nan
    assert metrics.regret(loss, last, reference).tolist() == pytest.approx([2.0, np.nan, np.nan], nan_ok=True)


def test_points_to_is_the_first_point_or_infinite():
    curve, points = np.array([0.9, 0.4, 0.5, 0.1]), np.array([0, 10, 20, 30])
    assert metrics.points_to(0.4, points, curve) == 10
    assert metrics.points_to(0.3, points, curve) == 30
    assert metrics.points_to(0.05, points, curve) == math.inf
    assert math.isnan(metrics.points_to(0.4, points, np.array([0.9, 0.4, NAN, 0.1])))
    assert math.isnan(metrics.points_to(0.4, points[:0], curve[:0]))


def test_points_to_counts_a_mean_that_equals_the_threshold_but_for_rounding():
    curve = metrics.adaptation(np.array([0.9, 0.0, 0.9, 0.1, 0.9, 0.2]), np.array([1, 3, 5]))
    assert curve[1] > 0.1, "not exact"
    assert metrics.points_to(0.1, np.array([0, 10]), curve) == 10
    assert metrics.points_to(0.1, np.array([0, 10]), np.array([0.9, 0.1 + 1e-9])) == math.inf


def test_a_column_that_an_earlier_version_did_not_write_is_nan():
    curves = two_seeds()
    later = curves.since(3)
    later.evaluations["test_error"] = np.array([0.5, 0.6, 0.7])
    earlier = Curves([7, 9], 0, {"online_error": curves.by_batch["online_error"][:, :3]})
    earlier.evaluations = {name: column[:2] for name, column in curves.evaluations.items()}
    earlier.extend(later)
    np.testing.assert_array_equal(metrics.held_out(earlier, "test_error"), [[NAN, 0.5, 0.6], [NAN, 0.7, NAN]])
    np.testing.assert_array_equal(metrics.held_out(earlier), metrics.held_out(curves))
    assert earlier.evaluations["task"].dtype == np.int64


def test_intervals_against_tables_of_the_t_distribution():
    # t(0.975) is 12.7062 for 1 degree of freedom, 4.3027 for 2, 2.7764 for 4.
    two = metrics.interval(np.array([0.1, 0.3]))
    assert (two.mean, two.n) == (pytest.approx(0.2), 2)
    assert two.high - two.mean == pytest.approx(12.7062 * 0.1, rel=1e-5) and two.mean - two.low == two.high - two.mean
    three = metrics.interval(np.array([1.0, 2.0, 3.0]))
    assert three.high - 2.0 == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    five = metrics.interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert five.high - 3.0 == pytest.approx(2.77645 * math.sqrt(2.5) / math.sqrt(5), rel=1e-5)


def test_intervals_of_one_no_and_diverged_seeds():
    assert metrics.interval(np.array([0.25])) == Interval(0.25, None, None, 1)
    assert str(metrics.interval(np.array([0.25]))) == "0.2500 ± – (n=1)"
    assert metrics.interval(np.array([0.1, NAN, 0.3, math.inf])) == metrics.interval(np.array([0.1, 0.3]))
    none = metrics.interval(np.array([NAN]))
    assert math.isnan(none.mean) and (none.low, none.high, none.n) == (None, None, 0)


def test_interval_curves():
    mean, low, high = metrics.interval_curve(np.array([[0.1, 0.5, NAN], [0.3, NAN, NAN]]))
    np.testing.assert_allclose(mean, [0.2, 0.5, NAN])
    np.testing.assert_allclose(low, [0.2 - 1.27062, NAN, NAN], rtol=1e-5)
    np.testing.assert_allclose(high, [0.2 + 1.27062, NAN, NAN], rtol=1e-5)


def test_a_curve_cut_at_any_batch_and_extended_is_the_same():
    curves = two_seeds()
    for cut in range(7):
        later = curves.since(cut)
        assert (later.first_batch, later.batches) == (cut, 6)
        assert later.evaluations["batch"].tolist() == [b for b in (1, 2, 3, 5, 5) if b >= cut]
        if cut % 2:
            continue  # a chunk cannot be in two slices
        first = Curves(
            [7, 9],
            0,
            {"online_error": curves.by_batch["online_error"][:, :cut]},
            {name: column[curves.evaluations["batch"] < cut] for name, column in curves.evaluations.items()},
            {name: column[curves.chunks["batches"] <= cut] for name, column in curves.chunks.items()},
        )
        first.extend(later)
        np.testing.assert_array_equal(first.by_batch["online_error"], curves.by_batch["online_error"])
        for name in ("evaluations", "chunks"):
            for column, values in getattr(curves, name).items():
                np.testing.assert_array_equal(getattr(first, name)[column], values)


def test_slices_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"must begin at batch 6 with seeds \[7, 9\], but got batch 5"):
        two_seeds().extend(Curves([7, 9], 5))
    with pytest.raises(ValueError, match=r"seeds \[7, 9\], but got batch 6 with seeds \[7\]"):
        two_seeds().extend(Curves([7], 6))


def test_a_diagnostic_that_starts_late_and_the_first_divergence():
    curves = two_seeds()
    curves.extend(Curves([7, 9], 6, {"norm": np.array([[1.0], [2.0]])}, diverged=[-1, 6]))
    np.testing.assert_array_equal(curves.by_batch["norm"], [[NAN] * 6 + [1.0], [NAN] * 6 + [2.0]])
    assert math.isnan(curves.by_batch["online_error"][0, 6])
    assert curves.diverged == [-1, 6]
    curves.extend(Curves([7, 9], 7, {"norm": np.ones((2, 1))}, diverged=[7, 7]))
    assert curves.diverged == [7, 6]


def test_a_seed_has_diverged_where_its_error_or_loss_is_not_finite_or_a_diagnostic_is_infinite():
    curves = two_seeds()
    curves.by_batch["norm"] = np.ones((2, 6))
    curves.by_batch["norm"][:, 1] = NAN  # a diagnostic need not exist for every batch
    assert [metrics.diverged_at(curves, seed) for seed in (0, 1)] == [-1, -1]
    curves.by_batch["norm"][1, 5] = math.inf
    assert [metrics.diverged_at(curves, seed) for seed in (0, 1)] == [-1, 5]
    for name in ("online_error", "online_loss"):
        curves.by_batch[name] = np.ones((2, 6))
        curves.by_batch[name][0, 2] = NAN
        assert [metrics.diverged_at(curves, seed) for seed in (0, 1)] == [2, 5]
        curves.by_batch[name][0, 2] = 1
    curves.by_batch["online_loss"][0, 0] = math.inf
    assert metrics.diverged_at(curves, 0) == 0
    curves.diverged = [4, 0]
    assert [metrics.diverged_at(curves, seed) for seed in (0, 1)] == [4, 0]


def test_objectives_of_seeds_whose_tasks_end_at_different_batches():
    curves = two_seeds()  # seed 7 was evaluated after batches 1, 3 and 5, seed 9 after 2 and 5
    values = {
        (metric, end): metrics.objective(curves, metric, end)
        for metric in ("validation_error", "cumulative_error")
        for end in range(7)
    }
    assert all(values[metric, end] is None for metric, end in values if end < 3), (
        "seed 9 has none before its third batch"
    )
    np.testing.assert_allclose(values["validation_error", 3], [0.9, 0.4])
    np.testing.assert_allclose(values["validation_error", 5], [0.3, 0.4])
    np.testing.assert_allclose(values["validation_error", 6], [0.0, 0.2])
    np.testing.assert_allclose(values["cumulative_error", 6], [0.4, 0.3])
    np.testing.assert_allclose(metrics.objective(curves, "cumulative_error"), [0.4, 0.3])
    np.testing.assert_allclose(metrics.objective(curves, "online_error", 2), [0.9, 0.5])
    assert metrics.objective(curves, "online_error", 0) is None
    by_chunk = metrics.objective_by_chunk(curves, "cumulative_error")
    assert [end for end, _ in by_chunk] == [4, 6], "no value after the chunk that ends at 2"
    np.testing.assert_allclose([value for _, value in by_chunk], [(0.6 + 0.4) / 2, (0.4 + 0.3) / 2])


@pytest.mark.parametrize("metric", ["validation_error", "cumulative_error", "online_error"])
def test_the_objective_of_a_seed_is_nan_from_where_it_diverged(metric):
    curves = two_seeds()
    curves.diverged = [-1, 4]
    assert np.isfinite(metrics.objective(curves, metric, 4)).all()
    assert np.isnan(metrics.objective(curves, metric, 5)).tolist() == [False, True]
    assert [math.isnan(value) for _, value in metrics.objective_by_chunk(curves, metric)][-2:] == [False, True]
    curves.diverged = [-1, 0]  # before its first evaluation, which will not follow
    assert np.isnan(metrics.objective(curves, metric, 2)).tolist() == [False, True]
