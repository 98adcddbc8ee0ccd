"""What `foml list` shows of the folders of sweeps."""

import json
import os
import socket
from pathlib import Path

import pytest

from orchestrator import list as command
from orchestrator.config.load import check_sweep
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Trial
from orchestrator.storage import atomic, journal
from orchestrator.storage.journal import Journal
from orchestrator.storage.trial_log import TrialLog
from orchestrator.system.processes import started_at
from tests.rights import denied

AT = 1_700_000_000  # 2023-11-14 22:13:20 UTC


def folder_of(storage: Path, name: str, trials: dict[str, str], at: int, **search: object) -> Path:
    """The folder of a sweep, with one folder for each trial (key → what happened to it)."""
    root = storage / name
    resolved = {
        "name": name,
        "learners": [
            {"name": "foml", "K": {"grid": [1, 5]}, "beta1": {"loguniform": [0.001, 0.1]}},
            {"name": "online"},
        ],
        "search": {"algorithm": "random", "samples": 4} | search,
    }
    for key, fate in trials.items():
        (root / key).mkdir(parents=True)
        log = TrialLog(root / key, "driver")
        if "finished" in fate:
            (root / key / "learner.pt").write_bytes(b"")
        if "stopped" in fate:
            (root / key / "stopped.json").write_text("{}")
        if "failed" in fate:
            log.failed_for_good("out of memory\nand more")
        if "again" in fate:
            TrialLog(root / key, "attempt 2").starts_on("a node")
    entries = [{"key": key, "configuration": key, "seeds": [0]} for key in trials]
    content = {"given": {}, "sweep": resolved, "trials": entries}
    (root / "sweep.json").write_text(atomic.with_digest(content))
    for path in (root / "sweep.json", *root.iterdir(), root):
        os.utime(path, (at, at))
    return root


