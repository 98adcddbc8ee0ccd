"""Atomic writes, JSON with a digest, quarantine."""

from pathlib import Path
from typing import BinaryIO

import pytest

from orchestrator.storage import atomic


@pytest.mark.parametrize("content", ["größer", "größer".encode(), lambda file: file.write("größer".encode())])
def test_a_file_is_replaced(tmp_path: Path, content: object) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    atomic.write(path, content)  # type: ignore[arg-type]
    assert path.read_text(encoding="utf-8") == "größer"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def half(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        atomic.write(path, half)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_digest_detects_a_changed_value() -> None:
    text = atomic.with_digest({"a": 1, "b": {"c": [2.5, None]}})
    assert text.startswith('{\n  "digest": "')
    assert atomic.without_digest(text) == {"a": 1, "b": {"c": [2.5, None]}}
    with pytest.raises(ValueError, match="the digest does not match the content"):
        atomic.without_digest(text.replace("2.5", "2.6"))
    assert atomic.without_digest('{"a": 1}') == {"a": 1}  # of a version that wrote no digest
    with pytest.raises(TypeError, match="not an object"):
        atomic.without_digest("[]")


def test_quarantine_keeps_the_file_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text("half")
    assert atomic.quarantine(path) == "quarantined as damaged-sweep.json"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("damaged-sweep.json", "half")]


def test_a_reason_is_one_line() -> None:
    assert atomic.reason(ValueError("first\n  second")) == "first second"
    assert atomic.reason(EOFError()) == "EOFError"
