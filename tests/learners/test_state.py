"""A state is built from the attributes that a class names; the keys of stored states never change."""

import io
from collections import Counter, OrderedDict, defaultdict, deque
from typing import NamedTuple

import numpy as np
import pytest
import torch

from learners import names
from learners.state import StateError, Stateful

MODEL = ("phi", "statistics", "moments")
BUDGET = ("seen", "owed")
REPLAY = {"replay": ("generators",)}
STATES = {
    "continual_backprop": {"model": MODEL, "utility": None, "age": None, "due": None, "draws": None},
    "der": {"model": MODEL, "draws": None, "positions": None, "logits": None, "seen": None, **REPLAY},
    "foml": {
        "phi": None,
        "theta": None,
        "statistics": None,
        "moments": None,
        "meta_moments": None,
        "steps": None,
        "window": ("phi", "theta", "statistics", "before", "ids", "y"),
        **REPLAY,
    },
    "ftl": {
        "leader": MODEL,
        "adapted": MODEL,
        "budget": BUDGET,
        "leader_budget": BUDGET,
        "leader_updates_due": None,
        "task_start": None,
        **REPLAY,
    },
    "ftml": {
        "leader": MODEL,
        "adapted": MODEL,
        "tasks": None,
        "budget": BUDGET,
        "meta_updates_due": None,
        "starts": None,
        **REPLAY,
    },
    "ewc": {"model": MODEL, "fisher": None, "anchor": None, "recent": None, "labels": None},
    "icarl": {
        "model": MODEL,
        "teacher": MODEL,
        "budget": BUDGET,
        "task_start": None,
        "known": None,
        "current": None,
        "exemplars": None,
        "means": None,
        **REPLAY,
    },
    "l2_init": {"model": MODEL, "initial": None},
    "la_maml": {"phi": None, "rates": None, "statistics": None, **REPLAY},
    "lwf": {"model": MODEL, "teacher": MODEL, "task": None},
    "moca": {
        "parameters": None,
        "statistics": None,
        "moments": None,
        "origin": None,
        "unit": None,
        "batches": None,
        "pretrained": None,
        "seen": None,
        "belief": ("log_weight", "start", "counts", "sums", "settled_counts", "settled_sums"),
        "window": ("y", "ids", "z", "first"),
    },
    "online": {"model": MODEL},
    "replay": {"model": MODEL, **REPLAY},
    "shrink_perturb": {"model": MODEL, "noise": None, "batches": None},
    "tfs": {"model": MODEL, "budget": BUDGET, "task": None, "task_start": None, **REPLAY},
    "toe": {"model": MODEL, "budget": BUDGET, **REPLAY},
}
"""Key → keys of the nested state. Chunk files and checkpoints of earlier versions hold these: renaming breaks them."""


@pytest.mark.parametrize("name", names())
def test_keys_of_a_stored_state(rainbow, name: str) -> None:
    learner = rainbow.quick(name)
    rainbow.drive(learner, 0, 6, predict=False)
    state = learner.state_dict()
    assert state.keys() == STATES[name].keys()
    for key, nested in STATES[name].items():
        value = state[key][0] if key == "window" and isinstance(state[key], list) else state[key]
        assert nested is None or set(value) == set(nested), key


class Pair(NamedTuple):
    left: torch.Tensor
    right: int


class Inner(Stateful):
    state_fields = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Outer(Stateful):
    state_fields = ("inner", "pair", "positions", "means")

    def __init__(self) -> None:
        self.inner, self.pair = Inner(), Pair(torch.zeros(2), 0)
        self.positions, self.means = [[1], [2, 3]], None


def test_state_of_nested_objects_tuples_and_lists() -> None:
    source, target = Outer(), Outer()
    source.inner.count, source.pair, source.means = 3, Pair(torch.ones(2), 5), (torch.ones(1),)
    state = source.state_dict()
    source.positions[0].append(9)  # a later change of the source
    assert state["inner"] == {"count": 3}
    assert type(state["pair"]) is tuple  # a file read with weights_only holds no class
    inner = target.inner
    target.load_state_dict(state)
    assert target.inner is inner
    assert target.inner.count == 3
    assert isinstance(target.pair, Pair)
    assert torch.equal(target.pair.left, torch.ones(2))
    assert target.pair.right == 5
    assert target.positions == [[1], [2, 3]]
    assert torch.equal(target.means[0], torch.ones(1))


def test_a_missing_attribute_is_named() -> None:
    state = Outer().state_dict()
    del state["positions"]
    with pytest.raises(KeyError, match="positions"):
        Outer().load_state_dict(state)


@pytest.mark.parametrize(
    ("value", "where", "kind"),
    [
        (np.zeros(2), "means", "numpy.ndarray"),
        (np.float64(1), "means", "numpy.float64"),
        ([1, np.int64(3)], "means", "numpy.int64"),
        ({"a": [np.zeros(2)]}, "means['a']", "numpy.ndarray"),
        ({np.int64(1): 2}, "a key of means", "numpy.int64"),
        (np.random.default_rng(0), "means", "numpy.random._generator.Generator"),
        (deque([1]), "means", "collections.deque"),
        (defaultdict(int), "means", "collections.defaultdict"),
        (frozenset({1}), "means", "frozenset"),
    ],
)
def test_a_value_that_no_file_gives_back_is_refused(value: object, where: str, kind: str) -> None:
    outer = Outer()
    outer.means = value
    with pytest.raises(StateError) as caught:
        outer.state_dict()
    allowed = "tensors, numbers of Python's, strings, lists, tuples, dicts or objects with a state"
    assert str(caught.value) == f"{where} must be {allowed} (got {kind})"


@pytest.mark.parametrize(
    "value",
    [
        True, 1, 0.5, 1j, "s", b"s", None, torch.float32, torch.device("cpu"), torch.Size([2]), {1, 2},
        OrderedDict(a=[1]), Counter("aab"), {"a": {"b": (1, None)}}, torch.nn.Parameter(torch.zeros(2)),
    ],
)  # fmt: skip
def test_every_other_value_is_read_as_it_was_written(value: object) -> None:
    outer, file = Outer(), io.BytesIO()
    outer.means = value
    torch.save(outer.state_dict(), file)
    file.seek(0)
    read = torch.load(file, weights_only=True)["means"]
    assert torch.equal(read, value) if isinstance(value, torch.Tensor) else read == value
