"""The rules of a sweep's keys, each reported with its path, and the properties of a checked sweep."""

import pytest

from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError

GOOD = {"name": "mine", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 2}


def test_a_sweep_has_its_defaults() -> None:
    sweep = check_sweep(GOOD)
    assert (sweep.name, sweep.experiment, sweep.network) == ("mine", "mine", "rainbow")
    assert sweep.seeds == [0, 1]
    assert sweep.document.batch_size == 10
    assert sweep.threads == 1


def test_seeds_may_be_a_list() -> None:
    assert check_sweep(GOOD | {"seeds": [7, 3]}).seeds == [7, 3]


def test_properties_of_a_sweep_follow_its_source() -> None:
    change = {"tracking": {"experiment": "thesis"}, "stream": {"name": "online_cifar100"}, "resources": {"cpus": 3.5}}
    sweep = check_sweep(GOOD | change)
    assert (sweep.name, sweep.experiment, sweep.network, sweep.threads) == ("mine", "thesis", "siamese", 3)
    assert check_sweep(GOOD | {"resources": {"cpus": 0.5}}).threads == 1


def test_drawn_spaces_exclude_grids_and_fixed_values() -> None:
    """Grids are crossed and distributions are drawn from; other values are fixed."""
    learner = {"name": "foml", "K": {"grid": [1, 5]}, "beta1": {"uniform": [0.1, 0.2]}, "alpha1": 0.3}
    (spec,) = check_sweep(GOOD | {"learners": [learner]}).learners
    assert (set(spec.spaces), set(spec.drawn_spaces)) == ({"K", "beta1"}, {"beta1"})
    assert spec.fixed["alpha1"] == 0.3 and not {"K", "beta1"} & spec.fixed.keys()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seeds": []}, "seeds: must be a list of different numbers of at least 0, and not empty (got [])"),
        ({"seeds": 0}, "seeds: must be at least 1, or a list of seeds (got 0)"),
        ({"seeds": [1, 1]}, "seeds: must be a list of different numbers of at least 0, and not empty (got [1, 1])"),
        ({"batch_size": "ten"}, "batch_size: must be a whole number (got ten)"),
        ({"batch_size": True}, "batch_size: must be a whole number (got True)"),
        ({"batchsize": 5}, "batchsize: unknown key (got 5); did you mean batch_size?"),
        ({"scheduler": "asha"}, "scheduler: unknown key (got asha); did you mean search.scheduler?"),
        ({"gpu_hour": 1}, "gpu_hour: unknown key (got 1); did you mean price.gpu_hour?"),
        ({"seed": 5}, "seed: unknown key (got 5); did you mean seeds?"),
        ({"learners": []}, "learners: must not be empty (got [])"),
        ({"resources": {"gpus": -1}}, "resources.gpus: must be greater than or equal to 0 (got -1)"),
        ({"resources": {"pack": 0}}, "resources.pack: must be auto, or a whole number from 1 to 10000 (got 0)"),
        ({"resources": {"pack": "all"}}, "resources.pack: must be auto, or a whole number from 1 to 10000 (got all)"),
    ],
)
def test_one_fault_is_one_line(change: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sweep(GOOD | change, "mine.yaml")
    assert caught.value.faults == (f"mine.yaml: {expected}",)
