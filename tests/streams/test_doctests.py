"""The examples in the docstrings of `streams` are right."""

import doctest
import importlib
import pkgutil

import pytest

import streams


@pytest.mark.parametrize(
    "name", ["streams", *(f"streams.{info.name}" for info in pkgutil.iter_modules(streams.__path__))]
)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
