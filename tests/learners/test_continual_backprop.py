"""Continual backpropagation against a plain implementation: modules, autograd, and an optimiser state per weight."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from learners import create
from learners.networks.architectures import MLP, EmbeddingNet, ResNet18
from learners.seeding import generator, torch_seed
from tests.learners.conftest import NarrowSiameseNet
from tests.learners.test_contract import PlainTanh, assert_same_bits, leaves, resumed, tiny

OFTEN = {"alpha1": 0.01, "replacement_rate": 0.08, "decay": 0.8, "maturity": 3}


class Plain:
    """Algorithm 1 for one seed, unit by unit."""

    def __init__(self, make: Any, seed: int, optimizer: str) -> None:
        self.make, self.optimizer = make, optimizer
        self.module = self.drawn(torch_seed(seed, "network"))
        self.draws = generator(seed, "new units")
        named = dict(self.module.named_modules())
        self.layers = [(named[a], named[b], named.get(norm)) for a, b, norm in self.module.hidden_layers]
        sizes = [len(incoming.weight) for incoming, _, _ in self.layers]
        self.utility, self.age = ([torch.zeros(size, dtype=torch.float64) for size in sizes] for _ in range(2))
        self.c = [0.0] * len(sizes)
        self.state = {p: [torch.zeros_like(p) for _ in range(3)] for p in self.module.parameters()}  # m, s, steps

    def drawn(self, seed: int) -> EmbeddingNet:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module: EmbeddingNet = self.make().double()
        return module

    def update(self, x: Tensor, y: Tensor) -> tuple[float, list[tuple[int, int]]]:
        """The loss before the step, and (layer, unit) of the replaced units."""
        h: dict[int, Tensor] = {}
        hooks = [
            outgoing.register_forward_pre_hook(lambda _, inputs, i=i: h.update({i: inputs[0].detach()}))
            for i, (_, outgoing, _) in enumerate(self.layers)
        ]
        loss = F.cross_entropy(self.module(x), y)
        for hook in hooks:
            hook.remove()
        gradients = torch.autograd.grad(loss, list(self.module.parameters()))
        with torch.no_grad():
            for p, gradient in zip(self.module.parameters(), gradients, strict=True):
                self.step(p, gradient)
            replaced = [(i, unit) for i in h for unit in self.worst(i, h[i])]
            if replaced:
                new = dict(self.drawn(torch_seed(int(self.draws.integers(2**63)), "new units")).named_modules())
                for i, unit in replaced:
                    self.reinitialise(i, unit, new)
        return float(loss.detach()), replaced

    def step(self, p: Tensor, gradient: Tensor) -> None:
        if self.optimizer == "sgd":
            p -= OFTEN["alpha1"] * gradient
            return
        m, s, steps = self.state[p]
        steps += 1
        m.copy_(0.9 * m + 0.1 * gradient)
        s.copy_(0.999 * s + 0.001 * gradient**2)
        p -= OFTEN["alpha1"] * (m / (1 - 0.9**steps)) / ((s / (1 - 0.999**steps)).sqrt() + 1e-8)

    def worst(self, i: int, h: Tensor) -> list[int]:
        """The units of layer i that are replaced, given its values h [B, U, …]."""
        weight = self.layers[i][1].weight
        for unit in range(len(self.age[i])):
            self.age[i][unit] += 1
            contribution = h[:, unit].abs().mean() * weight[:, unit].abs().sum()
            self.utility[i][unit] = OFTEN["decay"] * self.utility[i][unit] + (1 - OFTEN["decay"]) * contribution
        eligible = [unit for unit in range(len(self.age[i])) if self.age[i][unit] > OFTEN["maturity"]]
        self.c[i] += len(eligible) * OFTEN["replacement_rate"]
        units = []
        while self.c[i] >= 1 and eligible:
            units.append(min(eligible, key=lambda unit: float(self.utility[i][unit])))
            eligible.remove(units[-1])
            self.c[i] -= 1
        return units

    def reinitialise(self, i: int, unit: int, new: dict[str, Any]) -> None:
        incoming, outgoing, norm = self.layers[i]
        names = self.module.hidden_layers[i]
        for mine, other in [(incoming, new[names.incoming]), *([(norm, new[names.norm])] if norm else [])]:
            for p, drawn in ((mine.weight, other.weight), (mine.bias, other.bias)):
                p[unit] = drawn[unit]
                for moment in self.state[p]:
                    moment[unit] = 0
        if norm:
            norm.running_mean[unit], norm.running_var[unit] = 0, 1
        outgoing.weight[:, unit] = 0
        for moment in self.state[outgoing.weight]:
            moment[:, unit] = 0
        self.utility[i][unit] = self.age[i][unit] = 0


def worlds(smooth: Any, rainbow: Any, siamese: Any) -> dict[str, Any]:
    """The batch norm of small maps with dead units multiplies rounding errors at each step, so pairs have larger ones."""
    siamese = replace(siamese, make=lambda: NarrowSiameseNet((3, 16, 16), 2), image_shape=(3, 16, 16))
    mlp = replace(rainbow, make=lambda: MLP(rainbow.image_shape, 10, hidden=6, layers=2))
    pairs = replace(siamese, make=lambda: MLP((3, 16, 16), 2, hidden=5, layers=1))
    return {"smooth": smooth, "rainbow": rainbow, "siamese": siamese, "mlp": mlp, "mlp of pairs": pairs}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("network", ["smooth", "rainbow", "siamese", "mlp", "mlp of pairs"])
def test_equals_a_plain_implementation(smooth, rainbow, siamese, network: str, optimizer: str) -> None:
    """Weights, running statistics, utilities, ages, fractions and replaced units, for two stacked seeds in float64."""
    world, seeds = worlds(smooth, rainbow, siamese)[network], (3, 8)
    learner = world.learner("continual_backprop", seeds, online_optimizer=optimizer, **OFTEN)
    plain = [Plain(world.make, seed, optimizer) for seed in seeds]
    layers, total = learner.units.layers, 0
    for number in range(16):
        batch = world.batch(number, seeds)
        diagnostics = learner.update(batch)
        for r, one in enumerate(plain):
            loss, replaced = one.update(batch.x[r], batch.y[r])
            total += len(replaced)
            assert float(diagnostics["loss"][r]) == pytest.approx(loss, rel=1e-7)
            assert float(diagnostics["replaced"][r]) == len(replaced)
            new = {
                (i, unit)
                for i, units in enumerate(layers)
                for unit in (learner.age[r, units] == 0).nonzero()[:, 0].tolist()
            }
            assert new == set(replaced)
    assert total > 3 * len(layers)
    for r, one in enumerate(plain):
        flat = torch.cat([p.detach().flatten() for p in one.module.parameters()])
        torch.testing.assert_close(learner.model.phi[r], flat, rtol=1e-6, atol=1e-9)
        buffers = [b.flatten() for b in one.module.buffers() if b.is_floating_point()]
        torch.testing.assert_close(learner.model.statistics[r], torch.cat([flat[:0], *buffers]), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(learner.utility[r], torch.cat(one.utility), rtol=1e-6, atol=1e-9)
        assert learner.age[r].tolist() == torch.cat(one.age).tolist()
        assert learner.due[r].tolist() == pytest.approx(one.c, abs=1e-12)


@pytest.mark.parametrize("full", [False, True], ids=["general", "hand-written"])
@pytest.mark.parametrize("network", ["rainbow", "siamese"])
def test_a_new_unit_does_not_change_the_function(request, network: str, full: bool) -> None:
    """The function after a replacement is the one before it without what the replaced units contributed."""
    world = request.getfixturevalue(network)
    learner = world.quick("continual_backprop", (0, 1), full, replacement_rate=0.0)
    world.drive(learner, 0, 6)
    model, x = learner.model, world.batch(70, (0, 1)).x
    replaced = torch.zeros_like(learner.age, dtype=torch.bool)
    for units in learner.units.layers:
        replaced[0, units.start] = replaced[1, units.stop - 1] = True
    layers = model.network.hidden_layers
    named = model.network.named_parameters(model.phi.clone())
    for layer in layers:
        named[f"{layer.outgoing}.weight"][0, :, 0] = named[f"{layer.outgoing}.weight"][1, :, -1] = 0
    without = torch.cat([weight.flatten(1) for weight in named.values()], 1)
    expected = model.network.logits(without, model.statistics, x)
    assert not torch.equal(learner.predict(x), expected)
    learner._replace(replaced)
    torch.testing.assert_close(learner.predict(x), expected, rtol=1e-9, atol=1e-12)
    after = model.network.named_parameters(model.phi)
    head = after["head.weight"]
    assert not head[0, :, 0].any()
    assert not head[1, :, -1].any()
    assert bool(head[0, :, 1:].all())
    drawn = [model.network.initial([int(generator(seed, "new units").integers(2**63))], "new units") for seed in (0, 1)]
    for r, place in ((0, 0), (1, -1)):
        new = model.network.named_parameters(drawn[r][0])
        for layer in layers:
            for name in (f"{layer.incoming}.weight", f"{layer.incoming}.bias"):
                assert torch.equal(after[name][r, place], new[name][0, place]), name
            kept = f"{layer.incoming}.bias"
            assert torch.equal(after[kept][r, 1 - r], named[kept][r, 1 - r])  # of a unit that was not replaced
    for moment in (model.moments.m, model.moments.s):
        parts = model.network.named_parameters(moment)
        assert not parts["convolutions.0.weight"][0, 0].any()
        assert not parts["head.weight"][0, :, 0].any()
        assert parts["head.bias"].any()
    of_norms = learner.units.statistics < learner.units.count
    assert int(of_norms.sum()) == model.statistics.shape[1]
    if network == "siamese":
        running = model.network.named_statistics(model.statistics)
        assert running["norms.3.running_mean"][0, 0] == 0
        assert running["norms.3.running_var"][0, 0] == 1
        assert after["norms.3.weight"][0, 0] == 1
        assert running["norms.3.running_mean"][0, 1] != 0


def test_fractions_of_units_accumulate(smooth) -> None:
    """Four units, m = 2, ρ = 0.3: c is 1.2 at the third batch, and one unit is replaced; then three are mature."""
    learner = smooth.learner("continual_backprop", maturity=2, replacement_rate=0.3)
    seen = []
    for number in range(7):
        diagnostics = learner.update(smooth.batch(number))
        seen.append((int(diagnostics["replaced"]), round(float(learner.due), 6)))
    # Mature after each batch: 0, 0, 4, 3, 2 (c = 0.2 + 0.9 = 1.1, then 0.1 + 0.6), 3, 3.
    assert seen == [(0, 0), (0, 0), (1, 0.2), (1, 0.1), (0, 0.7), (1, 0.6), (1, 0.5)]


def test_not_more_units_than_are_mature_are_replaced(smooth) -> None:
    """ρ = 1 replaces each unit as soon as it is mature, here after every second batch."""
    learner = smooth.learner("continual_backprop", (0, 1), maturity=1, replacement_rate=1.0)
    replaced = [learner.update(smooth.batch(number, (0, 1)))["replaced"].tolist() for number in range(6)]
    assert replaced == [[0, 0], [4, 4]] * 3
    assert learner.due.tolist() == [[0], [0]]


@pytest.mark.parametrize("network", ["rainbow", "siamese", "smooth"])
def test_without_replacement_it_is_plain_online_learning(request, network: str) -> None:
    """Bit for bit, in float32, with hand-written passes."""
    world = request.getfixturevalue(network)
    full = network != "smooth"
    world = tiny(world) if full else world
    learner = world.learner("continual_backprop", (0, 1), full, replacement_rate=0.0, maturity=1)
    online = world.learner("online", (0, 1), full)
    for number in range(6):
        mine, its = learner.update(world.batch(number, (0, 1))), online.update(world.batch(number, (0, 1)))
        assert torch.equal(mine["loss"], its["loss"])
    assert_same_bits(learner.model.state_dict(), online.model.state_dict())
    assert bool((learner.utility > 0).any())
    assert learner.setting.network.gradient_evaluations == online.setting.network.gradient_evaluations == 6 * 5


def test_adam_begins_again_for_the_weights_of_a_new_unit(smooth) -> None:
    """Their first step is the learning rate, up to ε; an old weight's is that of `online`."""
    learner, online = (smooth.learner(name, alpha1=0.01) for name in ("continual_backprop", "online"))
    for number in range(30):
        learner.update(smooth.batch(number))
        online.update(smooth.batch(number))
    learner._replace(torch.tensor([[False, True, False, False]]))
    online.model.phi, online.model.moments = learner.model.phi, learner.model.moments
    before = learner.model.network.named_parameters(learner.model.phi)
    learner.update(smooth.batch(30))
    online.update(smooth.batch(30))
    after, shared = (one.model.network.named_parameters(one.model.phi) for one in (learner, online))
    step = (after["head.weight"] - before["head.weight"])[0]
    torch.testing.assert_close(step[:, 1].abs(), torch.full((3,), 0.01, dtype=torch.float64), rtol=1e-4, atol=0)
    assert torch.equal(after["head.weight"][:, :, [0, 2, 3]], shared["head.weight"][:, :, [0, 2, 3]])
    assert torch.equal(after["head.bias"], shared["head.bias"])