def test_the_states_of_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = {"a": "finished", "b": "failed", "c": "stopped", "d": "finished, failed"}
    folder_of(tmp_path, "ended", ended, AT)
    (tmp_path / "ended" / "running").write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    os.utime(tmp_path / "ended", (AT, AT))
    folder_of(tmp_path, "cut", {"a": "finished", "b": "failed again", "c": ""}, AT + 60)
    # Of 2 x 4 + 1 trials Optuna has drawn two.
    folder_of(tmp_path, "drawing", {"a": "finished", "b": "finished"}, AT + 3_600, algorithm="optuna")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "sweep.json").write_text("{")
    assert command.main(["--storage", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert [line.split("  ") and " ".join(line.split()) for line in shown.out.splitlines()] == [
        "sweep state finished stopped failed last change learners",
        "drawing interrupted 2/9 0 0 2023-11-14 23:13 UTC foml, online",
        "cut interrupted 1/3 0 0 2023-11-14 22:14 UTC foml, online",
        "ended finished 2/4 1 1 2023-11-14 22:13 UTC foml, online",
    ]
    (line,) = shown.err.splitlines()
    assert line.startswith(f"{tmp_path / 'damaged'}: its journal cannot be read; foml sweep --resume damaged ")
    assert command.main(["--storage", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1 and document["problems"] == [line]
    assert document["sweeps"][2] == {
        "name": "ended", "folder": str(tmp_path / "ended"), "state": "finished", "trials": 4, "finished": 2,
        "stopped": 1, "failed": 1, "changed": "2023-11-14T22:13:20+00:00", "learners": ["foml", "online"],
    }  # fmt: skip


def test_only_the_present_plan_counts(tmp_path: Path) -> None:
    """Not the seeds and values that were planned before, nor the samples beyond the values that a space has."""

    def journal_of(name: str, rerun: bool = False, **change: object) -> Journal:
        document = {"name": name, "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 2}
        journal = Journal.look(tmp_path / name, make_plan(check_sweep(document | change), "store"), rerun=rerun)
        journal.take()
        return journal

    def finish(*trials: Trial, name: str) -> None:
        for trial in trials:
            (tmp_path / name / trial.key).mkdir()
            (tmp_path / name / trial.key / "learner.pt").touch()

    def shown() -> dict[str, tuple[str, int, int]]:
        return {each.name: (each.state, each.finished, each.trials) for each in command.sweep_states(tmp_path)[0]}

    journal_of("seeds", seeds=5)
    finish(*journal_of("seeds", seeds=3).plan.trials, name="seeds")
    space = {"name": "foml", "K": {"choice": [1, 2, 3]}}
    search = {"search": {"algorithm": "optuna", "samples": 20}, "learners": [space]}
    journal = journal_of("search", **search)
    (study,) = journal.plan.studies
    assert shown() == {"seeds": ("finished", 1, 1), "search": ("interrupted", 0, 3)}
    for K in (1, 2, 3):
        journal.draw(study.trial({"K": K}))
    finish(*journal.plan.trials, name="search")
    assert shown()["search"] == ("finished", 3, 3)
    journal_of("seeds", seeds=5)
    assert shown()["seeds"] == ("interrupted", 1, 2)
    journal_of("seeds", seeds=5, rerun=True)
    assert shown()["seeds"] == ("interrupted", 0, 1)
    rates = {"name": "online", "alpha1": {"grid": [0.1, 0.2]}}
    finish(*journal_of("rates", learners=[rates]).plan.trials, name="rates")
    assert shown()["rates"] == ("finished", 2, 2)
    journal_of("rates", learners=[rates | {"alpha1": 0.1}])
    assert shown()["rates"] == ("finished", 1, 1)


def test_a_sweep_runs_while_the_process_that_holds_its_lock_lives(tmp_path: Path) -> None:
    root = folder_of(tmp_path, "sweep", {"a": ""}, AT)

    def state(holder: str) -> str:
        (root / "running").write_text(holder)
        return command.sweep_states(tmp_path)[0][0].state

    host = socket.gethostname()
    assert state(f"process {os.getpid()} on {host}\n") == "running"
    assert state("process 99999999 on " + host) == "interrupted" == state("") and started_at(99_999_999) is None
    started = started_at(os.getpid())
    assert started is not None
    (root / "running").write_text(f"process {os.getpid()} on {host}\n")
    os.utime(root / "running", (started - 60, started - 60))
    assert not journal.is_running(root), "the id belongs to a process that started later"
    assert state("process 1 on another") == "running"
    for path in root.iterdir():
        os.utime(path, (AT, AT))
    assert not journal.is_running(root), "another machine's sweep that is silent"


def test_what_may_not_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = tmp_path / "outer" / "results"
    hidden, shown = folder_of(storage, "hidden", {"a": ""}, AT), folder_of(storage, "shown", {"a": "finished"}, AT)
    rule = "must be a folder that can be read (Permission denied); get access to it and to the folders that it is in"
    for folder in (tmp_path / "outer", storage):
        with denied(folder):
            assert command.main(["--storage", str(storage)]) == 2
        assert capsys.readouterr() == ("", f"{storage}: {rule}\n")
    with denied(hidden), denied(shown / "a"):
        assert command.main(["--storage", str(storage)]) == 0
    out, line = capsys.readouterr()
    assert [row.split()[:3] for row in out.splitlines()[1:]] == [["shown", "interrupted", "0/1"]]
    assert line == f"{hidden}: its journal cannot be read; foml sweep --resume hidden says why\n"


def test_the_time_grows_with_the_number_of_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, comparisons, equal = 400, [0], Path.__eq__

    def counted(one: Path, other: object) -> bool:
        comparisons[0] += 1
        return equal(one, other)

    root = folder_of(tmp_path, "sweep", {f"{index:03}": "finished" for index in range(count)}, AT)
    (sweep,) = journal.recorded_sweeps(tmp_path)
    monkeypatch.setattr(type(root), "__eq__", counted)
    assert command._state(sweep).finished == count and comparisons[0] < 10 * count


def test_a_folder_without_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--storage", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"no sweep was started in {tmp_path / 'none'}\n"
    assert command.main(["--storage", "s3://bucket/prefix"]) == 2
    assert capsys.readouterr().err == "--storage: must be a folder of this machine (got s3://bucket/prefix)\n"
