"""The lines that a running sweep prints, and the estimate of the time left against schedules computed by hand."""

import io
import math

from orchestrator.config.load import check_sweep
from orchestrator.console.progress import ANY, Progress, Work, seconds_left
from orchestrator.plan.expand import make_plan
from orchestrator.plan.fate import Ending


def test_lines_and_eta() -> None:
    sweep = check_sweep(
        {
            "name": "p",
            "stream": {"name": "rainbow_digits"},
            "learners": [{"name": "foml", "K": {"grid": [1, 5]}}, {"name": "online"}],
            "seeds": 2,
        }
    )
    plan = make_plan(sweep, "store")
    now = [0.0]
    out = io.StringIO()
    progress = Progress(plan, slots=2, out=out, clock=lambda: now[0])
    one, two, three = (trial.key for trial in plan.trials)
    assert progress.line() == "[0:00] 0/3 trials done · ETA –"
    progress.started(one)
    progress.started(two)
    now[0] = 6.0
    progress.advanced(one, 100, 400, learned=100, seconds=5.0, error=0.5)
    assert out.getvalue() == (
        # at 0.05 s a batch, the first has 15 s left, the second 20; the third starts after the first and needs a second
        # to start, like the first: 15 + 1 + 20
        "[0:06] 0/3 trials done · ETA 0:36 · foml K=1: error 0.500 at 25 %\n"
    )
    now[0] = 36.0  # by the clock a batch takes 0.1 s
    progress.advanced(one, 400, 400, learned=300, seconds=15.0, error=0.25)
    progress.ended_before(two, Ending.FINISHED)
    progress.ended(one, Ending.FINISHED)
    assert out.getvalue().splitlines()[-1] == "[0:36] 2/3 trials done · ETA 0:41"
    progress.ended(three, Ending.FAILED)
    assert progress.line() == "[0:36] 2/3 trials done, 1 failed · ETA 0:00"


def test_a_trial_without_a_value_yet_and_one_with_a_seed_that_diverged() -> None:
    learners = [{"name": "foml", "K": 1}, {"name": "online"}]
    content = {"name": "p", "stream": {"name": "rainbow_digits"}, "learners": learners, "seeds": 2}
    plan = make_plan(check_sweep(content), "store")
    progress = Progress(plan, slots=2, out=io.StringIO(), clock=lambda: 1.0)
    for trial, error in zip(plan.trials, (None, math.nan), strict=True):
        progress.started(trial.key)
        progress.advanced(trial.key, 100, 400, learned=100, seconds=5.0, error=error)
    assert progress.line().endswith(" · foml: error – at 25 % · online: diverged at 25 %")


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
