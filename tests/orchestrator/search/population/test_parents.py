"""A state that a member had copied and that is on disk no more is learned again, bit for bit. No Ray."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol import online
from orchestrator.search.population import parents
from orchestrator.search.population.segments import Stage
from orchestrator.storage import trial_files
from streams.store.task_store import TaskStore
from tests.learners.test_contract import assert_same_bits
from tests.orchestrator.protocol_sweep import flip

LEARNERS = [("foml", "alpha1", {"K": 2, "beta1": 0.1}), ("tfs", "alpha", {"updates_per_task": 6})]
"""One whose window begins anew at a copy, and one that is told of boundaries; which option changes."""
WAYS = {
    "a": (Stage(0, {"rate": 0.01}), Stage(4, {"rate": 0.02}, "b"), Stage(6, {"rate": 0.08}, "c")),
    "b": (Stage(0, {"rate": 0.03}), Stage(2, {"rate": 0.04}, "c"), Stage(6, {"rate": 0.05}, "a")),
    "c": (Stage(0, {"rate": 0.06}), Stage(4, {"rate": 0.07}, "a")),
}
"""Rounds of 2 batches: b copied c, then a copied b, and b copies a in the end."""
ALL = range(1, 7)


class Population:
    """Trained by hand as actors do it: a chunk file after every batch, and every round entered from a file."""

    def __init__(self, store: TaskStore, root: Path, learner: str, rate: str, options: dict[str, float]) -> None:
        self._store, self.root, self._learner, self._rate, self._options = store, root, learner, rate, options
        for stop in (2, 4, 6):
            for key in WAYS:
                self._round(key, stop)

    def made(self, values: dict[str, Any]) -> online.OnlineProtocol:
        return online.assemble(self._store, self._learner, self._options | {self._rate: values["rate"]}, [0, 1])

    def newest(self, member: str, batches: int) -> trial_files.Chunk | None:
        return trial_files.load_at_most(self.root / member, batches)

    def file(self, member: str, batches: int) -> Path:
        (path,) = (self.root / member).glob(f"chunk-{batches:08d}-*.pt")
        return path

    def _round(self, key: str, stop: int) -> None:
        stage = max((stage for stage in WAYS[key] if stage.at < stop), key=lambda stage: stage.at)
        run, done = self.made(stage.values), trial_files.newest(self.root / key)
        if done is not None and stage.donor and stage.at == stop - 2:
            donor = self.newest(stage.donor, stage.at)
            assert donor is not None
            run.load_with_new_options(donor.state, done.curves)
        elif done is not None:
            run.load_state_dict(done.state, done.curves)
        attempt = trial_files.claim(self.root / key)
        while run.batches < stop:
            run.advance(1)
            trial_files.write(self.root / key, attempt, run.state_dict(), run.curves, False, keep=range(8))


@pytest.fixture(scope="module", params=LEARNERS, ids=lambda learner: learner[0])
def trained(request: pytest.FixtureRequest, store: TaskStore, tmp_path_factory: pytest.TempPathFactory) -> Population:
    return Population(store, tmp_path_factory.mktemp(request.param[0]), *request.param)


@pytest.fixture
def population(trained: Population) -> Iterator[Population]:
    """The same, and whole again afterwards."""
    before = {path: path.read_bytes() for path in trained.root.glob("*/*")}
    yield trained
    for path, content in before.items():
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("lost", "since"),
    [
        ({}, None),
        ({"a": [6]}, "batch 5 of a"),
        ({"a": [5, 6]}, "batch 4 of b"),  # a's own of batch 4 is of before its copy
        ({"a": ALL, "b": [4]}, "batch 3 of b"),
        ({"a": [5, 6], "b": [3, 4]}, "batch 2 of c"),
        ({"a": ALL, "b": ALL, "c": [2]}, "batch 1 of c"),
        ({"a": ALL, "b": ALL, "c": ALL}, "the beginning of c"),
    ],
)
def test_a_state_is_learned_again_from_what_there_is(
    population: Population, lost: dict[str, list[int]], since: str | None
) -> None:
    expected = population.newest("a", 6)
    assert expected is not None and expected.batches == 6
    for member, batches in lost.items():
        for at in batches:
            (flip if at % 2 else Path.unlink)(population.file(member, at))
    left = {path: path.read_bytes() for path in population.root.glob("*/*")}
    told: list[str] = []
    state = parents.state_of("a", 6, WAYS, population.newest, population.made, told.append, 3)
    assert_same_bits(state, expected.state)
    line = f"the state of a at batch 6 is on disk no more: learned again from {since} on"
    assert told == ([] if since is None else [line])
    assert {path: path.read_bytes() for path in population.root.glob("*/*")} == left


def test_one_goes_on_from_it_as_from_the_file(population: Population) -> None:
    """Also where the way leads back to the member itself: b copies a, which had copied b."""
    ends = []
    for lost in (False, True):
        if lost:
            for path in population.root.glob("*/chunk-*"):
                path.unlink()
        else:
            own = population.newest("b", 6)
            assert own is not None
        run = population.made(WAYS["b"][-1].values)
        state = parents.state_of("a", 6, WAYS, population.newest, population.made, lambda line: None, 4)
        run.load_with_new_options(state, own.curves.since(0))
        ends.append((run.advance(2).by_batch["online_loss"].tolist(), run.state_dict()))
    assert_same_bits(ends[1], ends[0])
