"""The store that a sweep names must be intact, of its stream, with its seeds, and long enough for its options."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from learners.base import ModelLearner, Setting, documented
from learners.batch import Batch
from learners.networks.architectures import EmbeddingNet, HiddenLayer
from learners.training.model import Model
from orchestrator.config.load import check_sweep
from orchestrator.errors import ConfigError
from orchestrator.plan.task_store import open_store
from streams import recipes
from streams.build import build
from streams.store.task_store import TaskStore
from tests.orchestrator.sweep_command import TINY, folder_with, run_here

RECIPE = {"name": "rainbow_digits", "tasks": 3, "train": 25, "validation": 12, "test": 12}
"""The recipe of the fixture `store`."""


def faults(store: TaskStore, **change: object) -> tuple[str, ...]:
    document = {
        "name": "s",
        "stream": RECIPE | {"store": str(store.path)},
        "learners": [{"name": "online"}],
        "seeds": 2,
    }
    with pytest.raises(ConfigError) as caught:
        open_store(check_sweep(document | change, "s.yaml"))
    return caught.value.faults


def opened(store: TaskStore, **change: object) -> str:
    """The hash of the store that a sweep with these changes opens."""
    document = {"name": "s", "stream": RECIPE | {"store": str(store.path)}, "learners": [{"name": "online"}]}
    return open_store(check_sweep(document | {"seeds": 2} | change, "s.yaml")).hash


def test_the_named_store_is_opened(store: TaskStore) -> None:
    document = {
        "name": "s",
        "stream": RECIPE | {"store": str(store.path)},
        "learners": [{"name": "online"}],
        "seeds": 3,
    }
    opened = open_store(check_sweep(document))
    assert (opened.path, opened.hash, opened.seeds) == (store.path, store.hash, [0, 1, 2])


def test_a_store_of_another_stream_without_the_seeds_is_refused(store: TaskStore) -> None:
    """With a line for each."""
    stream = RECIPE | {"train": 30, "store": str(store.path)}
    of_stream, of_seeds = faults(store, stream=stream, seeds=[1, 3, 4])
    identity = check_sweep(
        {"name": "s", "stream": stream, "learners": [{"name": "online"}], "seeds": 1}
    ).recipe.identity()
    assert of_stream == (
        f"s.yaml: stream.store: must be a store of {json.dumps(identity)} (got {json.dumps(store.manifest['recipe'])})"
    )
    assert of_seeds == (
        "s.yaml: seeds: must be among the store's seeds [0, 1, 2] (got [3, 4]); "
        f"add them: python -m streams.build rainbow_digits --out {store.path} --seeds 5"
    )


def test_a_scheduler_whose_first_decision_is_after_the_stream_is_refused(store: TaskStore) -> None:
    """The number of datapoints is known from the store: 3 tasks of 25."""
    scheduler = {"name": "pbt", "interval": 75}
    learners = [{"name": "foml", "beta1": {"uniform": [0.1, 0.2]}}]
    lines = faults(store, learners=learners, search={"samples": 4, "scheduler": scheduler})
    assert lines == ("s.yaml: search.scheduler.interval: must be below the 75 datapoints of the stream (got 75)",)


def test_a_batch_that_spans_a_whole_task_is_refused(store: TaskStore) -> None:
    """3 tasks of 25, one after the other; without boundaries no batch is refused."""
    (line,) = faults(store, batch_size=26)
    remedy = "set batch_size=25, or use longer tasks"
    assert line == f"s.yaml: batch_size: must be at most the 25 datapoints of the shortest task (got 26); {remedy}"
    for batch_size, schedule in ((25, "sequential"), (26, "markov")):
        stream = RECIPE | {"store": str(store.path), "schedule": {"name": schedule}}
        document = {"name": "s", "stream": stream, "learners": [{"name": "online"}], "seeds": 2}
        assert open_store(check_sweep(document | {"batch_size": batch_size})).hash == store.hash


def test_an_objective_that_has_no_value_on_the_stream_is_refused(store: TaskStore) -> None:
    """Markov with the lowest hazard has one task; run_one and regret, which choose nothing by it, accept it."""
    stream = RECIPE | {"store": str(store.path)}
    boundaries = (
        "s.yaml: objective: needs sharp task boundaries that all seeds share, which this stream does not have "
        "(got forward_transfer); use the schedule sequential, or choose another objective"
    )
    for schedule in ({"name": "markov", "hazard": 0.2}, {"name": "gradual", "window": 4}, {"name": "recurring"}):
        assert faults(store, stream=stream | {"schedule": schedule}, objective="forward_transfer") == (boundaries,)
    one = {"stream": stream | {"schedule": {"name": "markov", "hazard": 1e-9}}, "evaluate_past": "end"}
    document = {"name": "s", "learners": [{"name": "online"}], "seeds": 2}
    for metric in ("average_accuracy", "backward_transfer", "forgetting"):
        (line,) = faults(store, **one, objective=metric)
        assert line == (
            "s.yaml: objective: needs two tasks in the stream of each seed, and there is one with seeds [0, 1] "
            f"(got {metric}); use more tasks, or choose another objective"
        )
        open_store(check_sweep(document | one | {"objective": metric}), any_objective=True)
        open_store(check_sweep(document | {"stream": stream, "evaluate_past": "end", "objective": metric}))
    (line, _) = faults(store, **one, objective="forward_transfer")
    assert line == boundaries
    last = {"stream": stream | {"held_back": 2}, "objective": "forward_transfer"}
    assert len(faults(store, **last)) == 1
    open_store(check_sweep(document | {"stream": stream, "objective": "forward_transfer"}))


class WithoutFeatures(torch.nn.Module):
    """A linear classifier."""

    def __init__(self, image_shape: tuple[int, int, int], classes: int, outputs: int = 0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(math.prod(image_shape), outputs or classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


def test_a_network_is_tried_before_anything_starts(store: TaskStore) -> None:
    network = {"class": f"{__name__}.WithoutFeatures"}
    learners = [{"name": "foml"}, {"name": "icarl"}]
    rule = "needs features, which the network does not have (got icarl); make it a subclass of EmbeddingNet"
    assert faults(store, network=network, learners=learners) == (f"s.yaml: learners[1].name: {rule}",)
    (line,) = faults(store, network=network | {"outputs": 3})
    assert line.startswith(
        "s.yaml: network: must be a network that can be trained (must return [B, 10] for B datapoints"
    )


def test_a_network_must_name_its_hidden_layers_for_a_learner_that_replaces_units(store: TaskStore) -> None:
    learners = [{"name": "online"}, {"name": "continual_backprop"}]
    start = "s.yaml: learners[1].name: needs"
    (line,) = faults(store, network={"class": f"{__name__}.WithoutFeatures"}, learners=learners)
    assert line.startswith(f"{start} features, which the network does not have (got continual_backprop)")
    remedy = "(got continual_backprop); see docs/adding-a-network.md"
    (line,) = faults(store, network={"class": f"{__name__}.Misnamed"}, learners=learners)
    assert line == f"{start} hidden units (hidden_layers: nothing must be a module of the network) {remedy}"
    (line,) = faults(store, network={"class": f"{__name__}.Misnamed", "named": False}, learners=learners)
    assert line == f"{start} hidden units (the network names no hidden_layers) {remedy}"


class Misnamed(EmbeddingNet):
    """A network whose hidden layer names a norm that it does not have."""

    def __init__(self, image_shape: tuple[int, int, int], classes: int, named: bool = True) -> None:
        super().__init__()
        self.features = 4
        self.first, self.head = torch.nn.Linear(math.prod(image_shape), 4), torch.nn.Linear(4, classes)
        if named:
            self.hidden_layers = (HiddenLayer("first", "head", norm="nothing"),)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x.flatten(1)).relu()


class Counted(Misnamed):
    """A network that counts its passes in whole numbers, and has other features than it says."""

    def __init__(self, image_shape: tuple[int, int, int], classes: int, counts: bool = True) -> None:
        super().__init__(image_shape, classes, named=False)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.counts, self.features = counts, 5

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.get_buffer("passes").add_(1)
        return super().embed(x)


def test_a_buffer_of_whole_numbers_that_changes_is_refused(store: TaskStore) -> None:
    """No state holds it, so that a resumed trial counted from 0."""
    (line,) = faults(store, network={"class": f"{__name__}.Counted"})
    reason = "passes: a buffer must be of floats if the network changes it, got torch.int64"
    assert line.startswith(f"s.yaml: network: must be a network that can be trained ({reason})")


def test_features_of_another_number_than_the_network_says_are_refused(store: TaskStore) -> None:
    """MOCA ended in a traceback in each trial."""
    network = {"class": f"{__name__}.Counted", "counts": False}
    (line,) = faults(store, network=network, learners=[{"name": "online"}, {"name": "moca"}])
    rule = "embed must return [B, 5] for B datapoints, as many as its attribute features, got [2, 4] for 2"
    assert line == f"s.yaml: learners[1].name: needs features ({rule}) (got moca); see docs/adding-a-network.md"


def test_batch_norm_whose_statistics_would_never_move_is_refused(store: TaskStore) -> None:
    (line,) = faults(store, network={"class": f"{__name__}.Normed"})
    reason = "norm: momentum of BatchNorm1d must be a number, got None"
    assert line.startswith(f"s.yaml: network: must be a network that can be trained ({reason})")
    assert opened(store, network={"class": f"{__name__}.Normed", "tracked": False}) == store.hash


class Normed(torch.nn.Module):
    """A linear classifier on normalized pixels."""

    def __init__(
        self, image_shape: tuple[int, int, int], classes: int, tracked: bool = True, momentum: float | None = None
    ) -> None:
        super().__init__()
        pixels = math.prod(image_shape)
        self.norm = torch.nn.BatchNorm1d(pixels, momentum=momentum, track_running_stats=tracked)
        self.linear = torch.nn.Linear(pixels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x.flatten(1)))


@pytest.mark.parametrize(
    ("batch_size", "learner", "single"),
    [
        (12, {"name": "online"}, False),  # 75 datapoints: the last batch has 3
        (2, {"name": "online"}, True),  # the last batch has one
        (2, {"name": "replay"}, False),  # it is joined with replayed ones
        (12, {"name": "lwf"}, True),  # its tasks of 25 end after one datapoint of the third batch
        (5, {"name": "lwf"}, False),
        (12, {"name": "tfs"}, False),
        (12, {"name": "tfs", "update_batch": 1}, True),
        (12, {"name": "tfs", "update_batch": {"grid": [8, 1]}}, True),
        (12, {"name": "la_maml", "inner_steps": 12}, True),
        (12, {"name": "la_maml", "inner_steps": 3}, True),  # of the last batch, which has 3
        (12, {"name": "la_maml", "inner_steps": 1}, False),
    ],
)
def test_a_network_that_cannot_train_on_one_datapoint(
    store: TaskStore, batch_size: int, learner: dict[str, object], single: bool
) -> None:
    network = {"class": f"{__name__}.Normed", "momentum": 0.1}
    change = {"network": network, "batch_size": batch_size, "learners": [learner]}
    if not single:
        assert opened(store, **change) == store.hash
        return
    (line,) = faults(store, **change)
    rule = "must take no training pass of one datapoint with this network (Expected more than 1 value per channel"
    assert line.startswith(f"s.yaml: learners[0].name: {rule}")


@dataclass(frozen=True)
class Options:
    at: str = documented("update", "when the state becomes one of numpy's: never, fresh, update")
    curve: str = documented("loss", "the name of its curve")


class Counting(ModelLearner):
    """A learner that counts its datapoints in numpy."""

    options_class = Options
    state_fields = ("model", "counts")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, "adam", 0.001)
        self.counts = np.zeros(2) if options.at == "fresh" else 0.0

    def update(self, batch: Batch) -> dict[str, torch.Tensor]:
        if self.options.at == "update":
            self.counts += np.float64(len(batch))
        return {self.options.curve: self.model.learn(batch)}


def test_the_curves_of_a_learner_of_the_users_own_are_tried(store: TaskStore) -> None:
    """A curve named like a measurement replaced it: the sweep compared what the learner said of itself."""
    (line,) = faults(store, learners=[{"name": __name__, "at": "never", "curve": "online_error"}])
    rule = "Counting.update: a diagnostic must have another name than what is measured (got online_error)"
    assert line == f"s.yaml: learners[0].name: must return curves of its own: {rule} (got {__name__})"


def test_the_state_of_a_learner_of_the_users_own_is_tried(store: TaskStore) -> None:
    """A chunk file with an array or a number of numpy is written, and cannot be read."""
    learners = [{"name": __name__, "at": "fresh"}, {"name": "online"}, {"name": __name__}]
    first, second = faults(store, learners=learners)
    rule = "must have a state that can be saved: counts must be tensors, numbers of Python's, strings, lists, tuples, dicts"
    remedy = f"(got {__name__}); convert arrays with torch.as_tensor, numbers with float or int"
    assert first == f"s.yaml: learners[0].name: {rule} or objects with a state (got numpy.ndarray) {remedy}"
    assert second == f"s.yaml: learners[2].name: {rule} or objects with a state (got numpy.float64) {remedy}"
    assert opened(store, learners=[{"name": __name__, "at": "never"}]) == store.hash


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    recipe = recipes()["rainbow_digits"](tasks=3, train=50, validation=12, test=12)  # type: ignore[call-arg]
    build(recipe, [0, 1], tmp_path / "store")
    table = tmp_path / "store/seed-1/datapoints.arrow"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(bytes(content))
    folder = folder_with(tmp_path / "work", TINY)
    done = run_here(folder, "sweep.yaml", f"stream.store={tmp_path / 'store'}")
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "seed-1" in line
    assert not (folder / "results").exists()


class Dropped(Normed):
    """A network with dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nn.functional.dropout(x, 0.5, self.training))


def test_a_network_with_dropout_is_refused_in_one_line(store: TaskStore) -> None:
    """The line was torch.vmap's advice to set a flag, which a sweep does not have."""
    network = {"class": f"{__name__}.Dropped", "tracked": False}
    rule = "must be a network that can be trained (must draw no random numbers in training, as dropout does)"
    (line,) = faults(store, network=network)
    assert line.startswith(f"s.yaml: network: {rule} (got ") and line.endswith("; see docs/adding-a-network.md")