def test_a_state_resumes_in_the_middle_of_replacements(rainbow) -> None:
    """Ages and fractions are exact; new units of the resumed learner are those of the uninterrupted one."""
    reference = rainbow.learner("continual_backprop", (0, 1), **OFTEN)
    counts = [each["replaced"] for each in rainbow.drive(reference, 0, 11)]
    assert int(torch.stack(counts).sum()) > 10
    other = resumed(rainbow, "continual_backprop", reference, 11, **OFTEN)
    later = rainbow.drive(other, 11, 20)
    assert_same_bits(later, rainbow.drive(reference, 11, 20))
    assert_same_bits(other.state_dict(), reference.state_dict())
    assert sum(int(each["replaced"].sum()) for each in later) > 10


def test_each_seed_draws_its_own_units(smooth) -> None:
    """Replicates of one seed stay equal, and those of two seeds differ in what they draw."""
    learner = smooth.learner("continual_backprop", (5, 5, 6), **OFTEN)
    for number in range(12):
        learner.update(smooth.batch(number, (5, 5, 6)))
    for path, value in leaves(learner.state_dict()):
        if isinstance(value, Tensor):
            assert torch.equal(value[0], value[1]), path
    learner._replace(torch.ones_like(learner.age, dtype=torch.bool))
    first = learner.model.network.named_parameters(learner.model.phi)["first.weight"]
    assert torch.equal(first[0], first[1])
    assert not torch.isclose(first[0], first[2]).any()


def test_a_network_that_names_no_hidden_layers_is_refused(smooth) -> None:
    class Unnamed(smooth.make):
        hidden_layers = ()

    rule = r"^continual_backprop needs a network that names its hidden_layers, .* \(got Unnamed\)$"
    with pytest.raises(ValueError, match=rule):
        replace(smooth, make=Unnamed).learner("continual_backprop")
    with pytest.raises(ValueError, match=r"needs a network with features, .* \(got PlainTanh\)$"):
        create("continual_backprop", {}, replace(smooth, make=PlainTanh).setting())


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_replaces_units_inside_residual_blocks(rainbow, norm: Any) -> None:
    world = replace(rainbow, make=lambda: ResNet18((3, 16, 16), 10, width=2, norm=norm))
    learner = world.quick("continual_backprop", (0, 1), replacement_rate=0.2)
    diagnostics = world.drive(learner, 0, 5)
    assert int(sum(each["replaced"].sum() for each in diagnostics)) > 10
    assert bool(torch.isfinite(learner.predict(world.batch(70, (0, 1)).x)).all())
    assert learner.units.count == 2 * (2 + 4 + 8 + 16)
