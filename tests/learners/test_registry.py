"""Learners are found by the name of their module."""

from pathlib import Path

import pytest

import learners
from learners import create, learner_class, names, registry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules belong to the package `learners` during the test."""
    monkeypatch.setattr(learners, "__path__", [*learners.__path__, str(tmp_path)])
    caches = (registry.names, registry.learner_class)
    for cached in caches:
        cached.cache_clear()
    yield tmp_path
    for cached in caches:
        cached.cache_clear()


def test_names_are_the_learners_of_the_package() -> None:
    assert set(names()) >= {"foml", "online", "tfs", "toe"}
    assert not set(names()) & {"base", "batch", "buffer", "model", "networks", "optim", "registry"}
    assert names() == sorted(names())


def test_a_learner_in_a_user_defined_file(folder: Path, smooth) -> None:
    """A subclass of another learner with one more option."""
    (folder / "user_defined.py").write_text(
        "from dataclasses import dataclass\n"
        "from learners import online\n"
        "@dataclass(frozen=True)\n"
        "class Options(online.Options):\n"
        "    gamma: float = 0.5\n"
        "class Mine(online.Online):\n"
        "    options_class = Options\n"
    )
    assert "user_defined" in names()
    learner = create("user_defined", {"gamma": 0.25}, smooth.setting())
    assert (learner.options.gamma, learner.options.alpha1) == (0.25, 0.001)


def test_two_learners_in_one_file_are_refused(folder: Path) -> None:
    (folder / "two_learners.py").write_text(
        "from learners.online import Online\nclass A(Online): pass\nclass B(Online): pass\n"
    )
    with pytest.raises(ValueError, match=r"learners/two_learners\.py must define exactly one Learner \(found 2\)"):
        learner_class("two_learners")


def test_an_unknown_name_lists_the_available_ones() -> None:
    with pytest.raises(ValueError, match=r"learner must be one of .*foml, .*toe.* \(got fooml\)"):
        learner_class("fooml")
