"""What every learner keeps to, on both networks. A learner's file is found by its name: a new one is tested at once."""

import gc
import io
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learners import Batch, Learner, learner_class, names
from learners.networks.architectures import EmbeddingNet

pytestmark = pytest.mark.parametrize("name", names())

MIDDLE = 6  # two batches into the second task of four


@pytest.fixture(params=["rainbow", "siamese"])
def world(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in a state that is neither a dict nor a sequence."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, state


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """The state after a journey through a file that may hold tensors, numbers, strings, lists and dicts only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same_bits(a: Any, b: Any) -> None:
    a, b = dict(leaves(a)), dict(leaves(b))
    assert a.keys() == b.keys()
    for path, value in a.items():
        same = torch.equal(value, b[path]) if isinstance(value, Tensor) else value == b[path]
        assert same, path


def resumed(world: Any, name: str, learner: Learner, steps: int, **kwargs: Any) -> Learner:
    """Another learner that goes on where this one is after that many steps."""
    other = world.quick(name, learner.setting.seeds, **kwargs)
    other.load_state_dict(stored(learner.state_dict()))
    other.restore_seen(world.seen(steps, learner.setting.seeds))
    return other


def tiny(world: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The same with pictures next to the smallest that the network takes, of odd sides: for it in its full width."""
    return replace(world, image_shape=(1, 17, 16) if world.name == "rainbow" else (1, 9, 12), dtype=dtype)


def test_predict_changes_nothing(world: Any, name: str) -> None:
    learner = world.quick(name, (0, 1))
    world.drive(learner, 0, MIDDLE)
    before, x = stored(learner.state_dict()), world.batch(70, (0, 1)).x
    shared, first = torch.get_rng_state(), learner.predict(x)
    learner.predict(world.batch(71, (0, 1), count=3).x)
    assert torch.equal(learner.predict(x), first)
    assert torch.equal(torch.get_rng_state(), shared)
    assert not first.requires_grad
    assert_same_bits(learner.state_dict(), before)


def test_shapes(world: Any, name: str) -> None:
    """Predictions [R, B, C] for any B, a number per replicate in each diagnostic; the full network in float32."""
    world = replace(world, dtype=torch.float32)
    learner = world.quick(name, (0, 1, 2), full=True)
    made = world.drive(learner, 0, 5, predict=False)
    for count in (1, 5, 12):
        logits = learner.predict(world.batch(70, (0, 1, 2), count=count).x)
        assert logits.shape == (3, count, world.classes)
        assert logits.dtype == torch.float32
    assert any(made)
    assert {tuple(value.shape) for one in made for value in one.values()} == {(3,)}


def test_options_are_frozen_and_described(name: str) -> None:
    options = learner_class(name).options_class()
    for option in fields(options):
        assert len(option.metadata["description"]) > 3, option.name
        with pytest.raises(AttributeError):
            setattr(options, option.name, 1)


def assert_all_finite(learner: Learner, made: list[dict[str, Tensor]], x: Tensor) -> None:
    assert bool(torch.isfinite(learner.predict(x)).all())
    for one in made:
        for key, value in one.items():
            assert bool(torch.isfinite(value).all()), key


def test_finite_on_black_pictures(world: Any, name: str) -> None:
    """Dead units, batch variances of zero, pairs of equal pictures: two tasks of nothing else, in float32."""
    world = replace(world, dtype=torch.float32)
    world.pictures[:] = 0
    learner = world.quick(name)
    made = world.drive(learner, 0, 10)
    assert_all_finite(learner, made, world.batch(70).x)


def test_finite_on_logits_300_apart(world: Any, name: str) -> None:
    """exp(300) is beyond float32: the first class leads by 300 whatever the picture."""
    make = world.make

    def far_apart() -> EmbeddingNet:
        module = make()
        forward = module.forward

        def shifted(x: Tensor, features_only: bool = False) -> Tensor:
            out = forward(x, features_only)
            return out if features_only else out + 300 * (torch.arange(out.shape[-1]) == 0)

        module.forward = shifted
        return module

    world = replace(world, make=far_apart, dtype=torch.float32)
    learner = world.quick(name)
    network, x = learner.setting.network, world.batch(70).x
    gap = network.logits(*network.initial([0]), x).sort().values.diff()[..., -1]
    assert float(gap.min()) > 290
    assert_all_finite(learner, world.drive(learner, 0, 10), x)


def assert_close_by_norm(alone: Any, stack: Any, r: int, path: str = "") -> int:
    """Every float tensor of the state of seed r alone, against its part of the stack's; how many there were."""
    if isinstance(alone, dict):
        assert alone.keys() == stack.keys(), path
        return sum(assert_close_by_norm(alone[key], stack[key], r, f"{path}.{key}") for key in alone)
    if isinstance(alone, list | tuple):
        if len(alone) == 1 and len(stack) == 3:  # one per replicate
            return assert_close_by_norm(alone[0], stack[r], r, f"{path}[{r}]")
        assert len(alone) == len(stack), path
        pairs = enumerate(zip(alone, stack, strict=True))
        return sum(assert_close_by_norm(a, b, r, f"{path}[{index}]") for index, (a, b) in pairs)
    if isinstance(alone, Tensor):
        part = stack[r : r + 1] if len(alone) == 1 and len(stack) == 3 else stack
        assert alone.shape == part.shape, path
        if alone.is_floating_point():
            assert float((alone - part).norm()) <= 1e-9 * float(alone.norm()), path
            return 1
        assert torch.equal(alone, part), path
        return 0
    assert alone == stack, path
    return 0


@pytest.mark.parametrize(("full", "steps"), [(False, 50), (True, 6)], ids=["general", "hand-written"])
def test_a_stack_of_three_equals_each_seed_alone(world: Any, name: str, full: bool, steps: int) -> None:
    seeds, world = (0, 5, 9), tiny(world, torch.float64) if full else world
    stack = world.quick(name, seeds, full)
    world.drive(stack, 0, steps, predict=False)
    together = stack.predict(world.batch(70, seeds).x)
    for r, seed in enumerate(seeds):
        alone = world.quick(name, (seed,), full)
        world.drive(alone, 0, steps, predict=False)
        logits = alone.predict(world.batch(70, (seed,)).x)
        assert float((logits[0] - together[r]).norm()) <= 1e-9 * float(logits.norm())
        assert assert_close_by_norm(alone.state_dict(), stack.state_dict(), r) > 0


BOTH = pytest.mark.parametrize("full", [False, True], ids=["general", "hand-written"])
"""The general network in float64, and the hand-written one in its full width in float32, as sweeps have it."""


@BOTH
def test_saved_in_the_middle_of_a_task_equals_uninterrupted(world: Any, name: str, full: bool) -> None:
    world = tiny(world) if full else world
    whole = world.quick(name, (0, 1), full)
    world.drive(whole, 0, MIDDLE)
    other = resumed(world, name, whole, MIDDLE, full=full)
    x = world.batch(70, (0, 1)).x
    assert torch.equal(other.predict(x), whole.predict(x))
    assert_same_bits(other.state_dict(), whole.state_dict())
    stop = 9 if full else 13
    expected, made = world.drive(whole, MIDDLE, stop), world.drive(other, MIDDLE, stop)
    assert_same_bits(made, expected)
    assert torch.equal(other.predict(x), whole.predict(x))
    assert_same_bits(other.state_dict(), whole.state_dict())


@BOTH
def test_saved_between_two_tasks_equals_uninterrupted(world: Any, name: str, full: bool) -> None:
    world = tiny(world) if full else world
    boundary = (1 if full else 2) * world.batches_per_task
    whole = world.quick(name, (0, 1), full)
    world.drive(whole, 0, boundary)
    other = resumed(world, name, whole, boundary, full=full)
    stop = boundary + (2 if full else 3)
    assert_same_bits(world.drive(other, boundary, stop), world.drive(whole, boundary, stop))
    assert_same_bits(other.state_dict(), whole.state_dict())


def poison(state: Any, seed: int) -> int:
    """NaN for one seed of three in every float matrix [3, many] of a state; in how many."""
    if isinstance(state, dict):
        return sum(poison(part, seed) for part in state.values())
    if isinstance(state, list | tuple):
        return sum(poison(part, seed) for part in state)
    if (
        not isinstance(state, Tensor)
        or not state.is_floating_point()
        or state.ndim != 2
        or len(state) != 3
        or state.shape[1] < 100
    ):
        return 0
    state[seed] = math.nan
    return 1


def test_nan_in_one_seed_never_reaches_the_others(world: Any, name: str) -> None:
    """Of the hand-written networks in float32; the others' numbers are those of the same stack without the NaN."""
    world, seeds = tiny(world), (0, 1, 2)
    well = world.quick(name, seeds, full=True)
    world.drive(well, 0, MIDDLE)
    state = stored(well.state_dict())
    assert poison(state, 1) > 0
    ill = world.quick(name, seeds, full=True)
    ill.load_state_dict(state)
    ill.restore_seen(world.seen(MIDDLE, seeds))
    lost = False
    for step in range(MIDDLE, MIDDLE + 4):  # over the boundary after the next two
        expected, made = world.drive(well, step, step + 1), world.drive(ill, step, step + 1)
        x = world.batch(70, seeds).x
        numbers = [*made[0].values(), ill.predict(x)]
        for good, number in zip([*expected[0].values(), well.predict(x)], numbers, strict=True):
            assert torch.equal(number[[0, 2]], good[[0, 2]])
            assert bool(torch.isfinite(good).all())
        lost |= any(not bool(torch.isfinite(number[1]).all()) for number in numbers)
    assert lost


def test_what_may_change_does_when_a_state_is_taken_over(world: Any, name: str) -> None:
    """Every option called changeable acts from the next update on, and a state saved after that has it all."""
    boundary, stop = 2 * world.batches_per_task, 3 * world.batches_per_task
    donor = world.quick(name, (0, 1))
    world.drive(donor, 0, boundary)

    def taken(**options: Any) -> Learner:
        other = world.quick(name, (0, 1), **options)
        other.load_with_new_options(stored(donor.state_dict()))
        other.restore_seen(world.seen(boundary, (0, 1)))
        return other

    same = taken()
    world.drive(same, boundary, stop)
    for key in donor.changeable:
        value = getattr(donor.options, key)
        assert isinstance(value, float), key
        changed = taken(**{key: 3 * value})
        at_first = dict(leaves(changed.state_dict()))
        for path, kept in leaves(taken().state_dict()):
            assert torch.equal(kept, at_first[path]) if isinstance(kept, Tensor) else kept == at_first[path], path
        world.drive(changed, boundary, stop - 2)
        again = resumed(world, name, changed, stop - 2, **{key: 3 * value})
        assert_same_bits(world.drive(again, stop - 2, stop), world.drive(changed, stop - 2, stop))
        assert_same_bits(again.state_dict(), changed.state_dict())
        differ = [
            path
            for (path, one), (_, other) in zip(leaves(changed.state_dict()), leaves(same.state_dict()), strict=True)
            if isinstance(one, Tensor) and not torch.equal(one, other)
        ]
        assert differ, key


def test_same_seed_same_run_and_another_seed_another(world: Any, name: str) -> None:
    """Whatever the global generators were set to, and whether or not anybody asked for predictions."""
    runs = []
    for noise, seed, predict in ((1, 3, True), (2, 3, False), (3, 4, True)):
        torch.manual_seed(noise)
        np.random.seed(noise)  # noqa: NPY002  (the point is that nobody reads it)
        learner = world.quick(name, (seed,))
        world.drive(learner, 0, 6, predict=predict)
        runs.append(learner)
    assert_same_bits(runs[0].state_dict(), runs[1].state_dict())
    x = world.batch(70).x
    assert torch.equal(runs[0].predict(x), runs[1].predict(x))
    assert not torch.equal(runs[0].predict(x), runs[2].predict(x))


def test_a_short_last_batch_is_learned(world: Any, name: str) -> None:
    """Of two learners that differ in nothing but the labels of the stream's last two points, the predictions differ."""
    learner = world.quick(name)
    world.drive(learner, 0, 7)
    last = world.batch(7, count=2)
    x, after = world.batch(70).x, []
    for y in (last.y, (last.y + 1) % world.classes):
        other = resumed(world, name, learner, 7)
        for size in ("update_batch",):  # so that no draw misses them
            if hasattr(other.options, size):
                other.options = replace(other.options, **{size: 60})
        made = other.update(Batch(last.x, y, last.ids))
        assert all(math.isfinite(float(value)) for value in made.values())
        after.append(other.predict(x))
    assert not torch.equal(after[0], after[1])


def alive() -> int:
    """Bytes of all tensors that Python holds."""
    gc.collect()
    held = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values())


