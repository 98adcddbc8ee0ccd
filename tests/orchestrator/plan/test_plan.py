"""The hash of a configuration, the key of a trial, and the folder of a sweep."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.plan.expand import make_plan
from orchestrator.plan.plan import results_version, sweep_folder
from streams.store.canonical_json import digest
from tests.orchestrator.synthetic_sweep import configuration


def sweep(learners: list[dict[str, object]], **more: object) -> Sweep:
    return check_sweep({"name": "p", "stream": {"name": "rainbow_digits"}, "learners": learners, "seeds": 2} | more)


def test_the_hash_is_of_all_that_determines_a_curve() -> None:
    def of(store: str = "store", **change: object) -> str:
        return make_plan(sweep([{"name": "foml"}], **change), store).trials[0].configuration.hash

    same = of()
    assert of(seeds=[5]) == same  # seeds are replicates of one configuration
    assert of(name="other") == same
    assert of(resources={"cpus": 2}) == same
    assert of(chunk=7) == same
    assert of(store="another") != same
    assert of(batch_size=5) != same
    assert of(stream={"name": "rainbow_digits", "tasks": 3}) != same
    assert make_plan(sweep([{"name": "foml", "K": 4}]), "store").trials[0].configuration.hash != same


def test_a_version_of_one_learner_on_one_schedule() -> None:
    """TOE has other results on `markov` since version 4; its hashes elsewhere, and those of others, stay."""

    def version(learner: str, schedule: str) -> int:
        return results_version(learner, {"schedule": {"name": schedule}})

    assert [version("toe", name) for name in ("sequential", "gradual", "recurring", "markov")] == [3, 3, 3, 4]
    assert [version(name, "markov") for name in ("foml", "icarl", "moca")] == [3, 4, 4]
    parts = replace(configuration("toe"), stream={"schedule": {"name": "markov", "hazard": 0.1}})
    assert parts.hash == digest([4, "toe", parts.options, "rainbow", parts.batch_size, parts.stream], 12)


def test_a_trial_is_a_configuration_and_its_seeds() -> None:
    one = make_plan(sweep([{"name": "foml"}]), "store").trials[0]
    two = make_plan(sweep([{"name": "foml"}], seeds=3), "store").trials[0]
    assert one.configuration.hash == two.configuration.hash
    assert one.key != two.key
    assert one.folder(Path("r")) == Path("r") / one.key


def test_trials_are_found_by_key_and_added_once() -> None:
    plan = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5]}}]), "store")
    first, second = plan.trials
    assert plan.trial(second.key) is second
    plan.add(first)
    assert plan.trials == (first, second)
    other = make_plan(sweep([{"name": "foml", "K": 7}]), "store").trials[0]
    plan.add(other)
    assert plan.trials == (first, second, other)
    assert plan.with_earlier({}).trial(other.key) == other
    with pytest.raises(KeyError):
        plan.trial("unknown")


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "..",
        ".",
        "a/b",
        "ü ö",
        "a'b\"c",
        " ",
        "~",
        "%2F",
        "🦉 Eule",
        "-x",
        "a=b",
        "x" * 200,
        "ü" * 200,
        "🦉" * 200,
        "/" * 200,
    ],
)
def test_each_name_is_one_folder_inside_the_storage(tmp_path: Path, name: str) -> None:
    folder = sweep_folder(tmp_path, name)
    assert folder.parent == tmp_path
    assert folder.name not in ("", ".", "..")
    folder.mkdir()
    assert folder.resolve().parent == tmp_path.resolve()


def test_different_names_are_different_folders() -> None:
    names = [
        "../up",
        "..",
        ".",
        "a/b",
        "a%2Fb",
        "%2E",
        "%2E%2E",
        " ",
        "%20",
        "a b",
        "a%20b",
        "-",
        "🦉",
        "ü" * 199,
        "ü" * 200,
        "x" * 199,
        "x" * 200,
    ]
    assert len({sweep_folder("r", name) for name in names}) == len(names)
