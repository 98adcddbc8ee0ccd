"""What two sweeps of one name must share."""

from typing import Any

import pytest

from orchestrator.plan import identity

SWEEP = {"name": "s", "stream": {"name": "rainbow_digits"}, "network": "rainbow", "batch_size": 10, "objective": {}}


def lines(earlier: Any, now: Any) -> list[str]:
    return identity.differences("s", SWEEP | {"network": earlier}, SWEEP | {"network": now}, "choose another name")


@pytest.mark.parametrize(
    "notations",
    [
        ["rainbow", {"name": "rainbow"}, {"name": "rainbow", "init": "default"}],
        [{"name": "mlp", "layers": 3}, {"name": "mlp", "layers": 3, "hidden": 256}, '{"layers": 3, "name": "mlp"}'],
        [{"class": "a.B", "width": 3}, {"init": "default", "class": "a.B", "width": 3}],
    ],
)
def test_a_network_is_the_same_in_each_notation(notations: list[Any]) -> None:
    for earlier in notations:
        for now in notations:
            assert lines(earlier, now) == []
        assert len(lines(earlier, "resnet18")) == len(lines({"name": "rainbow", "init": "he"}, earlier)) == 1


def test_every_difference_is_a_line() -> None:
    assert lines({"name": "mlp"}, {"name": "mlp", "layers": 3}) == [
        's: network: another sweep has this name, with {"name":"mlp"} (got {"layers":3,"name":"mlp"}); choose another name'
    ]
    assert lines(None, "rainbow") == [
        's: network: another sweep has this name, with null (got "rainbow"); choose another name'
    ]
