"""The table of files in docs/architecture.md."""

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_names_every_module_of_the_orchestrator_and_none_besides() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [line for line in text.partition("## Decisions")[0].splitlines() if line.startswith("| ")]
    start = next(at for at, row in enumerate(rows) if row.startswith("| `orchestrator`"))
    named = [name for row in rows[start:] for name in re.findall(r"`([\w*]+\.py)`", row.split("|")[2])]
    there = {path.name for path in (ROOT / "orchestrator").glob("*.py")} - {"__init__.py"}
    assert sorted(name for name in there if not any(fnmatch(name, pattern) for pattern in named)) == []
    assert sorted(pattern for pattern in named if not any(fnmatch(name, pattern) for name in there)) == []
