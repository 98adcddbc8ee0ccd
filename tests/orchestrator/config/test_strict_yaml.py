"""Strict YAML and `key=value` words: invalid input is one line, never a traceback."""

from pathlib import Path

import pytest

from orchestrator.config.strict_yaml import overridden, parsed, read_yaml
from orchestrator.errors import ConfigError


def test_a_number_with_an_exponent_is_a_number() -> None:
    """In YAML 1.1 these are text."""
    assert [parsed(text) for text in ("1e-2", "-2E3", "1.5e+2")] == [0.01, -2000.0, 150.0]


def test_words_change_a_copy() -> None:
    document = {"seeds": 3, "learners": [{"name": "foml", "K": 1}]}
    changed = overridden(document, ["seeds=[4]", "learners[0].K={grid: [2, 3]}", "search.samples=2"])
    learners = [{"name": "foml", "K": {"grid": [2, 3]}}]
    assert changed == {"seeds": [4], "learners": learners, "search": {"samples": 2}}
    assert document == {"seeds": 3, "learners": [{"name": "foml", "K": 1}]}


def test_every_bad_word_is_a_fault_of_the_command_line() -> None:
    with pytest.raises(ConfigError) as caught:
        overridden({"seeds": 3, "learners": [{}]}, ["seeds", "learners[7].K=1", "=3", "seeds=[1", "learners.K=1"])
    form = "must be written key=value, such as seeds=3 or learners[0].K=5"
    assert caught.value.faults == (
        f"command line: seeds: {form}",
        "command line: learners[7].K: learners has no such part (got learners[7])",
        f"command line: =3: {form}",
        "command line: seeds: must be a YAML value (got [1)",
        "command line: learners.K: learners has no such part (got learners.K)",
    )


def test_a_key_is_given_once() -> None:
    """As in a file; repeating the same word is allowed."""
    with pytest.raises(ConfigError) as caught:
        overridden({}, ["seeds=3", "seeds=4", "name=x", "name=x"])
    assert caught.value.faults == ("command line: seeds: must be given once",)
    assert overridden({}, ["seeds=3", "seeds=3"]) == {"seeds": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: [", "must be YAML"),
        ("name: x\nname: y\n", "key name is written twice"),
        ("- 1\n", "must hold keys and values"),
        ("", "must hold keys and values"),
    ],
)
def test_a_file_that_is_not_a_sweep(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_yaml(path, "mine.yaml")
    (line,) = caught.value.faults
    assert line.startswith("mine.yaml: ")
    assert expected in line


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a readable YAML file"):
        read_yaml(tmp_path / "none.yaml", "none.yaml")
