"""A learner is a file."""

from pathlib import Path

import pytest

import learners
from learners import create, learner_class, names, registry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the package looks into as if it were its own."""
    monkeypatch.setattr(learners, "__path__", [*learners.__path__, str(tmp_path)])
    caches = (registry.names, registry.learner_class)
    for cached in caches:
        cached.cache_clear()
    yield tmp_path
    for cached in caches:
        cached.cache_clear()


def test_every_learner_of_the_package_is_found_and_nothing_else() -> None:
    assert set(names()) >= {"foml", "online", "tfs", "toe"}
    assert not set(names()) & {"base", "batch", "buffer", "model", "networks", "optim", "registry"}
    assert names() == sorted(names())


def test_a_file_of_the_users_own(folder: Path, smooth) -> None:
    """Derived from another learner, with an option of its own."""
    (folder / "mine_made.py").write_text(
        "from dataclasses import dataclass\n"
        "from learners import online\n"
        "@dataclass(frozen=True)\n"
        "class Options(online.Options):\n"
        "    gamma: float = 0.5\n"
        "class Mine(online.Online):\n"
        "    options_class = Options\n"
    )
    assert "mine_made" in names()
    learner = create("mine_made", {"gamma": 0.25}, smooth.setting())
    assert (learner.options.gamma, learner.options.alpha1) == (0.25, 0.001)


def test_two_learners_in_one_file_are_one_too_many(folder: Path) -> None:
    (folder / "two_made.py").write_text(
        "from learners.online import Online\nclass A(Online): pass\nclass B(Online): pass\n"
    )
    with pytest.raises(ValueError, match=r"learners/two_made\.py must define exactly one Learner \(found 2\)"):
        learner_class("two_made")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"learner must be one of .*foml, .*toe.* \(got fooml\)"):
        learner_class("fooml")
