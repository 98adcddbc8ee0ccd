"""The site of docs/ builds without a warning, and its pages need no network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs the extra `docs`: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return out


def test_the_site_has_every_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    files = {path.relative_to(site) for path in site.rglob("*.html")}
    assert pages <= files
    learner = (site / "adding-a-learner.html").read_text(encoding="utf-8")
    assert "Averaged" in learner and "--8&lt;--" not in learner and "--8<--" not in learner
    assert "∇L(φ" in (site / "methods.html").read_text(encoding="utf-8")


def test_no_page_loads_a_resource_from_another_host(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]+src="?(https?:[^" >]+)|<link[^>]+rel="?stylesheet"?[^>]+(https?:[^" >]+)"""
    )
    addresses = {path.name: loaded.findall(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert {name: each for name, each in addresses.items() if each} == {}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        assert path.relative_to(ROOT / "docs").as_posix() in navigation
