"""Plans: what is crossed, what is drawn, and what a hash stands for."""

from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.plan import make_plan, sweep_folder
from orchestrator.specification import Sweep


def sweep(learners: list[dict[str, object]], **more: object) -> Sweep:
    return config.check({"name": "p", "stream": {"name": "rainbow_digits"}, "learners": learners, "seeds": 2} | more)


def test_grids_are_crossed_in_order() -> None:
    plan = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5]}, "beta1": {"grid": [0.1, 0.2]}}]), "store")
    chosen = [(t.configuration.options["K"], t.configuration.options["beta1"]) for t in plan.trials]
    assert chosen == [(1, 0.1), (1, 0.2), (5, 0.1), (5, 0.2)]
    assert plan.trials[0].configuration.label == "foml K=1 beta1=0.1"
    assert len({t.key for t in plan.trials}) == 4


def test_draws_do_not_change_when_more_are_asked_for() -> None:
    space = [{"name": "foml", "K": {"grid": [1, 5]}, "alpha1": {"loguniform": [1e-4, 1e-2]}}]
    few = make_plan(sweep(space, search={"samples": 2}), "store")
    many = make_plan(sweep(space, search={"samples": 3}), "store")
    assert len(few.trials) == 4
    assert len(many.trials) == 6
    assert {t.key for t in few.trials} < {t.key for t in many.trials}
    drawn = [t.configuration.options["alpha1"] for t in many.trials]
    assert all(1e-4 <= value < 1e-2 for value in drawn)
    assert len(set(drawn)) == 6
    other = make_plan(sweep(space, search={"samples": 3, "seed": 1}), "store")
    assert not {t.key for t in other.trials} & {t.key for t in many.trials}


def test_samples_without_anything_to_draw_are_one_trial() -> None:
    assert len(make_plan(sweep([{"name": "online"}], search={"samples": 5}), "store").trials) == 1


def test_what_comes_twice_is_run_once() -> None:
    plan = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5, 1]}}, {"name": "foml"}]), "store")
    assert [t.configuration.options["K"] for t in plan.trials] == [1, 5]


def test_the_hash_is_of_everything_that_decides_a_curve() -> None:
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


def test_a_trial_is_a_configuration_and_its_seeds() -> None:
    one = make_plan(sweep([{"name": "foml"}]), "store").trials[0]
    two = make_plan(sweep([{"name": "foml"}], seeds=3), "store").trials[0]
    assert one.configuration.hash == two.configuration.hash
    assert one.key != two.key
    assert one.folder(Path("r")) == Path("r") / one.key


def test_the_resolved_sweep_names_every_hyper_parameter() -> None:
    resolved = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5]}}]), "store").resolved
    assert resolved["seeds"] == [0, 1]
    assert resolved["learners"][0]["K"] == {"grid": [1, 5]}
    assert resolved["learners"][0]["alpha2"] == 0.001
    assert resolved["stream"]["store"] == "store"
    assert resolved["stream"]["schedule"] == {"name": "sequential"}


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
def test_any_name_is_one_folder_inside_the_storage(tmp_path: Path, name: str) -> None:
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
