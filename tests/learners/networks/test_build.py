"""Networks by name."""

import pytest

from learners.networks.build import build, default_for


def test_default_network_per_kind_of_datapoint() -> None:
    assert default_for(images_per_datapoint=1) == "rainbow"
    assert default_for(images_per_datapoint=2) == "siamese"


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(ValueError, match=r"network must be one of rainbow, siamese \(got resnet\)"):
        build("resnet", (3, 32, 32), 10)
