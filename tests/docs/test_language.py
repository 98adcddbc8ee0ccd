"""Plain technical English: no words that the documentation of PyTorch, Optuna or pandas would not use."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = re.compile(r"\.(?:py|md|ya?ml|sh|toml|cff|txt|css)$|(?:^|/)(?:run|Dockerfile)$")
SKIPPED = {"tests/docs/test_language.py"}

# Whole words, in either case; an underscore counts as a space. Write in order: reported, reports, again, any process, none, one,
# any, suddenly, forever, started, continues or resumes, results in, n, is missing, quarantined, the noun, the present state,
# automatically, instead, immediately or simultaneously, must, exists, in the same way, again.
WORDS = (
    "told, tell, tells, anew, whoever, nobody, somebody, anybody, of a sudden, for ever, begun, go on, goes on, going on, "
    "gone on, went on, come to, comes to, came to, so many, lack, lacks, lacking, aside, what it is that, as it stands, "
    "by itself, in its place, at once, has to, is there, likewise, once more"
)
# Names that cannot change: a state and two keys of `--plan --json`, an old name in the changelog, a method of Optuna's study.
COMPATIBLE = re.compile(r"""["'`]begun["'`]|\b(?:seconds_|pictures_)?at_once\b|\.tell\(""")

# A variable, a parameter or a function says with a noun what the thing is.
PARTICIPLES = {
    "told",
    "made",
    "found",
    "known",
    "there",
    "own",
    "whole",
    "given",
    "asked",
    "lost",
    "wanted",
    "said",
    "drawn",
    "kept",
}


def files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [name for name in listed if KINDS.search(name) and name not in SKIPPED and (ROOT / name).exists()]


def prose(name: str) -> str:
    """The text of a file; of the changelog only what is not released yet."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return text.partition("## 0.")[0] if name == "CHANGELOG.md" else text


def hits(text: str) -> list[tuple[int, str]]:
    """(line, word) of each hit.

    >>> hits("It goes\\n# on, and is_told so; study.tell(1)")
    [(1, 'goes on'), (2, 'told')]
    """
    text = COMPATIBLE.sub(lambda match: " " * len(match.group()), text)
    gap = r"(?:[\s_#*>|\"]+|\s*//\s*)"
    words = "|".join(re.escape(word).replace(r"\ ", gap) for word in sorted(WORDS.split(", "), key=len, reverse=True))
    matches = re.finditer(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", text, re.IGNORECASE)
    return [(text.count("\n", 0, hit.start()) + 1, re.sub(r"[\W_]+", " ", hit.group().lower())) for hit in matches]


def test_a_word_is_found_across_lines_and_in_names() -> None:
    assert hits("It goes\n# on, and is_told so") == [(1, "goes on"), (2, "told")]
    assert hits("toldstory untold x_at_once `begun` study.tell(1)") == [(1, "at once")]


def test_no_word_to_avoid_is_used() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone: the files that git knows")
    lines = [f"{name}:{line}: {word}" for name in files() for line, word in hits(prose(name))]
    assert lines == []


def names(tree: ast.AST) -> list[str]:
    """Every variable, parameter, function and class that a module defines."""
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    parameters = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return stored + parameters + [node.name for node in ast.walk(tree) if isinstance(node, kinds)]


@pytest.mark.parametrize("folder", ["learners", "streams", "orchestrator", "benchmarks", "examples"])
def test_names_are_no_participles(folder: str) -> None:
    paths = (ROOT / folder).rglob("*.py")
    assert [
        f"{path}: {name}" for path in paths for name in names(ast.parse(path.read_text())) if name in PARTICIPLES
    ] == []