def test_memory_is_flat(world: Any, name: str) -> None:
    learner = world.quick(name)
    world.drive(learner, 0, 24)
    after_six_tasks = alive()
    world.drive(learner, 24, 48)
    assert alive() <= 1.01 * after_six_tasks


def test_boundaries_are_a_permission(world: Any, name: str) -> None:
    """No task is in a batch, and who does not ask for boundaries has nothing that one could call."""
    kind = learner_class(name)
    assert {field.name for field in fields(Batch)} == {"x", "y", "ids"}
    if not kind.needs_boundaries:
        assert kind.begin_task is Learner.begin_task
        assert kind.end_task is Learner.end_task


@pytest.mark.slow
def test_resident_memory_is_flat(name: str) -> None:
    """Step 500 against step 100, of the full rainbow network in a process of its own: what autograd keeps counts too."""
    script = f"""
import torch
import numpy as np
from learners import Batch, ImageTable, Setting, create, learner_class
from learners.networks.network import build
from learners.seeding import generator
torch.set_num_threads(1)
pixels = generator(0, "pixels").integers(0, 256, size=(200, 3, 28, 28), dtype=np.uint8)
images = ImageTable(pixels)
setting = Setting(build("rainbow", (3, 28, 28), 10), [0], 10, 20, 10, images)
learner = create({name!r}, {{}}, setting)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
for step in range(500):
    if learner.needs_boundaries and step % 20 == 0:
        learner.begin_task()
    ids = torch.from_numpy(generator(step, "ids").integers(0, 200, size=(1, 10, 1)))
    batch = Batch(images.gather(ids), ids[..., 0] % 10, ids)
    learner.predict(batch.x)
    learner.update(batch)
    if learner.needs_boundaries and step % 20 == 19:
        learner.end_task()
    if step == 99:
        early = resident()
print(resident() / early)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 1.05
