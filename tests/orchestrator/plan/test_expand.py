"""Grids are crossed and the rest is drawn; a larger sweep keeps the trials of a smaller one."""

from orchestrator.config.load import check_sweep
from orchestrator.config.schema import Sweep
from orchestrator.plan.expand import make_plan


def sweep(learners: list[dict[str, object]], **more: object) -> Sweep:
    return check_sweep({"name": "p", "stream": {"name": "rainbow_digits"}, "learners": learners, "seeds": 2} | more)


def test_grids_are_crossed_in_order() -> None:
    plan = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5]}, "beta1": {"grid": [0.1, 0.2]}}]), "store")
    values = [(t.configuration.options["K"], t.configuration.options["beta1"]) for t in plan.trials]
    assert values == [(1, 0.1), (1, 0.2), (5, 0.1), (5, 0.2)]
    assert plan.trials[0].configuration.label == "foml K=1 beta1=0.1"
    assert len({t.key for t in plan.trials}) == 4


def test_draws_do_not_change_with_the_number_of_samples() -> None:
    space = [{"name": "foml", "K": {"grid": [1, 5]}, "alpha1": {"loguniform": [1e-4, 1e-2]}}]
    few = make_plan(sweep(space, search={"samples": 2}), "store")
    many = make_plan(sweep(space, search={"samples": 3}), "store")
    assert len(few.trials) == 4
    assert len(many.trials) == 6
    assert {t.key for t in few.trials} < {t.key for t in many.trials}
    draws = [t.configuration.options["alpha1"] for t in many.trials]
    assert all(1e-4 <= value < 1e-2 for value in draws)
    assert draws[:3] == draws[3:] and len(set(draws)) == 3  # K=1 and K=5 are compared at the same draws
    other = make_plan(sweep(space, search={"samples": 3, "seed": 1}), "store")
    assert not {t.key for t in other.trials} & {t.key for t in many.trials}


DRAWN: dict[str, object] = {"name": "foml", "beta1": {"loguniform": [1e-3, 1.0]}}


def keys(*learners: dict[str, object], **search: object) -> list[str]:
    plan = make_plan(sweep([*learners], search={"samples": 3} | search), "store")
    return [trial.key for trial in plan.trials]


def test_the_draws_of_a_learner_depend_on_no_other_part_of_the_sweep() -> None:
    before = keys(DRAWN)
    assert len(before) == 3
    online: dict[str, object] = {"name": "online"}
    assert keys(DRAWN, online)[:3] == keys(online, DRAWN)[1:] == before
    assert (
        keys(DRAWN | {"K": {"grid": [5, 10]}})[:3] == keys(DRAWN | {"K": {"grid": [5]}}) == before
    )  # 5 is the default
    both = make_plan(sweep([DRAWN | {"alpha1": DRAWN["beta1"]}], search={"samples": 3}), "store").trials
    alone = make_plan(sweep([DRAWN], search={"samples": 3}), "store").trials
    draws = [[trial.configuration.options["beta1"] for trial in trials] for trials in (both, alone)]
    assert draws[0] == draws[1]
    assert draws[0] != [trial.configuration.options["alpha1"] for trial in both]


def test_two_equal_entries_are_run_once() -> None:
    assert keys(DRAWN, DRAWN | {"K": {"grid": [5, 10]}}) == keys(DRAWN | {"K": {"grid": [5, 10]}})
    assert keys({"name": "online", "alpha1": {"choice": [1, 1.0]}}) == keys({"name": "online", "alpha1": 1})
    search = {"algorithm": "optuna", "samples": 3}
    twice = make_plan(sweep([DRAWN, DRAWN], search=search), "store")
    assert (len(twice.studies), twice.size) == (1, 3)
    search = {"scheduler": "pbt", "samples": 3}
    twice = make_plan(sweep([DRAWN, DRAWN], search=search), "store")
    assert (len(twice.populations), twice.size) == (1, 3)
    (population,) = make_plan(sweep([{"name": "online"}, DRAWN], search=search), "store").populations
    assert population.members == twice.populations[0].members


def test_a_fixed_value_that_becomes_a_grid_keeps_its_study() -> None:
    search = {"algorithm": "optuna", "samples": 3}
    (fixed,) = make_plan(sweep([DRAWN | {"K": 5}], search=search), "store").studies
    five, ten = make_plan(sweep([DRAWN | {"K": {"grid": [5, 10]}}], search=search), "store").studies
    assert five.key == fixed.key != ten.key


def test_a_value_has_one_hash_in_each_notation() -> None:
    one = keys({"name": "foml", "beta1": 1})
    assert keys({"name": "foml", "beta1": {"grid": [1, 10]}})[:1] == one
    assert keys({"name": "foml", "beta1": {"grid": [1.0]}}) == keys({"name": "foml", "beta1": {"choice": [1]}}) == one
    trials = make_plan(sweep([{"name": "foml", "beta1": {"randint": [1, 2]}}], search={"samples": 8}), "store").trials
    assert sorted(trial.key for trial in trials) == sorted([*one, *keys({"name": "foml", "beta1": 2.0})])


