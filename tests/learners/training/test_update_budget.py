"""⌊u (i+1) / n⌋ − ⌊u i / n⌋ updates after batch i, growth by datapoints, and no remainder across tasks."""

import pytest

from learners.training.update_budget import UpdateBudget


@pytest.mark.parametrize(("updates", "batches"), [(50, 90), (50, 20), (50, 40), (50, 50), (3, 4), (7, 7), (1, 9)])
def test_spread_over_the_batches(updates: int, batches: int) -> None:
    budget = UpdateBudget(updates, batches)
    grants = [budget.grant(10) for _ in range(2 * batches)]
    one_task = [updates * (i + 1) // batches - updates * i // batches for i in range(batches)]
    assert grants == one_task * 2
    assert sum(one_task) == updates


def test_grows_with_datapoints() -> None:
    """2 more updates per task for every 30 datapoints: batches of 10, 3 per task."""
    budget = UpdateBudget(3, batches_per_task=3, growth=2, growth_every=30)
    tasks = [sum(budget.grant(10) for _ in range(3)) for _ in range(5)]
    # Batch k adds 3 + 2 ⌊k/3⌋ thirds of an update, task t adds 11 + 6 t: in total 11, 28, 51, 80, 115 thirds.
    assert tasks == [3, 9 - 3, 17 - 9, 26 - 17, 38 - 26]


def test_restart_drops_the_remainder_but_not_the_growth() -> None:
    budget = UpdateBudget(1, batches_per_task=2, growth=1, growth_every=20)
    assert [budget.grant(10), budget.grant(10)] == [0, 1]
    budget.restart()
    assert [budget.grant(10), budget.grant(10)] == [1, 1]


def test_datapoints_that_are_skipped_count_for_the_growth_alone() -> None:
    budget = UpdateBudget(2, batches_per_task=2, growth=4, growth_every=30)
    assert budget.grant(10) == 1
    budget.skip(40)
    assert budget.grant(10) == 1 + 2 * 2  # 60 datapoints seen


def test_a_short_batch_counts_as_one_batch_and_as_its_datapoints() -> None:
    budget = UpdateBudget(4, batches_per_task=4, growth=4, growth_every=15)
    assert [budget.grant(10), budget.grant(4), budget.grant(1)] == [1, 1, 2]


def test_state() -> None:
    original = UpdateBudget(5, batches_per_task=7, growth=3, growth_every=25)
    for _ in range(4):
        original.grant(10)
    other = UpdateBudget(5, batches_per_task=7, growth=3, growth_every=25)
    other.load_state_dict(original.state_dict())
    assert [other.grant(10) for _ in range(9)] == [original.grant(10) for _ in range(9)]


def test_a_task_in_the_middle_of_a_batch_receives_all_updates() -> None:
    """Tasks of 905 in batches of 10 that end with their task: 90 and a half, or a half and 90, both of n = 91."""
    budget = UpdateBudget(50, batches_per_task=91)
    for sizes in ([10] * 90 + [5], [5] + [10] * 90):
        budget.restart()
        assert sum(budget.grant(size) for size in sizes) == 50


def test_a_task_with_a_batch_more_receives_the_updates_of_that_batch() -> None:
    """Tasks of 19 in batches of 10, n = 2: the second has 1, 10 and 8 datapoints."""
    budget = UpdateBudget(50, batches_per_task=2)
    assert [budget.grant(10), budget.grant(9)] == [25, 25]
    budget.restart()
    assert [budget.grant(1), budget.grant(10), budget.grant(8)] == [25, 25, 25]
