"""The contract of every learner, on both networks; a new file in `learners/` is tested without further changes."""

import gc
import io
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learners import Batch, Learner, learner_class, names
from learners.networks.architectures import EmbeddingNet
from learners.training.replicate_options import packed_options

pytestmark = pytest.mark.parametrize("name", names())

PER_TASK = 3
MIDDLE = PER_TASK + 1  # one batch of the second task is learned, two follow


@pytest.fixture(params=["rainbow", "siamese"])
def world(request: pytest.FixtureRequest) -> Any:
    """Short tasks: most tests need a boundary or two, and what they cost is the number of batches."""
    return replace(request.getfixturevalue(request.param), batches_per_task=PER_TASK)


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
    """The state after `torch.save` and a load that accepts only tensors, numbers, strings, lists and dicts."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def bytes_of(state: Any) -> int:
    """The bytes of a state's tensors, each of them counted once."""
    held = [value.untyped_storage() for _, value in leaves(state) if isinstance(value, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())


def assert_same_bits(a: Any, b: Any) -> None:
    a, b = dict(leaves(a)), dict(leaves(b))
    assert a.keys() == b.keys()
    for path, value in a.items():
        same = torch.equal(value, b[path]) if isinstance(value, Tensor) else value == b[path]
        assert same, path


def resumed(world: Any, name: str, learner: Learner, steps: int, **kwargs: Any) -> Learner:
    """Another learner with the state and the datapoints seen of this one after `steps` batches."""
    other = world.quick(name, learner.setting.seeds, **kwargs)
    other.load_state_dict(stored(learner.state_dict()))
    other.restore_seen(world.seen(steps, learner.setting.seeds))
    return other


def tiny(world: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The same world with nearly the smallest images that the full-width network accepts, with an odd side."""
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
    """Predictions are [R, B, C] for any B, diagnostics [R]; the full network in float32."""
    world = tiny(world)
    learner = world.quick(name, (0, 1, 2), full=True)
    diagnostics = world.drive(learner, 0, PER_TASK + 1, predict=False)
    for count in (1, 5, 12):
        logits = learner.predict(world.batch(70, (0, 1, 2), count=count).x)
        assert logits.shape == (3, count, world.classes)
        assert logits.dtype == torch.float32
    assert any(diagnostics)
    assert {tuple(value.shape) for each in diagnostics for value in each.values()} == {(3,)}


def test_options_are_frozen_and_described(name: str) -> None:
    options = learner_class(name).options_class()
    for option in fields(options):
        assert len(option.metadata["description"]) > 3, option.name
        with pytest.raises(AttributeError):
            setattr(options, option.name, 1)


def assert_all_finite(learner: Learner, diagnostics: list[dict[str, Tensor]], x: Tensor) -> None:
    assert bool(torch.isfinite(learner.predict(x)).all())
    for each in diagnostics:
        for key, value in each.items():
            assert bool(torch.isfinite(value).all()), key


def test_finite_on_black_images(world: Any, name: str) -> None:
    """Two tasks with nothing but dead units, zero batch variances and pairs of equal images, in float32."""
    world = replace(world, dtype=torch.float32)
    world.pictures[:] = 0
    learner = world.quick(name)
    diagnostics = world.drive(learner, 0, 2 * PER_TASK + 2)
    assert_all_finite(learner, diagnostics, world.batch(70).x)


def test_finite_on_logits_300_apart(world: Any, name: str) -> None:
    """exp(300) exceeds float32: the first class leads by 300 for every image."""
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
    assert_all_finite(learner, world.drive(learner, 0, 2 * PER_TASK + 2), x)


def on(rainbow: str, siamese: str) -> pytest.MarkDecorator:
    """One kind of pass per network: `general` by autograd, narrow, or `hand-written`, in its full width, as in sweeps.

    A learner does not know the kind of its network's passes. Tests of one property with the opposite choice have each
    learner with each network and each kind; `networks/test_network.py` has all of them without learners.
    """
    kinds = {"rainbow": rainbow, "siamese": siamese}
    values = [pytest.param(name, kind == "hand-written", id=f"{name}-{kind}") for name, kind in kinds.items()]
    return pytest.mark.parametrize(("world", "full"), values, indirect=["world"])


def steps_of(full: bool) -> int:
    """Batches until past the second boundary, or past the first one for a network in its full width."""
    return (1 if full else 2) * PER_TASK + 2


@on(rainbow="hand-written", siamese="general")
def test_a_stack_of_three_equals_each_seed_alone(world: Any, name: str, full: bool) -> None:
    """Bit for bit, in float32 on a CPU: diagnostics, predictions of any number of datapoints, and states.

    The first replicate is not compared: the middle one and the last one show a mistake in an index as well as it would.
    """
    steps, seeds, world = steps_of(full), (0, 5, 9), tiny(world) if full else replace(world, dtype=torch.float32)
    stack = world.quick(name, seeds, full)
    together = world.drive(stack, 0, steps, predict=False)
    for r, seed in list(enumerate(seeds))[1:]:
        alone = world.quick(name, (seed,), full)
        diagnostics = world.drive(alone, 0, steps, predict=False)
        assert_same_bits(diagnostics, [{key: value[r : r + 1] for key, value in each.items()} for each in together])
        for count in (5, 37):
            logits = stack.predict(world.batch(70, seeds, count).x)[r : r + 1]
            assert torch.equal(alone.predict(world.batch(70, (seed,), count).x), logits)
        assert_same_bits(alone.state_dict(), stack.state_of_replicates([stack.state_dict()], slice(r, r + 1)))


@on(rainbow="general", siamese="hand-written")
def test_two_configurations_in_a_stack_equal_each_alone(world: Any, name: str, full: bool) -> None:
    """Bit for bit, in float32 on a CPU, with every changeable option different; the seed is the same."""
    world, changeable = tiny(world) if full else replace(world, dtype=torch.float32), learner_class(name).changeable
    base, steps = world.quick(name, full=full).options, steps_of(full)
    options = [replace(base, **{key: factor * getattr(base, key) for key in changeable}) for factor in (1, 0.3)]
    packed = packed_options(options, 1, changeable)
    stack = learner_class(name)(packed, world.setting((4, 4), full))
    together = world.drive(stack, 0, steps, predict=False)
    logits = stack.predict(world.batch(70, (4, 4)).x)
    states = []
    for r, one in enumerate(options):
        alone = learner_class(name)(one, world.setting((4,), full))
        diagnostics = world.drive(alone, 0, steps, predict=False)
        assert_same_bits(diagnostics, [{key: value[r : r + 1] for key, value in each.items()} for each in together])
        assert torch.equal(alone.predict(world.batch(70, (4,)).x), logits[r : r + 1])
        states.append(stored(alone.state_dict()))
        part = stored(stack.state_of_replicates([stack.state_dict()], slice(r, r + 1)))
        assert_same_bits(states[r], part)
        assert bytes_of(part) <= bytes_of(states[r])  # a part is a copy, and what was one tensor is still one
    assert torch.equal(logits[0], logits[1]) == (not changeable)
    joined = stack.state_of_replicates(states)
    assert_same_bits(joined, stack.state_dict())
    other = learner_class(name)(packed, world.setting((4, 4), full))
    other.load_state_dict(joined)
    other.restore_seen(world.seen(steps, (4, 4)))
    assert_same_bits(world.drive(other, steps, steps + 2), world.drive(stack, steps, steps + 2))
    assert_same_bits(other.state_dict(), stack.state_dict())


@on(rainbow="hand-written", siamese="general")
def test_resumed_within_a_task_or_between_two_equals_uninterrupted(world: Any, name: str, full: bool) -> None:
    """Resumed after the first batch of the second task, and after its last; in float64 if general."""
    world, seeds, boundary = tiny(world) if full else world, (0, 1), 2 * PER_TASK
    stop = boundary + (1 if full else PER_TASK + 1)
    reference, x = world.quick(name, seeds, full), world.batch(70, seeds).x
    world.drive(reference, 0, MIDDLE)
    within = resumed(world, name, reference, MIDDLE, full=full)
    assert torch.equal(within.predict(x), reference.predict(x))
    assert_same_bits(within.state_dict(), reference.state_dict())
    expected = world.drive(reference, MIDDLE, boundary)
    between = resumed(world, name, reference, boundary, full=full)
    expected += world.drive(reference, boundary, stop)
    assert_same_bits(world.drive(within, MIDDLE, stop), expected)
    assert_same_bits(world.drive(between, boundary, stop), expected[boundary - MIDDLE :])
    for other in (within, between):
        assert torch.equal(other.predict(x), reference.predict(x))
        assert_same_bits(other.state_dict(), reference.state_dict())


def poison(state: Any, seed: int) -> int:
    """Write NaN for one seed of three to every large float matrix [3, n] of a state; returns the number of matrices."""
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
    """The other seeds have the same values as in a stack without NaN; the hand-written networks in float32."""
    world, seeds = tiny(world), (0, 1, 2)
    healthy = world.quick(name, seeds, full=True)
    world.drive(healthy, 0, MIDDLE)
    state = stored(healthy.state_dict())
    assert poison(state, 1) > 0
    poisoned = world.quick(name, seeds, full=True)
    poisoned.load_state_dict(state)
    poisoned.restore_seen(world.seen(MIDDLE, seeds))
    diverged = False
    for step in range(MIDDLE, MIDDLE + 3):  # a boundary follows after two batches
        expected, diagnostics = world.drive(healthy, step, step + 1), world.drive(poisoned, step, step + 1)
        x = world.batch(70, seeds).x
        numbers = [*diagnostics[0].values(), poisoned.predict(x)]
        for good, number in zip([*expected[0].values(), healthy.predict(x)], numbers, strict=True):
            assert torch.equal(number[[0, 2]], good[[0, 2]])
            assert bool(torch.isfinite(good).all())
        diverged |= any(not bool(torch.isfinite(number[1]).all()) for number in numbers)
    assert diverged


def test_changeable_options_change_a_state_loaded_with_them(world: Any, name: str) -> None:
    """Every changeable option has an effect from the next update on, and a state saved later resumes exactly."""
    boundary, stop = 2 * world.batches_per_task, 3 * world.batches_per_task
    donor = world.quick(name, (0, 1))
    world.drive(donor, 0, boundary)

    def loaded_with(**options: Any) -> Learner:
        other = world.quick(name, (0, 1), **options)
        other.load_state_dict(other.state_for_new_options(stored(donor.state_dict())))
        other.restore_seen(world.seen(boundary, (0, 1)))
        return other

    same = loaded_with()
    world.drive(same, boundary, stop)
    for key in donor.changeable:
        option = getattr(donor.options, key)
        assert isinstance(option, float), key
        changed = loaded_with(**{key: 3 * option})
        values = dict(leaves(changed.state_dict()))
        for path, value_before in leaves(loaded_with().state_dict()):
            value = values[path]
            assert torch.equal(value_before, value) if isinstance(value, Tensor) else value_before == value, path
        world.drive(changed, boundary, stop - 2)
        again = resumed(world, name, changed, stop - 2, **{key: 3 * option})
        assert_same_bits(world.drive(again, stop - 2, stop), world.drive(changed, stop - 2, stop))
        assert_same_bits(again.state_dict(), changed.state_dict())
        differ = [
            path
            for (path, one), (_, other) in zip(leaves(changed.state_dict()), leaves(same.state_dict()), strict=True)
            if isinstance(one, Tensor) and not torch.equal(one, other)
        ]
        assert differ, key


META = (
    "alpha2",
    "beta2",
    "K",
    "meta_optimizer",
    "meta_every",
    "meta_batches",
    "meta_gradient",
    "meta_path",
    "adam_zero",
)
WITHOUT_EFFECT: dict[str, list[tuple[dict[str, Any], dict[str, str]]]] = {
    "continual_backprop": [({"replacement_rate": 0.0}, dict.fromkeys(("decay", "maturity"), "replacement_rate: 0"))],
    "ewc": [({"strength": 0.0}, dict.fromkeys(("decay", "fisher_datapoints"), "strength: 0"))],
    "foml": [
        ({"meta_updates": False}, dict.fromkeys(META, "meta_updates: false")),
        ({"online_optimizer": "sgd"}, {"adam_zero": "online_optimizer: sgd"}),
        ({"K": 1}, {"meta_gradient": "K: 1"}),
        ({"K": 1, "online_optimizer": "sgd"}, {"meta_gradient": "K: 1", "adam_zero": "online_optimizer: sgd"}),
    ],
    "ftl": [({"growth": 0}, {"growth_every": "growth: 0"}), ({"growth": 10}, {})],
    "la_maml": [({"inner_steps": 1}, {"meta_loss": "inner_steps: 1"})],
    "lwf": [({"distillation": 0.0}, dict.fromkeys(("temperature", "t_squared"), "distillation: 0"))],
    "moca": [({}, {"pretrain_passes": "pretrain_tasks: 0"})],
    "shrink_perturb": [
        ({"shrink": 1.0, "noise": 0.0}, {"every": "shrink: 1 and noise: 0"}),
        ({"shrink": 1.0, "noise": 0.1}, {}),
        ({"shrink": 0.9, "noise": 0.0}, {}),
    ],
    "toe": [({"growth": 0}, {"growth_every": "growth: 0"}), ({"growth": 10}, {})],
}
"""For each learner: options, and those that have no effect with them, each with the reason."""


def other_values(options: Any, key: str) -> list[Any]:
    """Values that an option may have instead of its present one."""
    value, kind = getattr(options, key), get_type_hints(type(options))[key]
    if choices := get_args(kind):
        return [choice for choice in choices if choice != value]
    return [not value if kind is bool else value + 2 if kind is int else value / 2 + 0.01]


def test_options_are_without_effect_where_the_learner_says_so(rainbow: Any, name: str) -> None:
    world = replace(rainbow, batches_per_task=PER_TASK)

    def predicted(options: dict[str, Any]) -> Tensor:
        learner = world.quick(name, **options)
        world.drive(learner, 0, 2 * PER_TASK, predict=False)
        return learner.predict(world.batch(70).x)

    for given, expected in WITHOUT_EFFECT.get(name, [({}, {})]):
        options = world.quick(name, **given).options
        assert learner_class(name).without_effect(options) == expected
        reference = predicted(given)
        for key in expected:
            for other in other_values(options, key):
                assert torch.equal(predicted({**given, key: other}), reference), (given, key, other)


def test_same_seed_same_run_and_another_seed_another(world: Any, name: str) -> None:
    """Independent of the global generators, and of calls of `predict`."""
    runs = []
    for noise, seed, predict in ((1, 3, True), (2, 3, False), (3, 4, True)):
        torch.manual_seed(noise)
        np.random.seed(noise)  # noqa: NPY002  (learners must not read it)
        learner = world.quick(name, (seed,))
        world.drive(learner, 0, PER_TASK + 2, predict=predict)
        runs.append(learner)
    assert_same_bits(runs[0].state_dict(), runs[1].state_dict())
    x = world.batch(70).x
    assert torch.equal(runs[0].predict(x), runs[1].predict(x))
    assert not torch.equal(runs[0].predict(x), runs[2].predict(x))


def test_a_short_last_batch_is_learned(world: Any, name: str) -> None:
    """Two learners whose streams differ only in the labels of the last two datapoints predict differently."""
    learner = world.quick(name)
    world.drive(learner, 0, MIDDLE)
    last = world.batch(MIDDLE, count=2)
    x, after = world.batch(70).x, []
    for y in (last.y, (last.y + 1) % world.classes):
        other = resumed(world, name, learner, MIDDLE)
        for size in ("update_batch",):  # large enough that every draw contains them
            if hasattr(other.options, size):
                other.options = replace(other.options, **{size: 60})
        diagnostics = other.update(Batch(last.x, y, last.ids))
        assert all(math.isfinite(float(value)) for value in diagnostics.values())
        after.append(other.predict(x))
    assert not torch.equal(after[0], after[1])


class PlainTanh(nn.Module):
    """The network of `smooth` as a module without the contract of `EmbeddingNet`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x.flatten(1))))


