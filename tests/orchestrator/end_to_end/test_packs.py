"""A search in packs, killed and resumed without packs: every trial has the curves of the bare protocol."""

import os
import signal
from collections import Counter
from pathlib import Path

from orchestrator.config.load import load_sweep
from orchestrator.plan.expand import make_plan
from orchestrator.protocol import online as protocol
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import Journal
from streams import recipes
from streams.build import cached
from tests.orchestrator.sweep_command import assert_same, folder_with, reached, run, running, statuses, trials, wait_for

PACKED = """
name: packed
stream: {name: rainbow_digits, tasks: 4, train: 60, validation: 12, test: 12}
learners: [{name: online, alpha1: {choice: [0.0001, 0.003, 1.0e+30, 0.01]}}]
seeds: 2
chunk: 1
search: {algorithm: optuna, samples: 4, scheduler: {name: asha, grace: 0.25, reduction: 2}}
resources: {pack: 8}
report: false
"""
RUNG, BATCHES = 6, 24


def test_a_search_in_packs_killed_and_resumed_alone_equals_the_bare_protocol(tmp_path: Path) -> None:
    """Optuna draws a pack, the scheduler stops some of its trials, and the others continue in another pack."""
    folder = folder_with(tmp_path, PACKED)
    with running(folder, "sweep.yaml") as process:
        wait_for(lambda: reached(folder, "packed", RUNG + 2), process)
        os.killpg(process.pid, signal.SIGKILL)
    logs = {path.name: (path / "trial.log").read_text() for path in trials(folder, "packed")}
    assert len(logs) == 4 and all(", in a pack of 4 trials" in log for log in logs.values())
    early = {key for key, log in logs.items() if f"stopped by the scheduler at batch {RUNG}" in log}
    assert len(early) == 2
    assert all((", in a pack of 2 trials" in log) == (key not in early) for key, log in logs.items())
    done = run(folder, "sweep.yaml", "resources.pack=1")
    assert done.returncode == 0, done.stderr
    recipe = recipes()["rainbow_digits"](tasks=4, train=60, validation=12, test=12)  # type: ignore[call-arg]
    store = cached(recipe, [0, 1])
    plan = make_plan(load_sweep(folder / "sweep.yaml"), store.hash)
    journal = Journal.look(folder / "results" / "packed", plan)
    stopped = journal.stopped()
    assert {key: batch for key, batch in stopped.items() if batch == RUNG} == dict.fromkeys(early, RUNG)
    for trial in journal.plan.trials:
        options = trial.configuration.options
        bare = protocol.assemble(store, "online", options, [0, 1])
        bare.advance(stopped.get(trial.key, BATCHES))
        chunk = chunk_files.newest(trial.folder(folder / "results" / "packed"))
        assert chunk is not None and chunk.batches == stopped.get(trial.key, BATCHES)
        assert_same(chunk.curves, bare.curves)
        assert (trial.key in early) == (options["alpha1"] in (0.003, 1e30))
    runs = Counter(statuses(folder))  # of the sweep, and of each trial and its two seeds
    assert runs == {"FINISHED": 1 + 3 * (4 - len(stopped)), "KILLED": 3 * len(stopped)}
