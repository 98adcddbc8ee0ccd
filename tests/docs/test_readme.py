"""What the README says is true of the code and of the pages that it cites."""

import re
from pathlib import Path

import pytest

from benchmarks import pictures, reproduction, reproduction_picture
from learners import registry
from orchestrator.cli import COMMANDS
from orchestrator.config.load import load_sweep, ready_sweeps
from streams import recipes
from streams.schedule import schedules

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REPRODUCTION = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")


def row(head: str) -> set[str]:
    """The words in code in the row of the table of contents that starts with `head`."""
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {head} |")]
    return set(re.findall(r"`(\w+)`", line))


def test_the_two_commands_are_there() -> None:
    assert "    pip install -e . && python -m orchestrator.sweep" in README
    assert "    pip install -e '.[test]' && pytest -n 3\n" in README


def test_every_link_leads_to_a_file_or_to_an_address() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert len(targets) > 25
    local = [target.partition("#")[0] for target in targets if not target.startswith("https://")]
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_the_lists_of_parts_are_complete() -> None:
    assert row("learners") == set(registry.names())
    assert len(registry.names()) == int(re.findall(r"\| methods included \| (\d+)", README)[0])
    assert row("schedules") == set(schedules())
    assert row("streams") <= set(recipes())


def test_every_command_and_ready_sweep_exists() -> None:
    commands = re.findall(r"(?:^    |`)foml (\w+)(?: (\w+)(?= |`|$))?", README, re.MULTILINE)
    assert {name for name, _ in commands} <= set(COMMANDS)
    names = {sweep for name, sweep in commands if name == "sweep" and sweep}
    assert {"quickstart_tune", "rainbow_mnist"} <= names <= set(ready_sweeps()) | {"mine"}


@pytest.mark.parametrize("name", ["screen.svg", "report.png"])
def test_the_pictures_of_benchmarks_pictures_are_small(name: str) -> None:
    assert f"docs/images/{name})" in README
    assert 1_000 < (pictures.IMAGES / name).stat().st_size < 200_000


def test_the_picture_of_the_screen_shows_the_learners_of_the_quickstart() -> None:
    drawing = (pictures.IMAGES / "screen.svg").read_text(encoding="utf-8")
    assert all(spec.name in drawing for spec in load_sweep().learners) and "@font-face" not in drawing


def test_the_picture_shows_the_table_of_the_reproduction() -> None:
    table = re.findall(r"^\| (\w+) \| (0\.\d{3} ± 0\.\d{3}) \|", REPRODUCTION.split("<!-- end -->")[0], re.MULTILINE)
    assert len(table) >= 8 and {"foml", "online", "replay"} <= {method for method, _ in table}
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", reproduction_picture.ERRORS.read_text(encoding="utf-8"))
    methods = [text.removesuffix(" (reference)") for text in texts if text.split()[0] in registry.names()]
    errors = [text for text in texts if re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", text)]
    assert list(zip(methods, errors, strict=True)) == table


def test_the_caption_cites_the_reproduction() -> None:
    numbers = re.findall(r"−?0\.\d{3} ± 0\.\d{3}", README[: README.index("## Quick start")])
    pages = "\n".join(path.read_text(encoding="utf-8") for path in reproduction.PAGES)
    assert len(numbers) >= 2
    assert [each for each in numbers if each not in pages] == []
