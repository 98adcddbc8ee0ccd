"""The table of rooms in docs/architecture.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("orchestrator", "learners", "streams")


def test_the_table_has_one_row_for_each_room_and_no_other() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:orchestrator|learners|streams)/\w*)` \|", text, flags=re.MULTILINE)
    rooms = [str(path.parent.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).glob("*/__init__.py")]
    assert sorted(rows) == sorted([*rooms, "learners/", "streams/"])


def test_modules_named_on_the_page_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:orchestrator|learners|streams)/[\w/]+\.py)`", text))
    assert len(paths) >= 8
    assert [path for path in sorted(paths) if not (ROOT / path).is_file()] == []
