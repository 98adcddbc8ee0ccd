"""What the pages of docs/ say is true of the code: sweeps in YAML are valid, files exist, tables of parts are complete."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from learners import registry
from learners.base import Learner, ModelLearner
from learners.batch import Batch
from learners.networks.network import Network
from orchestrator.config.load import check_sweep, ready_sweeps
from orchestrator.config.schema import Document
from streams.schedule import schedules

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BASE = {"name": "page", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}
BY_LINE = {"data.md"}
"""Pages whose blocks of YAML have a sweep's `stream` in each line."""
BLOCKS = [
    (page.name, text)
    for page in PAGES
    for block in re.findall(r"```yaml[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if "--8<--" not in block
    for text in (block.splitlines() if page.name in BY_LINE else [block])
]


@pytest.mark.parametrize(("page", "text"), BLOCKS)
def test_the_yaml_of_a_page_is_valid(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    sweep = check_sweep({**BASE, **yaml.safe_load(text)}, page)
    assert set(yaml.safe_load(text)) <= set(Document.model_fields) and sweep.learners


def test_blocks_are_found() -> None:
    assert len(BLOCKS) >= 20 and {page for page, _ in BLOCKS} >= {
        "README.md",
        "data.md",
        "adding-a-sweep.md",
        "sweeps.md",
    }


def test_every_file_that_a_page_names_exists() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone: the files that git knows")
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ends = {"/" + file[at:] for file in files for at in [0, *(m.end() for m in re.finditer("/", file))]}
    examples = {"mine.yaml"}
    missing = []
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for code in re.findall(r"`([^`\n]+)`", prose):
            names = re.findall(r"(?<![\w~/.])[\w./-]+\.(?:py|ipynb|sh|md|toml)\b|[\w/-]*\w\.yaml\b", code)
            missing += [f"{page.name}: {name}" for name in names if f"/{name}" not in ends and name not in examples]
    assert missing == []


def test_names_on_the_page_about_learners_exist() -> None:
    """Methods, attributes and arguments; `name` is a key of a sweep's file."""
    prose = re.sub(r"```.*?```", "", (ROOT / "docs/adding-a-learner.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    names = set(re.findall(r"`([a-z]\w*)(?:\([^`]*\))?`", prose))
    classes = (ModelLearner, Network, Batch)
    known = {name for kind in classes for name in dir(kind)} | {"name", *Learner.__annotations__}
    assert names >= {"changeable", "state_dict", "state_for_new_options"}
    assert names - known == set()


def table(page: str, heading: str) -> list[str]:
    """The first cells of the rows of the tables below a heading of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]


def words(cells: list[str]) -> set[str]:
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


def test_tables_of_parts_are_complete() -> None:
    assert words(table("methods.md", "What happens with a batch")) == set(registry.names())
    assert words(table("adding-a-stream.md", "Another order")) == set(schedules())
    assert words(table("adding-a-sweep.md", "Keys")) == set(Document.model_fields)
    assert words(table("adding-a-sweep.md", "Ready sweeps")) == set(ready_sweeps())