def test_the_default_of_a_later_option_has_one_hash_in_each_notation() -> None:
    """Such an option is not recorded where it has its default, and its default is the same trial in a search."""
    online = {"name": "online"}
    two = online | {"updates_per_batch": 2}
    searched: dict[str, object] = online | {"updates_per_batch": {"grid": [1, 2]}}
    assert keys(online)[0].startswith("c98e3be06779-")  # as before these options could be searched
    assert keys(searched) == keys(online, searched) == keys(searched, online) == [*keys(online), *keys(two)]
    drawn = keys(online | {"updates_per_batch": {"choice": [1, 2]}}, samples=8)
    assert sorted(drawn) == sorted(keys(searched))
    (trial, _) = make_plan(sweep([searched]), "store").trials
    assert trial.configuration.options["updates_per_batch"] == 1
    foml: dict[str, object] = {
        "name": "foml",
        "pull": {"grid": ["coupled", "decoupled"]},
        "online_replay": {"grid": [False]},
    }
    assert keys(foml) == [*keys({"name": "foml"}), *keys({"name": "foml", "pull": "decoupled"})]
    search = {"algorithm": "optuna", "samples": 3}
    (alone,) = make_plan(sweep([DRAWN], search=search), "store").studies
    first, _ = make_plan(sweep([DRAWN | {"meta_batches": {"grid": [1, 2]}}], search=search), "store").studies
    assert first.key == alone.key


def test_the_hash_of_a_population_is_of_all_that_determines_its_curves() -> None:
    """The objective determines which member copies which: two objectives are two populations."""
    learners = [{"name": "foml", "alpha1": {"loguniform": [1e-4, 1e-2]}}]

    def population(**more: object) -> str:
        search = {"samples": 4, "scheduler": "pbt"}
        (one,) = make_plan(sweep(learners, **({"search": search} | more)), "store").populations
        return one.hash

    others = [
        population(objective={"metric": "online_error"}),
        population(seeds=3),
        population(search={"samples": 5, "scheduler": "pbt"}),
        population(search={"samples": 4, "scheduler": {"name": "pbt", "quantile": 0.5}}),
    ]
    assert len({population(), *others}) == 5
    assert population(objective={"metric": "cumulative_error"}) == population()


def test_the_labels_of_two_populations_of_one_learner_differ() -> None:
    """By their spaces, where fixed options do not distinguish them."""

    def labels(*learners: dict[str, object]) -> list[str]:
        plan = make_plan(sweep([*learners], search={"samples": 2, "scheduler": "pbt"}), "store")
        return [trial.configuration.label for trial in plan.trials]

    rate = {"name": "foml", "alpha1": {"uniform": [0.001, 0.01]}}
    assert labels(rate) == labels(rate, rate) == ["foml member 1", "foml member 2"]
    assert labels({"name": "foml"}, rate) == ["foml", *labels(rate)]
    assert labels(rate, rate | {"K": 3}) == [*labels(rate), "foml K=3 member 1", "foml K=3 member 2"]
    assert labels(rate, DRAWN, DRAWN | {"K": 3}) == [
        "foml alpha1=uniform(0.001, 0.01) member 1",
        "foml alpha1=uniform(0.001, 0.01) member 2",
        "foml beta1=loguniform(0.001, 1.0) member 1",
        "foml beta1=loguniform(0.001, 1.0) member 2",
        "foml K=3 member 1",
        "foml K=3 member 2",
    ]


def test_samples_without_anything_to_draw_are_one_trial() -> None:
    assert len(make_plan(sweep([{"name": "online"}], search={"samples": 5}), "store").trials) == 1


def test_duplicates_in_a_grid_are_run_once() -> None:
    plan = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5, 1]}}, {"name": "foml"}]), "store")
    assert [t.configuration.options["K"] for t in plan.trials] == [1, 5]


def test_the_resolved_sweep_names_every_hyper_parameter() -> None:
    resolved = make_plan(sweep([{"name": "foml", "K": {"grid": [1, 5]}}]), "store").resolved
    assert resolved["seeds"] == [0, 1]
    assert resolved["learners"][0]["K"] == {"grid": [1, 5]}
    assert resolved["learners"][0]["alpha2"] == 0.001
    assert resolved["stream"]["store"] == "store"
    assert resolved["stream"]["schedule"] == {"name": "sequential"}


def test_options_of_the_streams_network_are_recorded_with_its_name() -> None:
    """So that the sweep is the same one if its file names the network later, and `foml show` names it."""
    online: list[dict[str, object]] = [{"name": "online"}]
    plans = [
        make_plan(sweep(online, network=each), "store") for each in ({"init": "he"}, {"name": "rainbow", "init": "he"})
    ]
    assert [plan.resolved["network"] for plan in plans] == [{"name": "rainbow", "init": "he"}] * 2
    assert plans[0].trials[0].key == plans[1].trials[0].key
    assert make_plan(sweep(online, network={"init": "default"}), "store").resolved["network"] == {
        "name": "rainbow", "init": "default",
    }  # fmt: skip
