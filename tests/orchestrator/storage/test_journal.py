"""The journal: one sweep per name, extended without running a trial twice."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from learners import checkpoint
from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError
from orchestrator.plan.expand import make_plan
from orchestrator.protocol.curves import Curves
from orchestrator.storage import chunk_files
from orchestrator.storage.journal import FILE, Journal, given_before
from tests.orchestrator.protocol_sweep import empty, flip, garble, halve
from tests.rights import denied

LEARNERS = [{"name": "foml", "K": {"grid": [1, 5]}}]


def plan(**change: object):  # type: ignore[no-untyped-def]
    document = {"name": "j", "stream": {"name": "rainbow_digits"}, "learners": LEARNERS, "seeds": 2} | change
    return make_plan(check_sweep(document), "store")


def stacks(journal: Journal) -> list[tuple[int, tuple[int, ...]]]:
    return [(trial.configuration.options["K"], trial.seeds) for trial in journal.plan.trials]


def written(root: Path, **change: object) -> Journal:
    journal = Journal.look(root, plan(**change))
    journal.take()
    return journal


def test_look_changes_no_file(tmp_path: Path) -> None:
    journal = Journal.look(tmp_path / "j", plan())
    assert stacks(journal) == [(1, (0, 1)), (5, (0, 1))]
    assert journal.finished() == set()
    assert not (tmp_path / "j").exists()


def test_new_seeds_form_a_new_stack(tmp_path: Path) -> None:
    written(tmp_path)
    grown = written(tmp_path, seeds=4)
    assert stacks(grown) == [(1, (0, 1)), (1, (2, 3)), (5, (0, 1)), (5, (2, 3))]
    again = written(tmp_path, seeds=5)
    assert stacks(again)[:3] == [(1, (0, 1)), (1, (2, 3)), (1, (4,))]
    fewer = written(tmp_path, seeds=[0, 1])
    assert stacks(fewer) == [(1, (0, 1)), (5, (0, 1))]
    assert stacks(written(tmp_path, seeds=5))[:3] == [(1, (0, 1)), (1, (2, 3)), (1, (4,))]


def finish(journal: Journal) -> None:
    """Every trial of the plan has a folder with the checkpoint of a finished trial."""
    for trial in journal.plan.trials:
        trial.folder(journal.root).mkdir(exist_ok=True)
        (trial.folder(journal.root) / chunk_files.LEARNER_FILE).touch()


def rerun(root: Path, **change: object) -> Journal:
    journal = Journal.look(root, plan(**change), rerun=True)
    journal.take()
    return journal


def test_of_stacks_that_share_seeds_the_one_is_used_of_which_most_is_learned(tmp_path: Path) -> None:
    """A stack that is planned and never run does not replace a finished one, and neither does one that has started."""
    one = [{"name": "online"}]
    written(tmp_path, learners=one, seeds=6)  # interrupted before anything is learned
    started, finished = (written(tmp_path, learners=one, seeds=seeds) for seeds in (5, 3))

    def planned() -> list[tuple[int, ...]]:
        return [trial.seeds for trial in written(tmp_path, learners=one, seeds=6).plan.trials]

    assert planned() == [(0, 1, 2, 3, 4, 5)]
    folder = started.plan.trials[0].folder(tmp_path)
    chunk_files.write(folder, chunk_files.claim(folder), {}, Curves([*range(5)], 0, {"x": np.zeros((5, 3))}), False)
    assert planned() == [(0, 1, 2, 3, 4), (5,)]
    finish(finished)
    assert planned() == [(0, 1, 2), (5,), (3, 4)]


def test_rerun_discards_every_earlier_result(tmp_path: Path) -> None:
    """Results of more seeds and of a population that is not planned now are no results of the next sweep either."""
    finish(written(tmp_path, seeds=5))
    (tmp_path / "population-abc.json").write_text("{}")
    (tmp_path / "report").mkdir()
    again = rerun(tmp_path, seeds=3)
    assert stacks(again) == [(1, (0, 1, 2)), (5, (0, 1, 2))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "sweep-copy.json", "sweep.json"]
    finish(again)
    more = written(tmp_path, seeds=5)
    assert stacks(more) == [(1, (0, 1, 2)), (1, (3, 4)), (5, (0, 1, 2)), (5, (3, 4))]
    assert [trial.folder(tmp_path).exists() for trial in more.plan.trials] == [True, False] * 2


def test_rerun_discards_the_draws_of_a_search(tmp_path: Path) -> None:
    search = {"algorithm": "optuna", "samples": 3}
    change = {"learners": [{"name": "foml", "K": {"choice": [1, 2, 3, 4]}}], "search": search}
    journal = written(tmp_path, **change)
    (study,) = journal.plan.studies
    for K in (1, 2, 3):
        journal.draw(study.trial({"K": K}))
    finish(journal)
    assert len(written(tmp_path, **change).plan.trials) == 3
    assert rerun(tmp_path, **change).plan.trials == written(tmp_path, **change).plan.trials == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep-copy.json", "sweep.json"]


@pytest.mark.parametrize("deleted", [0, 1, 3])
def test_an_interrupted_rerun_is_completed_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    """The command ends after it has deleted a number of folders."""
    finish(written(tmp_path, seeds=5))
    (tmp_path / "report").mkdir()
    delete, count = shutil.rmtree, 0

    def dying(path: Path, **options: bool) -> None:
        nonlocal count
        if count == deleted:
            raise KeyboardInterrupt
        count += 1
        delete(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dying)
        with pytest.raises(KeyboardInterrupt):
            rerun(tmp_path, seeds=3)
    assert given_before(tmp_path, "j")[0]["seeds"] == 3
    resumed = written(tmp_path, seeds=3)
    assert stacks(resumed) == [(1, (0, 1, 2)), (5, (0, 1, 2))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report", "sweep-copy.json", "sweep.json"]
    finish(resumed)
    kept = written(tmp_path, seeds=5)
    assert [trial.folder(tmp_path).exists() for trial in kept.plan.trials] == [True, False] * 2


def test_a_wider_grid_keeps_the_earlier_trials(tmp_path: Path) -> None:
    before = {trial.key for trial in written(tmp_path).plan.trials}
    wider = written(tmp_path, learners=[{"name": "foml", "K": {"grid": [1, 3, 5]}}])
    assert {trial.key for trial in wider.plan.trials} > before
    assert len(wider.plan.trials) == 3


def test_another_sweep_of_the_same_name_is_refused_with_every_difference(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError) as caught:
        Journal.look(tmp_path, plan(batch_size=5, stream={"name": "rainbow_digits", "tasks": 3}))
    keys = [line.split(": ")[1] for line in caught.value.faults]
    assert keys == ["stream", "batch_size"]
    assert '"tasks":3' in caught.value.faults[0]
    assert "with 10 (got 5); choose another name" in caught.value.faults[1]


def test_the_given_configuration_is_read_back(tmp_path: Path) -> None:
    written(tmp_path / "j")
    document, folder = given_before(tmp_path / "j", "j")
    assert (document["learners"], folder) == (LEARNERS, None)
    assert stacks(Journal.look(tmp_path / "j", make_plan(check_sweep(document), "store"))) == [(1, (0, 1)), (5, (0, 1))]


def test_the_folder_of_own_learners_is_read_back(tmp_path: Path) -> None:
    Journal(tmp_path / "j", replace(plan(), folder="/home/me")).take()
    assert given_before(tmp_path / "j", "j")[1] == "/home/me"


def test_resuming_a_sweep_that_was_never_started(tmp_path: Path) -> None:
    written(tmp_path / "a%20folder")  # its name is j
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / FILE).write_text("{")
    with pytest.raises(
        ConfigError,
        match=r"--resume: must be a sweep that was started in .* \(got two\); existing sweeps: damaged, j$",
    ):
        given_before(tmp_path / "two", "two")
    with pytest.raises(ConfigError, match=r"NAME: must be a sweep that was started in "):
        given_before(tmp_path / "two", "two", "NAME")


def damaged(path: Path, content: str | Callable[[Path], None]) -> bytes:
    if isinstance(content, str):
        path.write_text(content)
    else:
        content(path)
    return path.read_bytes()


DAMAGES = ["", "{", "[]", '{"sweep": {}}', '{"given": {}, "sweep": {}, "trials": [1]}', halve, empty, garble, flip]


@pytest.mark.parametrize("content", DAMAGES)
@pytest.mark.parametrize("name", ["sweep.json", "sweep-copy.json"])
def test_one_intact_file_of_two_is_enough(tmp_path: Path, name: str, content: str | Callable[[Path], None]) -> None:
    before = stacks(written(tmp_path, seeds=4))
    intact = (tmp_path / name).read_bytes()
    damaged_content = damaged(tmp_path / name, content)
    assert given_before(tmp_path, "j")[0]["seeds"] == 4
    lines: list[str] = []
    journal = Journal.look(tmp_path, plan(seeds=4))
    journal.take(report=lines.append)
    (line,) = lines
    other = ({"sweep.json", "sweep-copy.json"} - {name}).pop()
    assert line.startswith(f"{tmp_path / name}: damaged (")
    assert line.endswith(f"); {other} is used instead; quarantined as damaged-{name}")
    assert stacks(journal) == before
    assert (tmp_path / name).read_bytes() == intact
    assert (tmp_path / f"damaged-{name}").read_bytes() == damaged_content


@pytest.mark.parametrize("content", DAMAGES)
def test_two_damaged_files_are_reported_in_one_line(tmp_path: Path, content: str | Callable[[Path], None]) -> None:
    journal = written(tmp_path)
    damaged(tmp_path / "sweep.json", content)
    damaged(tmp_path / "sweep-copy.json", content)
    with pytest.raises(
        ConfigError, match=r"which is damaged: sweep.json .* and sweep-copy.json .* move these"
    ) as caught:
        Journal.look(tmp_path, journal.plan)
    assert len(caught.value.faults) == 1
    with pytest.raises(ConfigError, match="move these files away"):
        given_before(tmp_path, "j")


def test_a_journal_that_may_not_be_read_is_not_damaged(tmp_path: Path) -> None:
    root = tmp_path / "j"
    journal = written(root)
    file = root / "sweep.json"
    rule = "must be a file that can be read (Permission denied); get access to it and to the folders that it is in"
    with denied(root):
        for read in (lambda: given_before(root, "j"), lambda: Journal.look(root, journal.plan), journal.take):
            with pytest.raises(ConfigError) as caught:
                read()
            assert caught.value.faults == (f"{file}: {rule}",)
    with denied(file):
        assert given_before(root, "j")  # of the copy
    assert sorted(path.name for path in root.iterdir()) == ["sweep-copy.json", "sweep.json"]


def test_a_changed_number_is_damage(tmp_path: Path) -> None:
    """Valid JSON with another value than was written."""
    written(tmp_path)
    path = tmp_path / "sweep.json"
    path.write_text(path.read_text().replace('"batch_size": 10', '"batch_size": 11'))
    lines: list[str] = []
    Journal.look(tmp_path, plan()).take(report=lines.append)
    assert "damaged (the digest does not match the content)" in lines[0]


@pytest.mark.parametrize("damage", [halve, empty, garble])
def test_a_stopped_trial_stays_stopped(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """The damaged file still marks the trial as stopped; the newest chunk file says after how many batches."""
    journal = written(tmp_path)
    trial = journal.plan.trials[0]
    attempt = chunk_files.claim(trial.folder(tmp_path))
    chunk_files.write(trial.folder(tmp_path), attempt, {}, Curves([0, 1], 0, {"x": np.zeros((2, 12))}), finished=False)
    journal.stop(trial, 12, 0.5)
    assert journal.stopped() == {trial.key: 12}
    damage(trial.folder(tmp_path) / "stopped.json")
    assert journal.stopped() == {trial.key: 12}


def test_a_stopped_trial_that_was_resumed_counts_as_running(tmp_path: Path) -> None:
    """The scheduler stopped it after 12 batches, and the sweep was then resumed without a scheduler."""
    journal = written(tmp_path)
    trial = journal.plan.trials[0]
    folder = trial.folder(tmp_path)
    attempt = chunk_files.claim(folder)

    def learn(batches: int, finished: bool = False) -> None:
        chunk_files.write(folder, attempt, {}, Curves([0, 1], 0, {"x": np.zeros((2, batches))}), finished)

    learn(12)
    journal.stop(trial, 12, 0.5)
    assert journal.stopped() == {trial.key: 12}
    learn(16)
    assert journal.stopped() == {}
    journal.stop(trial, 16, 0.5)
    assert journal.stopped() == {trial.key: 16}
    learn(20, finished=True)
    assert journal.stopped() == {}
    (folder / "stopped.json").write_text("")
    assert journal.stopped() == {}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="must be a folder that can be written"):
        Journal.look(tmp_path / "file" / "j", plan()).take()


def test_the_journal_lists_every_stack(tmp_path: Path) -> None:
    written(tmp_path)
    written(tmp_path, seeds=3)
    listed = json.loads((tmp_path / "sweep.json").read_text())["trials"]
    assert sorted((entry["label"], entry["seeds"]) for entry in listed) == [
        ("foml K=1", [0, 1]), ("foml K=1", [2]), ("foml K=5", [0, 1]), ("foml K=5", [2]),
    ]  # fmt: skip


def test_leftovers_of_a_killed_command_are_deleted_and_those_of_a_running_one_are_not(tmp_path: Path) -> None:
    journal = written(tmp_path)
    kept = sorted(tmp_path.rglob("*"))
    folders = [tmp_path / "tune-abc", tmp_path / "report" / ".new-abc"]
    files = [tmp_path / name for name in (".seen-1234", ".sweep.json.1234", ".sweep-copy.json.1234")]
    with journal.locked():
        for folder in folders:
            (folder / "trials").mkdir(parents=True)
            (folder / "trials" / "state.json").write_text("{}")
        for file in files:
            file.touch()
        with pytest.raises(ConfigError), Journal.look(tmp_path, plan()).locked():
            raise AssertionError
        assert all(path.exists() for path in folders + files)
    with journal.locked():
        left = sorted(path for path in tmp_path.rglob("*") if path.name not in ("running", "report"))
    assert left == kept


def test_one_command_at_a_time(tmp_path: Path) -> None:
    journal = Journal.look(tmp_path / "j", plan())
    with journal.locked():
        rule = r"one command at a time runs a sweep \(got process \d+ on .*\); wait"
        with pytest.raises(ConfigError, match=rule), journal.locked():
            pass
    with journal.locked():
        pass


def test_a_learner_for_which_there_is_no_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not damaged, and its trial must not be computed again."""
    journal = written(tmp_path)
    trial = journal.plan.trials[0]
    learner = trial.folder(tmp_path) / chunk_files.LEARNER_FILE
    learner.parent.mkdir(parents=True, exist_ok=True)
    learner.touch()
    monkeypatch.setattr(chunk_files, "newest", lambda *_, **__: SimpleNamespace(finished=True))

    def full(path: Path) -> bool:
        raise MemoryError("can't allocate memory")

    monkeypatch.setattr(checkpoint, "is_intact", full)
    with pytest.raises(chunk_files.NotLoadedError) as caught:
        journal.finished()
    assert caught.value.faults == (f"{learner}: cannot be loaded (can't allocate memory)",)
