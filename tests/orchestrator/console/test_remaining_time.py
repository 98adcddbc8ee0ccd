"""The estimate of the time left, against schedules computed by hand."""

from orchestrator.console.progress import ANY, Work, seconds_left


def test_there_is_no_estimate_before_the_first_chunk() -> None:
    assert seconds_left([Work(("foml", ANY), 10), Work(("foml", ANY), 10)], 2) is None


def test_a_waiting_trial_takes_the_pace_of_those_most_like_it() -> None:
    ended = [
        Work(("foml 1", "foml", ANY), 0, 1.0),
        Work(("foml 5", "foml", ANY), 0, 3.0),
        Work(("tfs", "tfs", ANY), 0, 8.0),
    ]
    for kinds, pace in ((("foml 5", "foml", ANY), 3.0), (("foml 2", "foml", ANY), 2.0), (("moca", "moca", ANY), 4.0)):
        assert seconds_left([*ended, Work(kinds, 10)], 1) == 10 * pace


def test_slots_that_become_free_are_taken_in_order() -> None:
    running = [Work((ANY,), 10, 1.0, running=True), Work((ANY,), 40, 1.0, running=True)]
    waiting = [Work((ANY,), 20, 1.0), Work((ANY,), 20, 1.0), Work((ANY,), 5, 1.0)]
    # slot 1: 10, then 20 → 30, then 20 → 50; slot 2: 40, then 5 → 45
    assert seconds_left([*running, *waiting], 2) == 50
    # each start takes 2 s: 10 + 22 = 32, + 22 = 54; 40 + 7 = 47
    assert seconds_left([*running, *waiting], 2, start=2.0) == 54


def test_the_longest_trial_counts_where_there_are_slots_enough() -> None:
    assert seconds_left([Work((ANY,), 10, 1.0, running=True), Work((ANY,), 50, 1.0, running=True)], 4) == 50


def test_nothing_left() -> None:
    assert seconds_left([Work((ANY,), 0, 1.0)], 2) == 0
