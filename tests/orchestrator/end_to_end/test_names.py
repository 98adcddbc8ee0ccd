"""Names and paths with spaces, umlauts, quotes, `../`, emoji are used unchanged; unusable ones are refused."""

import shlex
from pathlib import Path

import pytest
import yaml

from orchestrator.config.load import check_sweep, load_sweep
from orchestrator.config.strict_yaml import overridden
from orchestrator.errors import ConfigError
from orchestrator.plan.plan import sweep_folder
from orchestrator.report import __main__
from orchestrator.sweep.api import run_sweep
from orchestrator.sweep.arguments import read
from orchestrator.sweep.result import resume_command
from orchestrator.tracking import reader
from streams import build
from tests.orchestrator.protocol_sweep import compute
from tests.orchestrator.sweep_command import TINY, folder_with, run, statuses

PLACE = "Größe 'a' \"b\" #1 100% [x] 🦉 $HOME; &"
NAMES = [
    "Größe 'a' \"b\" `c` ../../d %s \\ ;--",
    "../up",
    "..",
    "-dash --resume",
    "🦉 Eule",
    "ü" * 200,
    "a/b",
    "key=value: [1] #x",
]
SWEEP = {"stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}


def words_after_python(command: str) -> list[str]:
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "orchestrator.sweep"]
    return words[3:]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("storage", ["results", PLACE, "-dash", "results #1", "12", "a: b", "~"])
def test_the_command_that_resumes_has_the_same_name_and_storage(name: str, storage: str) -> None:
    """Through the shell, the command line and YAML."""
    of = check_sweep(SWEEP | {"name": name, "storage": storage})
    arguments = read(words_after_python(resume_command(of)))
    assert arguments.resume == name
    changed = overridden(SWEEP | {"name": name}, arguments.overrides)
    assert check_sweep(changed).document.storage == storage


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("name", {"name": "two\nlines"}),
        ("name", {"name": "bell\a"}),
        ("name", {"name": "half \udc80 of a letter"}),
        ("storage", {"storage": "nul\0"}),
        ("tracking.uri", {"tracking": {"uri": "sqlite:///a\0b"}}),
        ("tracking.experiment", {"tracking": {"experiment": "tab\t"}}),
        ("stream.store", {"stream": {"name": "rainbow_digits", "store": "a\nb"}}),
        ("learners[0].name", {"learners": [{"name": "on\x1bline"}]}),
    ],
)
def test_an_unprintable_name_is_refused_in_one_line(key: str, change: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sweep(SWEEP | {"name": "x"} | change, "x.yaml")
    (line,) = caught.value.faults
    assert line.startswith(f"x.yaml: {key}: must not contain control characters or broken Unicode (")
    assert line.isprintable()


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_a_sweep_of_any_name_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Working folder, storage, experiment, store and report: computed, tracked, reported, resumed."""
    folder = folder_with(tmp_path / PLACE, "")
    monkeypatch.chdir(folder)
    words = ["tasks=3", "train=50", "validation=12", "test=12", "--seeds", "1", "--out", f"{PLACE} store"]
    assert build.main(["rainbow_digits", *words]) == 0
    document = {
        "name": name,
        "stream": {
            "name": "rainbow_digits",
            "tasks": 3,
            "train": 50,
            "validation": 12,
            "test": 12,
            "store": f"{PLACE} store",
        },
        "learners": [{"name": "online"}],
        "seeds": 1,
        "storage": f"{PLACE} results",
        "tracking": {"experiment": name, "uri": f"sqlite:///{tmp_path}/Größe 'a' \"b\" 🦉/mlflow.db"},
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    compute(folder)
    shown = resume_command(load_sweep("sweep.yaml"))
    overrides = [word for word in words_after_python(shown) if word.startswith("storage=")]
    for done in (run_sweep("sweep.yaml"), run_sweep(resume=name, overrides=overrides)):
        assert done.exit_code == 0, done.text
        assert done.folder == sweep_folder(f"{PLACE} results", name)
    assert (done.report / "report.html").exists()
    uri = document["tracking"]["uri"]  # type: ignore[index]
    assert len(reader.load_curves(name, uri, name)) > 0
    assert __main__.main(["--tracking-uri", uri, "--experiment=" + name, "--out", f"{PLACE} out", "--", name]) == 0
    assert (folder / f"{PLACE} out" / "report.html").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([PLACE, "Größe 'a' \"b\" 🦉"])
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == sorted(
        [f"{PLACE} store", f"{PLACE} results", f"{PLACE} out", "sweep.yaml"]
    )


@pytest.mark.slow
def test_the_complete_command_in_a_folder_of_such_a_name(tmp_path: Path) -> None:
    """With a real Ray: Tune receives these paths, too."""
    folder = folder_with(tmp_path / PLACE, TINY)
    document = yaml.safe_load(TINY) | {
        "name": NAMES[0],
        "storage": "Größe #1 100% ? 🦉",
        "learners": [{"name": "online"}],
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    done = run(folder, "sweep.yaml")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert statuses(folder) == ["FINISHED"] * (1 + 1 + 2)
    assert list((folder / "Größe #1 100% ? 🦉").glob("*/*/chunk-*"))
    again = run(folder, f"--resume={NAMES[0]}", 'storage="Größe #1 100% ? 🦉"')
    assert again.returncode == 0, again.stderr
    assert "1 of them ended before" in again.stderr
