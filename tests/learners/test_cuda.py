"""Every learner on a GPU: equal to the CPU, with checkpoints that move between devices; skipped without a GPU."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learners import checkpoint, names
from learners.networks import determinism
from learners.networks.build import build
from learners.networks.network import cross_entropy
from tests.learners.test_contract import assert_same_bits, leaves, stored

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
every_learner = pytest.mark.parametrize("name", names())

STEPS = 10  # batches of five datapoints: two tasks of four batches and the start of a third


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    determinism.enable("cuda")


@pytest.fixture(params=["rainbow", "siamese"])
def worlds(request: pytest.FixtureRequest) -> Any:
    """The same data on the CPU and on the GPU."""
    world = request.getfixturevalue(request.param)
    return world, replace(world, device="cuda")


def loaded_on_the_gpu(state: dict[str, Any]) -> dict[str, Any]:
    """A state after a save and a load as in a trial's actor: all tensors on the GPU."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, map_location="cuda", weights_only=True)


def distance(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest relative distance, by norm, between two states' float tensors of the same name."""
    others = dict(leaves(b))
    apart = [
        float((value.cpu() - others[path].cpu()).norm() / value.norm().clamp_min(1e-30))
        for path, value in leaves(a)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.norm() > 1e-12
    ]
    assert apart
    return max(apart)


@every_learner
@pytest.mark.parametrize("full", [True, False], ids=["by hand", "autograd"])
def test_equals_the_cpu(worlds: Any, name: str, full: bool) -> None:
    """In float64, for two stacked seeds, state and predictions differ only by rounding.

    With SGD: where a second moment is nearly zero, Adam's derivative amplifies an error of 1e-16 to 1e-2 within five
    steps, on the CPU too.
    """
    sgd = {"online_optimizer": "sgd", "meta_optimizer": "sgd", "alpha1": 0.005, "alpha2": 0.005}
    learners = [world.quick(name, (0, 1), full=full, **sgd) for world in worlds]
    for world, learner in zip(worlds, learners, strict=True):
        world.drive(learner, 0, STEPS)
    on_cpu, on_gpu = (
        learner.predict(world.batch(70, (0, 1)).x) for world, learner in zip(worlds, learners, strict=True)
    )
    assert on_gpu.device.type == "cuda"
    assert float((on_gpu.cpu() - on_cpu).norm() / on_cpu.norm()) < 1e-7
    assert distance(learners[0].state_dict(), learners[1].state_dict()) < 1e-6


@every_learner
def test_repeated_and_resumed_runs_are_equal(worlds: Any, name: str) -> None:
    """On one GPU in float32, bit for bit, also when resumed from a state stored in the middle of a task."""
    world = replace(worlds[1], dtype=torch.float32)
    learners = [world.quick(name, (0, 1), full=True) for _ in range(2)]
    for learner in learners:
        world.drive(learner, 0, STEPS)
    assert_same_bits(stored(learners[0].state_dict()), stored(learners[1].state_dict()))
    interrupted, resumed = (world.quick(name, (0, 1), full=True) for _ in range(2))
    world.drive(interrupted, 0, 6)
    resumed.load_state_dict(loaded_on_the_gpu(interrupted.state_dict()))
    resumed.restore_seen(world.seen(6, (0, 1)))
    world.drive(resumed, 6, STEPS)
    assert_same_bits(stored(resumed.state_dict()), stored(learners[0].state_dict()))


@every_learner
def test_a_learner_trained_on_the_gpu_predicts_on_the_cpu(worlds: Any, name: str, tmp_path: Path) -> None:
    """`predict` may read a trial's checkpoint on a machine without a GPU."""
    world = replace(worlds[1], dtype=torch.float32)
    learner = world.quick(name, (0, 1), full=True)
    world.drive(learner, 0, STEPS)
    checkpoint.save(tmp_path / "learner.pt", name, learner, world.name, world.image_shape)
    x = world.batch(70, (0, 1)).x
    expected = learner.predict(x).cpu()
    actual = checkpoint.load(tmp_path / "learner.pt").predict(x.cpu())
    assert float((actual - expected).norm() / expected.norm()) < 1e-4


def test_the_recorded_gradient_of_moca_equals_the_gradient(worlds: Any) -> None:
    """The window is full at the third batch and its gradient replayed from the fifth on."""
    world = replace(worlds[1], dtype=torch.float32)
    recorded, plain = (world.learner("moca", (0, 1), window=15) for _ in range(2))
    plain._window_gradient = plain._window_gradient._work
    for step in range(STEPS):
        losses = [learner.update(world.batch(step, (0, 1)))["window_loss"] for learner in (recorded, plain)]
        assert torch.equal(*losses)
        assert torch.equal(recorded.parameters, plain.parameters)
    assert len(recorded._window_gradient._recordings) == 1


def test_a_recorded_pass_equals_the_pass(worlds: Any) -> None:
    """Replayed from the third pass on, with several passes in use: gradients, products and their count are equal."""
    world = worlds[1]
    recorded, plain = (build(world.name, world.image_shape, world.classes, device="cuda") for _ in range(2))
    plain.recorder = None
    phi, statistics = plain.initial([0, 1])
    batches = [replace(world, dtype=torch.float32).batch(step, (0, 1)) for step in range(8)]
    v = torch.randn(phi.shape, generator=torch.Generator().manual_seed(3)).cuda()
    results = []
    for network in (recorded, plain):
        passes = [network.training_pass(phi, statistics, b.x, cross_entropy(b.y), twice=True) for b in batches]
        once = [network.training_pass(phi / 2, statistics, b.x, cross_entropy(b.y)) for b in batches]
        products = [one.hessian_vector_product(v) for one in reversed(passes)]
        logits = [network.logits(phi, statistics, b.x) for b in batches]
        del passes[::2]
        again = [network.training_pass(phi * 2, statistics, b.x, cross_entropy(b.y), twice=True) for b in batches]
        active = [network.training_pass(phi, statistics, b.x, cross_entropy(b.y), activity=True) for b in batches]
        gradients = [p.gradient for p in [*passes, *once, *again, *active]]
        results.append([*gradients, *(p.loss for p in passes), *(p.activity for p in active), *products, *logits])
        assert network.gradient_evaluations == (4 * 8 + 2 * 8) * world.batch_size
    assert len(recorded.recorder._free) == 3
    for actual, expected in zip(*results, strict=True):
        assert bool(expected.abs().sum() > 0)
        assert torch.equal(actual, expected)
