"""Grids are crossed, the rest is drawn, and more of either leaves what there was as it was."""

from orchestrator import config
from orchestrator.planning import make_plan
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


def test_the_resolved_sweep_names_every_hyper_parameter() -> None:
    resolved = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5]}}]), "store").resolved
    assert resolved["seeds"] == [0, 1]
    assert resolved["learners"][0]["K"] == {"grid": [1, 5]}
    assert resolved["learners"][0]["alpha2"] == 0.001
    assert resolved["stream"]["store"] == "store"
    assert resolved["stream"]["schedule"] == {"name": "sequential"}