def test_a_plain_module_gives_the_same_numbers_or_is_refused_in_one_line(smooth: Any, name: str) -> None:
    world = replace(smooth, make=PlainTanh)
    if learner_class(name).needs_features:
        with pytest.raises(ValueError, match=rf"^{name} needs a network with features, .* \(got PlainTanh\)$"):
            world.quick(name, (0, 1))
        return
    plain, embedding = world.quick(name, (0, 1)), smooth.quick(name, (0, 1))
    assert_same_bits(world.drive(plain, 0, 6), smooth.drive(embedding, 0, 6))
    assert_same_bits(plain.state_dict(), embedding.state_dict())


def alive() -> int:
    """Bytes of all tensors that Python references and that are younger than the last `gc.freeze`."""
    gc.collect()
    held = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values())


def test_memory_is_flat(rainbow: Any, name: str) -> None:
    world = replace(rainbow, batches_per_task=PER_TASK)
    gc.freeze()  # a collection would walk the objects of all imported modules
    try:
        learner = world.quick(name)
        world.drive(learner, 0, 6 * PER_TASK)  # every buffer is full after 16 batches
        after_six_tasks = alive()
        world.drive(learner, 6 * PER_TASK, 10 * PER_TASK)
        assert after_six_tasks > 0 and alive() <= 1.01 * after_six_tasks
    finally:
        gc.unfreeze()


def test_boundaries_need_permission(world: Any, name: str) -> None:
    """A batch holds no task, and a learner without `needs_boundaries` defines neither `begin_task` nor `end_task`."""
    kind = learner_class(name)
    assert {field.name for field in fields(Batch)} == {"x", "y", "ids"}
    if not kind.needs_boundaries:
        assert kind.begin_task is Learner.begin_task
        assert kind.end_task is Learner.end_task


@pytest.mark.slow
def test_resident_memory_is_flat(name: str) -> None:
    """Step 500 compared with step 100, of the full Rainbow network in a separate process, autograd's memory included."""
    script = f"""
import torch
import numpy as np
from learners import Batch, ImageTable, Setting, create, learner_class
from learners.networks.build import build
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
