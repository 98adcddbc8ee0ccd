"""The examples in the docstrings of `streams` run."""

import doctest
import importlib
import pkgutil

import pytest

import streams


@pytest.mark.parametrize(
    "name", ["streams", *(info.name for info in pkgutil.walk_packages(streams.__path__, "streams."))]
)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
