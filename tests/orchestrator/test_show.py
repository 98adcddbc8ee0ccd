"""`foml show` prints the configuration of a sweep with every default, which is the file of the same sweep."""

import json
from pathlib import Path

import pytest

from orchestrator import show
from orchestrator.config.load import check_sweep, load_sweep, ready_sweeps
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import Plan, sweep_folder
from orchestrator.storage.journal import Journal
from streams.yaml_values import parsed
from tests.rights import denied

FILE = """
name: mine
stream: {name: rainbow_digits, tasks: 4, held_back: 1, schedule: {name: recurring}}
learners:
  - {name: foml, K: {grid: [1, 5]}, beta1: {loguniform: [1.0e-3, 1.0e-1]}}
  - {name: online}
seeds: [0, 3]
search: {samples: 2, algorithm: optuna, scheduler: {name: asha, grace: 0.2}}
"""


def plan_of(text: str) -> Plan:
    return make_plan(check_sweep(parsed(text)), "0" * 64)


@pytest.mark.parametrize("name", [name for name in ready_sweeps() if name.startswith(("quickstart", "tune", "pbt"))])
def test_the_yaml_of_a_ready_sweep_is_a_file_of_the_same_sweep(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan(load_sweep(name), "0" * 64)
    assert show.main([name]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"# tune_configs/{name}.yaml, with every default\nname: ")
    shown = plan_of(text)
    assert shown.resolved == plan.resolved and [t.key for t in shown.trials] == [t.key for t in plan.trials]
    assert [study.key for study in shown.studies] == [study.key for study in plan.studies]


def test_a_file_its_changes_and_the_sweep_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FILE)
    assert show.main(["mine.yaml", "seeds=2", "foml.alpha1=0.5", "tracking.uri=http://me:secret@host"]) == 0
    text = capsys.readouterr().out
    head = "# mine.yaml seeds=2 foml.alpha1=0.5 tracking.uri=http://***@host, with every default\n"
    assert text.startswith(head) and "secret" not in text
    content = parsed(text)
    assert content["seeds"] == [0, 1] and content["learners"][0]["alpha1"] == 0.5
    assert content["learners"][0]["K"] == {"grid": [1, 5]} and content["learners"][1]["alpha1"] == 0.001
    assert content["stream"]["held_back"] == 1 and content["stream"]["schedule"]["name"] == "recurring"
    assert content["tracking"]["uri"] == "http://***@host" and content["retries"] == 3

    plan = make_plan(load_sweep("mine.yaml"), "f" * 64)
    Journal(tmp_path / "results" / "mine", plan).take()
    Path("mine.yaml").unlink()
    for name in ("mine", "results/mine"):
        assert show.main([name, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["format"] == 1 and document["from"] == "results/mine/sweep.json"
        started = document["sweep"]
        again = make_plan(check_sweep(started), "f" * 64)
        assert again.resolved == plan.resolved and [s.key for s in again.studies] == [s.key for s in plan.studies]
    assert show.main(["mine", "seeds=4"]) == 0
    assert parsed(capsys.readouterr().out) == started | {"seeds": [0, 1, 2, 3]}


def test_the_place_of_the_data_and_options_that_were_added_later_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Path("mine.yaml").write_text(
        "name: mine\nstream: {name: images, data: photos, nested_classes: true}\nlearners: [{name: foml}, {name: replay}]\n"
        "seeds: 1\n"
    )
    plan = make_plan(load_sweep("mine.yaml"), "0" * 64)
    Journal(tmp_path / "results" / "mine", plan).take()
    for name in ("mine.yaml", "mine"):
        assert show.main([name]) == 0
        text = capsys.readouterr().out
        stream, (foml, replay) = parsed(text)["stream"], parsed(text)["learners"]
        assert stream["data"] == "photos" and stream["nested_classes"] is True and stream["background"] == "white"
        assert foml["pull"] == "coupled" and foml["online_replay"] is False and replay["step"] == "joint"
        assert [trial.key for trial in plan_of(text).trials] == [trial.key for trial in plan.trials]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["quickstrat"], "quickstrat: must be a YAML file, a ready sweep ("),
        (["none.yaml"], "none.yaml: "),
        (["quickstart", "seeds=none"], "tune_configs/quickstart.yaml: seeds: "),
        (["quickstart", "other"], "NAME: must be one sweep (got quickstart other)"),
    ],
)
def test_faults_are_one_line(words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main([*words, "--storage", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(line)


def test_a_sweep_that_may_not_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "results" / "mine"
    Journal(root, plan_of(FILE)).take()
    rule = "must be a file that can be read (Permission denied); get access to it and to the folders that it is in"
    for folder, name in ((tmp_path / "results", "mine"), (root, "mine"), (root, str(root))):
        with denied(folder):
            assert show.main([name, "--storage", str(tmp_path / "results")]) == 2
        assert capsys.readouterr() == ("", f"{root / 'sweep.json'}: {rule}\n")


def test_a_sweep_in_a_folder_is_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Journal(tmp_path / "mine", plan_of(FILE)).take()
    Journal(sweep_folder(str(tmp_path), 'my "ün"'), plan_of(FILE.replace("name: mine", "name: 'my \"ün\"'"))).take()
    assert show.main(["nine", "--storage", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f') or a sweep in {tmp_path}; sweeps there: mine, my "ün"\n')


def test_a_name_that_looks_like_a_number_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["quickstart", "name='1e3'"]) == 0
    assert parsed(capsys.readouterr().out)["name"] == "1e3"
