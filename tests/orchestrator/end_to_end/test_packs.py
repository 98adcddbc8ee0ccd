"""A sweep in packs, killed and resumed without packs: every trial has the curves of the bare protocol."""

import os
import signal
from pathlib import Path

from orchestrator.config.load import load_sweep
from orchestrator.plan.expand import make_plan
from orchestrator.protocol import online as protocol
from streams import recipes
from streams.build import cached
from tests.orchestrator.sweep_command import (
    assert_same,
    curves_of,
    folder_with,
    reached,
    run,
    running,
    statuses,
    trials,
    wait_for,
)

PACKED = """
name: packed
stream: {name: rainbow_digits, tasks: 4, train: 60, validation: 12, test: 12}
learners: [{name: online, alpha1: {grid: [0.001, 0.003, 1.0e+30, 0.002]}}]
seeds: 2
chunk: 1
resources: {pack: 8}
report: false
"""


def test_a_sweep_in_packs_killed_and_resumed_alone_equals_the_bare_protocol(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, PACKED)
    plan = make_plan(load_sweep(folder / "sweep.yaml"), "0" * 64)
    assert len({trial.configuration.hash for trial in plan.trials}) == 4
    with running(folder, "sweep.yaml") as process:
        wait_for(lambda: reached(folder, "packed", 3), process)
        os.killpg(process.pid, signal.SIGKILL)
    logs = [(path / "trial.log").read_text() for path in trials(folder, "packed")]
    assert len(logs) >= 2 and all(", in a pack of " in log for log in logs)
    done = run(folder, "sweep.yaml", "resources.pack=1")
    assert done.returncode == 0, done.stderr
    curves = curves_of(folder, "packed")
    assert len(curves) == 4
    recipe = recipes()["rainbow_digits"](tasks=4, train=60, validation=12, test=12)  # type: ignore[call-arg]
    store = cached(recipe, [0, 1])
    for trial in make_plan(load_sweep(folder / "sweep.yaml"), store.hash).trials:
        bare = protocol.assemble(store, "online", trial.configuration.options, [0, 1])
        bare.advance(1_000)
        assert_same(curves[trial.key], bare.curves)
        assert (max(curves[trial.key].diverged) >= 0) == (trial.configuration.options["alpha1"] == 1e30)
    assert statuses(folder) == ["FINISHED"] * (1 + 3 * 4)
