"""Options that do not fit one another or the stream, by the rules of their learner."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from learners.base import Learner, StreamFacts
from orchestrator.config.cross_checks import check_options, check_with_store
from orchestrator.config.load import check_sweep
from orchestrator.config.schema import LearnerSpec, Sweep
from orchestrator.config.search_space import Space
from orchestrator.errors import ConfigError
from streams.errors import Faults

OWN = """
from dataclasses import dataclass
from learners.online import Online, Options as Base


@dataclass(frozen=True)
class Options(Base):
    group: int = 4
    weighed: bool = False
    weight: float = 1.0


class Grouped(Online):
    options_class = Options

    @classmethod
    def check(cls, options, stream):
        if stream.batch_size % options.group:
            yield "group", f"must divide batch_size, {stream.batch_size}"
        if options.group == 7:
            raise RuntimeError("seven")

    @classmethod
    def without_effect(cls, options):
        return {} if options.weighed else {"weight": "weighed: false"}
"""


@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_rules").mkdir()
    (tmp_path / "own_rules" / "grouped.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_rules.grouped"


def sweep(learner: dict[str, object]) -> dict[str, object]:
    return {"name": "mine", "stream": {"name": "rainbow_digits"}, "learners": [learner], "seeds": 1, "batch_size": 8}


def test_a_learner_of_the_users_own_checks_its_options(users_module: str) -> None:
    assert check_sweep(sweep({"name": users_module, "group": {"grid": [2, 4]}})).learners[0].name == users_module
    with pytest.raises(ConfigError) as caught:
        check_sweep(sweep({"name": users_module, "group": {"grid": [2, 3, 5]}, "weight": 2.0}), "mine.yaml")
    assert caught.value.faults == (
        "mine.yaml: learners[0].group.grid[1]: must divide batch_size, 8 (got 3)",
        "mine.yaml: learners[0].group.grid[2]: must divide batch_size, 8 (got 5)",
    )


def test_a_check_that_raises_is_one_line(users_module: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sweep(sweep({"name": users_module, "group": 7}), "mine.yaml")
    assert caught.value.faults == (
        "mine.yaml: learners[0]: own_rules.grouped cannot check its options (RuntimeError: seven)",
    )


def test_a_search_is_refused_only_where_none_of_its_trials_has_an_effect(users_module: str) -> None:
    searched = {"weight": {"uniform": [0.5, 2.0]}}
    with pytest.raises(ConfigError, match=r"learners\[0\]\.weight: has no effect with weighed: false"):
        check_sweep(sweep({"name": users_module, **searched}))
    check_sweep(sweep({"name": users_module, "weighed": {"grid": [False, True]}, **searched}))


def with_store(checked: Sweep, classes: int) -> list[str]:
    faults = Faults(checked.file)
    check_with_store(checked, classes, faults)
    return list(faults)


def test_the_number_of_classes_is_checked_with_the_store() -> None:
    checked = check_sweep(sweep({"name": "icarl", "memory": {"grid": [10, 12]}}), "mine.yaml")
    assert with_store(checked, 10) == []
    assert with_store(checked, 12) == [
        "mine.yaml: learners[0].memory.grid[0]: must be at least the stream's 12 classes (got 10)"
    ]
    assert with_store(checked, 13) == [
        "mine.yaml: learners[0].memory.grid[0]: must be at least the stream's 13 classes (got 10)",
        "mine.yaml: learners[0].memory.grid[1]: must be at least the stream's 13 classes (got 12)",
    ]


def test_an_unknown_number_of_classes_is_not_a_fault() -> None:
    spec = LearnerSpec("icarl", {"alpha": 0.001, "updates_per_task": 5, "update_batch": 4, "mean_points": 3}, {})
    spec = LearnerSpec(spec.name, spec.fixed, {"memory": Space("grid", (1, 2))})
    faults = Faults("mine.yaml")
    check_options(spec, StreamFacts(10, 0), faults)
    assert list(faults) == []


@dataclass(frozen=True)
class Nothing:
    """No options."""


def test_a_learner_has_no_rules_by_default() -> None:
    assert list(Learner.check(Nothing(), StreamFacts(10, 0, 10))) == []
    assert Learner.without_effect(Nothing()) == {}
