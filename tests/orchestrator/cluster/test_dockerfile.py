"""`deploy/Dockerfile`: what it copies is what `ship` writes, and it does not run as root."""

import json
import re
from pathlib import Path

import pytest

from orchestrator import ship
from orchestrator.cluster.rules import pinned

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments; continued lines are joined, comments are left out."""
    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(name, arguments.strip()) for name, _, arguments in (line.partition(" ") for line in lines if line)]


def test_the_base_is_one_version_and_the_user_is_not_root(instructions: list[tuple[str, str]]) -> None:
    assert [name for name, _ in instructions] == ["FROM", "COPY", "RUN", "USER", "WORKDIR", "CMD"]
    held = dict(instructions)
    assert pinned(held["FROM"])
    assert int(held["USER"]) > 0
    assert json.loads(held["CMD"])[0] == "foml"


def test_it_installs_what_ship_writes(instructions: list[tuple[str, str]]) -> None:
    held = dict(instructions)
    source, target = held["COPY"].split()
    assert source == "deploy/ship/"  # the default of `ship --out`
    used = re.findall(rf"{re.escape(target)}([\w.*-]+)", held["RUN"])
    assert used == ["constraints.txt", "foml_orchestrator-*.whl"]
    assert "constraints.txt" in ship.BESIDE and (ROOT / "constraints.txt").is_file()
    assert "--constraint" in held["RUN"] and "[cluster]" in held["RUN"]
