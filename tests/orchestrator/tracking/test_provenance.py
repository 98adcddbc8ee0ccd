"""The difference between a tree and its commit, on real repositories."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.tracking import provenance


def git(tree: Path, *words: str) -> str:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
    return subprocess.run(["git", *identity, *words], cwd=tree, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "learner.py").write_text("alpha = 1\n")
    (tmp_path / ".gitignore").write_text("data\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_a_clean_tree_has_no_changes(tree: Path) -> None:
    assert provenance.git_state(tree) == (git(tree, "rev-parse", "HEAD").strip(), "false")
    assert provenance.git_changes(tree) == ""


def test_changes_are_a_patch_that_restores_the_tree(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tree / "learner.py").write_text("alpha = 2\n")
    (tree / "new.py").write_text("beta = 3\n")
    (tree / "data").write_text("ignored\n")
    before = git(tree, "status", "--porcelain")
    assert provenance.git_state(tree)[1] == "true"
    changes = provenance.git_changes(tree)
    assert git(tree, "status", "--porcelain") == before == " M learner.py\n?? new.py\n"
    assert "ignored" not in changes
    clone = tmp_path_factory.mktemp("clone") / "tree"
    git(tree, "clone", "--quiet", str(tree), str(clone))
    subprocess.run(["git", "apply", "-"], cwd=clone, check=True, input=changes, text=True)
    assert (clone / "learner.py").read_text() == "alpha = 2\n"
    assert (clone / "new.py").read_text() == "beta = 3\n"


def test_a_long_difference_is_cut_off_with_a_note(tree: Path) -> None:
    (tree / "long.txt").write_text("0123456789\n" * 200_000)
    changes = provenance.git_changes(tree)
    assert provenance.DIFF_BYTES < len(changes) < provenance.DIFF_BYTES + 100
    assert changes.endswith(f"… cut off after {provenance.DIFF_BYTES} bytes\n")


def test_a_folder_that_is_not_a_repository(tmp_path: Path) -> None:
    assert provenance.git_state(tmp_path) == ("unknown", "unknown")
    assert provenance.git_changes(tmp_path) == ""


@pytest.mark.parametrize(
    ("original", "words", "line"),
    [
        (
            ["python3.11", "-m", "orchestrator.sweep", "a b.yaml"],
            ["…/__main__.py", "a b.yaml"],
            "python -m orchestrator.sweep 'a b.yaml'",
        ),
        (["python3.11", "/bin/foml", "sweep", "seeds=2"], ["/bin/foml", "sweep", "seeds=2"], "foml sweep seeds=2"),
    ],
)
def test_the_command_line_can_be_pasted(
    original: list[str], words: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "argv", words)
    assert provenance.command_line() == line


def test_mlflows_own_tags_name_source_commit_and_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "someone")
    monkeypatch.setattr(provenance, "git_state", lambda: ("abc", "false"))
    for original, source in (
        (["python3", "-m", "orchestrator.sweep", "a b.yaml"], "orchestrator.sweep"),
        (["python3", "/bin/foml", "sweep", "storage=s3://key:secret@bucket"], "foml"),
    ):
        monkeypatch.setattr(sys, "orig_argv", original)
        monkeypatch.setattr(sys, "argv", original[1:])
        tags = provenance.collect("hash", Path("store"), "{}").tags
        assert {key: value for key, value in tags.items() if key.startswith("mlflow.")} == {
            "mlflow.source.name": source,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": "abc",
            "mlflow.user": "someone",
        }
    monkeypatch.setattr(provenance, "git_state", lambda: ("unknown", "unknown"))
    assert "mlflow.source.git.commit" not in provenance.collect("hash", Path("store"), "{}").tags
