"""Schedules: the mixing probability at each position, the distribution of run lengths, the order of visits."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.errors import OptionError
from streams.schedule import Gradual, HeldBack, Markov, Recurring, Schedule, Sequential, schedules
from streams.store.task_store import TaskStore
from streams.stream import Stream

SIZES = np.array([40, 60, 50])


def tasks_of(schedule: Schedule, sizes: np.ndarray, seed: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)[schedule.rows(sizes, seed)]


def test_gradual_has_the_documented_probability_at_each_position() -> None:
    shown = np.array([tasks_of(Gradual(window=20), SIZES, seed) for seed in range(2_000)])
    ramp = (np.arange(20) + 0.5) / 20
    for later, boundary in ((1, 40), (2, 100)):
        window = slice(boundary - 10, boundary + 10)
        share = (shown[:, window] == later).mean(axis=0)
        # 2,000 seeds: a standard deviation of at most 0.0112
        np.testing.assert_allclose(share, ramp, atol=0.05)
        assert set(np.unique(shown[:, window])) == {later - 1, later}
    outside = [*range(30), *range(50, 90), *range(110, 150)]
    np.testing.assert_array_equal(
        shown[:, outside], np.broadcast_to(np.repeat([0, 1, 2], SIZES)[outside], (2_000, 110))
    )


def test_gradual_positions_are_independent() -> None:
    """Only the two positions that exchange their points depend on each other."""
    shown = np.array([tasks_of(Gradual(window=20), SIZES, seed)[30:50] for seed in range(2_000)])
    correlation = np.corrcoef(shown.T)
    mirrored = np.fliplr(np.eye(20, dtype=bool))
    assert np.abs(correlation[~mirrored & ~np.eye(20, dtype=bool)]).max() < 0.12
    np.testing.assert_allclose(correlation[mirrored], -1)


def test_gradual_with_the_largest_and_the_smallest_window() -> None:
    assert sorted(Gradual(window=40).rows(SIZES, 0).tolist()) == list(range(150))
    moved = np.flatnonzero(Gradual(window=3).rows(SIZES, 5) != np.arange(150))
    assert set(moved) <= {39, 40, 99, 100}  # an odd window counts as one less
    with pytest.raises(OptionError) as caught:
        Gradual(window=42).rows(SIZES, 0)
    assert str(caught.value) == (
        "gradual.window: must be at most the number of training points of the smallest task, 40 (got 42)"
    )


def test_gradual_evaluates_in_the_middle_of_the_window() -> None:
    assert Gradual(window=20).ends(SIZES, 0) == [(40, 0), (100, 1), (150, 2)]


def runs(task: np.ndarray) -> np.ndarray:
    return np.diff(np.flatnonzero(np.diff(task, prepend=-1, append=-1)))


def test_markov_run_lengths_are_geometric() -> None:
    sizes = np.full(8, 25_000)
    hazard = 0.05
    lengths = np.concatenate([runs(tasks_of(Markov(hazard=hazard), sizes, seed))[:-1] for seed in range(5)])
    assert abs(lengths.mean() / (1 / hazard) - 1) < 0.03  # about 50,000 runs
    assert abs(lengths.std() / (np.sqrt(1 - hazard) / hazard) - 1) < 0.05
    for length in (1, 5, 20, 60):
        expected = 1 - (1 - hazard) ** length
        assert abs((lengths <= length).mean() - expected) < 0.01


def test_markov_changes_to_each_other_task_equally_often() -> None:
    task = tasks_of(Markov(hazard=1.0), np.full(5, 20_000), 3)
    assert task[0] == 0
    assert (task[1:] != task[:-1]).all()
    moves = np.bincount((task[1:] - task[:-1]) % 5, minlength=5)
    assert moves[0] == 0
    np.testing.assert_allclose(moves[1:] / (len(task) - 1), 0.25, atol=0.01)


def test_markov_resumes_a_task_and_restarts_it_after_its_last_point() -> None:
    sizes = np.array([5, 7, 6])
    rows = Markov(hazard=0.4).rows(sizes, 1)
    task = np.repeat([0, 1, 2], sizes)[rows]
    firsts = np.cumsum(sizes) - sizes
    for each in range(3):
        shown = rows[task == each] - firsts[each]
        np.testing.assert_array_equal(shown, np.arange(len(shown)) % sizes[each])


def test_markov_ends_are_the_change_points() -> None:
    sizes = np.full(4, 30)
    task = tasks_of(Markov(hazard=0.1), sizes, 2)
    expected = [(position + 1, task[position]) for position in range(119) if task[position] != task[position + 1]]
    assert Markov(hazard=0.1).ends(sizes, 2) == [*expected, (120, task[-1])]
    assert task[0] == 0


def test_markov_of_one_task_never_changes() -> None:
    assert Markov(hazard=1.0).rows(np.array([6]), 0).tolist() == [0, 1, 2, 3, 4, 5]
    assert Markov(hazard=1.0).ends(np.array([6]), 0) == [(6, 0)]


def test_the_nominal_number_of_tasks_is_that_of_any_seed() -> None:
    for schedule in (Sequential(), Gradual(), Recurring()):
        assert schedule.nominal_tasks(np.array([200, 300])) == len(schedule.ends(np.array([200, 300]), 5))
    markov, sizes = Markov(hazard=0.02), np.array([400, 600, 501])
    assert markov.nominal_tasks(sizes) == 31  # 1 + 0.02 · 1500
    assert abs(np.mean([len(markov.ends(sizes, seed)) for seed in range(100)]) - 31) < 2
    assert HeldBack(markov, 1).nominal_tasks(sizes) == 23  # 1 + 0.02 · 1100
    assert markov.nominal_tasks(np.array([6])) == 1


def test_recurring_tasks_return_with_other_points() -> None:
    assert tasks_of(Recurring(visits=2), np.array([4, 5]), 0).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1]
    assert Recurring(visits=2).ends(np.array([4, 5]), 0) == [(2, 0), (4, 1), (6, 0), (9, 1)]
    np.testing.assert_array_equal(Recurring(visits=1).rows(SIZES, 0), Sequential().rows(SIZES, 0))
    with pytest.raises(OptionError, match=r"recurring.visits: .* smallest task, 40 \(got 41\)"):
        Recurring(visits=41).rows(SIZES, 0)


@st.composite
def schedule_and_sizes(draw: st.DrawFn) -> tuple[Schedule, np.ndarray]:
    sizes = np.array(draw(st.lists(st.integers(4, 60), min_size=1, max_size=12)))
    schedule = draw(
        st.one_of(
            st.just(Sequential()),
            st.builds(Gradual, window=st.integers(2, int(sizes.min()))),
            st.builds(Markov, hazard=st.floats(0.001, 1.0)),
            st.builds(Recurring, visits=st.integers(1, int(sizes.min()))),
        )
    )
    return schedule, sizes


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedule_and_sizes(), st.integers(0, 2**31))
def test_each_schedule_is_pure_and_complete(chosen: tuple[Schedule, np.ndarray], seed: int) -> None:
    schedule, sizes = chosen
    rows = schedule.rows(sizes, seed)
    np.testing.assert_array_equal(rows, schedule.rows(sizes.copy(), seed))
    assert len(rows) == sizes.sum()
    assert rows.min() >= 0
    assert rows.max() < sizes.sum()
    if not isinstance(schedule, Markov):
        assert len(np.unique(rows)) == len(rows)
    ends = schedule.ends(sizes, seed)
    positions = [position for position, _ in ends]
    assert positions == sorted(set(positions))
    assert positions[-1] == len(rows)
    assert schedule.has_boundaries == isinstance(schedule, Sequential)
    if not isinstance(schedule, Gradual):  # the task that is left is the one that was shown last
        task = np.repeat(np.arange(len(sizes)), sizes)[rows]
        assert [task[position - 1] for position in positions] == [left for _, left in ends]


def test_seeds_mix_differently() -> None:
    for schedule in (Gradual(window=40), Markov(hazard=0.1)):
        assert not np.array_equal(schedule.rows(SIZES, 0), schedule.rows(SIZES, 1))


def test_a_stream_under_a_schedule_knows_the_true_tasks(digits_store: TaskStore) -> None:
    plain = Stream(digits_store, 0)
    for schedule in (Gradual(), Markov(), Recurring()):
        stream = Stream(digits_store, 0, schedule)
        assert (stream.length, stream.tasks, stream.has_boundaries) == (4_000, 20, False)
        points = stream.read(0, stream.length)
        look = points.image_ids[:, 0] // digits_store.count
        views = [about["view"] for about in digits_store.table(0).manifest["tasks"]]
        np.testing.assert_array_equal(look, np.array(views)[points.tasks])
        np.testing.assert_array_equal(stream.read(1_234, 10).image_ids, points.image_ids[1_234:1_244])
        np.testing.assert_array_equal(stream.held_out(4).image_ids, plain.held_out(4).image_ids)
    with pytest.raises(OptionError, match=r"gradual\.window"):
        Stream(digits_store, 0, Gradual(window=202))


def test_schedules_by_name() -> None:
    assert sorted(schedules()) == ["gradual", "markov", "recurring", "sequential"]


def test_tasks_held_back_are_in_no_stream() -> None:
    sizes = np.array([2, 3, 4, 2])
    held = HeldBack(Sequential(), 2)
    assert held.rows(sizes, seed=0).tolist() == [5, 6, 7, 8, 9, 10]
    assert held.ends(sizes, seed=0) == [(4, 2), (6, 3)]
    assert held.has_boundaries
    assert held.name == "sequential"
    assert not HeldBack(Markov(hazard=0.5), 1).has_boundaries
    with pytest.raises(OptionError, match=r"stream.held_back: must be below the number of tasks, 4 \(got 4\)"):
        HeldBack(Sequential(), 4).rows(sizes, seed=0)
