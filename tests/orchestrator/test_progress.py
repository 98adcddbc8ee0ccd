"""The lines that a running sweep prints."""

import io

from orchestrator import config
from orchestrator.plan import make_plan
from orchestrator.progress import Progress


def test_lines_and_eta() -> None:
    sweep = config.check(
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
        # 300 batches left of the first at 0.05 s, and 400 each of the other two: 55 s of work for two slots
        "[0:06] 0/3 trials done · ETA 0:28 · foml K=1: error 0.500 at 25 %\n"
    )
    progress.advanced(one, 400, 400, learned=300, seconds=15.0, error=0.25)
    progress.ended(one, how="done")
    progress.already(two)
    assert out.getvalue().splitlines()[1] == "[0:06] 1/3 trials done · ETA 0:20"
    progress.ended(three, how="failed")
    assert progress.line() == "[0:06] 2/3 trials done, 1 failed · ETA 0:00"
