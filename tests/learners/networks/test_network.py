"""Flat parameters, initial values, replicates and batch norm, of autograd and hand-written passes."""

import pytest
import torch
from torch import Tensor, nn

from learners.networks import network as network_module
from learners.networks import tangent as tangent_module
from learners.networks.architectures import NETWORKS, EmbeddingNet, RainbowNet, SiameseNet
from learners.networks.build import build
from learners.networks.network import Network, _flatten, _unflatten, cross_entropy
from learners.seeding import torch_seed

SHAPE, CLASSES, N = (3, 16, 16), 4, 3
KINDS = [(name, tangent) for name in ("rainbow", "siamese") for tangent in (False, True)]


def network(name: str, tangent: bool, dtype: torch.dtype = torch.float64) -> Network:
    return build(name, SHAPE, CLASSES, tangent=tangent, dtype=dtype)


def batch(name: str, R: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    views = (2,) if name == "siamese" else ()
    x = torch.rand(R, N, *views, *SHAPE, generator=g, dtype=torch.float64)
    return x, torch.randint(CLASSES, (R, N), generator=g)


def module_of(net: Network, phi: Tensor, statistics: Tensor, r: int = 0) -> EmbeddingNet:
    """A separate module with the parameters and statistics of replicate r."""
    module = NETWORKS["siamese" if isinstance(net.module, SiameseNet) else "rainbow"](SHAPE, CLASSES).to(phi.dtype)
    named = {**_unflatten(phi, net._parameters), **_unflatten(statistics, net._statistics)}
    module.load_state_dict({name: value[r] for name, value in named.items()}, strict=False)
    return module


def test_flatten_and_unflatten() -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7.0), "c": torch.arange(8.0, 10.0)}
    shapes = {name: t.shape for name, t in tensors.items()}
    flat = _flatten(tensors, shapes)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    named = _unflatten(torch.stack([flat, -flat]), shapes)
    assert list(named) == ["a", "b", "c"]
    assert named["a"].shape == (2, 2, 3)
    assert named["b"].tolist() == [7, -7]
    assert torch.equal(named["a"][1], -tensors["a"])
    assert _flatten({}, {}).shape == (0,)
    assert _unflatten(torch.zeros(2, 0), {}) == {}


@pytest.mark.parametrize(("name", "tangent"), KINDS)
def test_initial_values_are_those_of_pytorch(name: str, tangent: bool) -> None:
    net = network(name, tangent, torch.float32)
    phi, statistics = net.initial([3, 8])
    for r, seed in enumerate((3, 8)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "network"))
            module = NETWORKS[name](SHAPE, CLASSES)
        assert torch.equal(phi[r], torch.cat([p.detach().flatten() for p in module.parameters()]))
        buffers = [b.flatten() for key, b in module.named_buffers() if "num_batches" not in key]
        assert torch.equal(statistics[r], torch.cat([torch.empty(0), *buffers]))


def test_another_purpose_has_other_values() -> None:
    net = network("rainbow", True)
    assert not torch.equal(net.initial([0])[0], net.initial([0], "network of task 1")[0])
    assert torch.equal(net.initial([0])[0], net.initial([0])[0])


def test_number_of_parameters_is_that_of_the_paper() -> None:
    """Rainbow for 28x28 images and ten classes: 3·9·32+32, 32·9·32+32, 32·9·64+64, 64·9·64+64, 64·10+10."""
    phi, statistics = build("rainbow", (3, 28, 28), 10).initial([0])
    assert phi.shape == (1, 896 + 9248 + 18496 + 36928 + 650)
    assert statistics.shape == (1, 0)


@pytest.mark.parametrize(("name", "tangent"), KINDS)
def test_global_generator_is_unchanged(name: str, tangent: bool) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    net = network(name, tangent)
    phi, statistics = net.initial([0, 1])
    x, y = batch(name, 2)
    net.training_pass(phi, statistics, x, cross_entropy(y), twice=True).hessian_vector_product(phi)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "tangent"), KINDS)
@pytest.mark.parametrize("together", [False, True])
def test_a_stack_equals_each_replicate_alone(
    name: str, tangent: bool, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, as on a CPU, and all together, as on a GPU."""
    if together:
        for module in (network_module, tangent_module):
            monkeypatch.setattr(module, "groups_of", lambda stack: [slice(0, len(stack))])
    net = network(name, tangent)
    phi, statistics = net.initial([0, 1, 2])
    x, y = batch(name, 3)
    stack = net.training_pass(phi, statistics, x, cross_entropy(y), twice=True)
    product = stack.hessian_vector_product(phi)
    for r in range(3):
        one = slice(r, r + 1)
        alone = net.training_pass(phi[one], statistics[one], x[one], cross_entropy(y[one]), twice=True)
        torch.testing.assert_close(stack.loss[one], alone.loss, rtol=1e-11, atol=0)
        for a, b in (
            (stack.gradient[one], alone.gradient),
            (stack.statistics[one], alone.statistics),
            (product[one], alone.hessian_vector_product(phi[one])),
            (net.logits(phi, statistics, x)[one], net.logits(phi[one], statistics[one], x[one])),
            (net.embed(phi, statistics, x)[one], net.embed(phi[one], statistics[one], x[one])),
        ):
            assert (a - b).norm() <= 1e-9 * b.norm()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_batch_of_any_size_in_a_stack_has_the_bits_of_a_seed_alone(count: int) -> None:
    """Also one datapoint, whose products round differently where a replicate's weights are not aligned in memory."""
    net = build("mlp", SHAPE, 5)  # an odd number of parameters, so that later rows are not aligned
    phi, statistics = net.initial([0, 1, 2])
    x = torch.rand(3, count, *SHAPE, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(3 * count) % 5).view(3, count)
    stack = net.training_pass(phi, statistics, x, cross_entropy(y))
    for r in range(3):
        one = slice(r, r + 1)
        alone = net.training_pass(phi[one].clone(), statistics[one], x[one].clone(), cross_entropy(y[one]))
        assert torch.equal(stack.gradient[one], alone.gradient)
        assert torch.equal(stack.loss[one], alone.loss)


@pytest.mark.parametrize("tangent", [False, True])
def test_batch_norm_is_that_of_pytorch(tangent: bool) -> None:
    """A training pass uses the batch's statistics and returns updated running ones, as nn.BatchNorm2d does."""
    net = network("siamese", tangent)
    phi, statistics = net.initial([0])
    statistics = statistics + 0.3
    before = statistics.clone()
    x, y = batch("siamese", 1)
    training_pass = net.training_pass(phi, statistics, x, cross_entropy(y), twice=True)
    training_pass.hessian_vector_product(phi)
    net.logits(phi, statistics, x)
    net.embed(phi, statistics, x)
    assert torch.equal(statistics, before)

    module = module_of(net, phi, before).train()
    loss = nn.functional.cross_entropy(module(x[0]), y[0])
    torch.testing.assert_close(training_pass.loss[0], loss.detach(), rtol=1e-9, atol=0)
    after = [b.flatten() for name, b in module.named_buffers() if "num_batches" not in name]
    torch.testing.assert_close(training_pass.statistics[0], torch.cat(after), rtol=1e-9, atol=1e-12)
    assert not torch.equal(training_pass.statistics, before)
    assert torch.equal(net.training_logits(phi, statistics, x)[1].isfinite(), torch.ones_like(before).bool())


@pytest.mark.parametrize("tangent", [False, True])
def test_prediction_uses_the_running_statistics(tangent: bool) -> None:
    net = network("siamese", tangent)
    phi, statistics = net.initial([0])
    statistics = statistics + 0.3
    x, _ = batch("siamese", 1)
    expected = module_of(net, phi, statistics).eval()(x[0])
    torch.testing.assert_close(net.logits(phi, statistics, x)[0], expected.detach(), rtol=1e-9, atol=1e-12)
    # A datapoint's prediction does not depend on the rest of its batch:
    torch.testing.assert_close(net.logits(phi, statistics, x[:, :1])[0], expected[:1].detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tangent", [False, True])
def test_pair_branches_are_one_batch(tangent: bool) -> None:
    """The statistics are those of all 2N images, not of each branch separately."""
    net = network("siamese", tangent)
    phi, statistics = net.initial([0])
    x, y = batch("siamese", 1)
    shuffled = x.flatten(1, 2)[:, torch.tensor([4, 2, 0, 5, 1, 3])].unflatten(1, (N, 2))
    first = slice(0, 64)  # the first layer's mean and variance
    a = net.training_pass(phi, statistics, x, cross_entropy(y)).statistics[:, first]
    b = net.training_pass(phi, statistics, shuffled, cross_entropy(y)).statistics[:, first]
    torch.testing.assert_close(a, b, rtol=1e-10, atol=0)
    weight, bias = (_unflatten(phi, net._parameters)[f"convolutions.0.{part}"][0] for part in ("weight", "bias"))
    activations = nn.functional.conv2d(x[0].flatten(0, 1), weight, bias, padding=1).relu()
    torch.testing.assert_close(a[0, :32], 0.1 * activations.mean((0, 2, 3)), rtol=1e-10, atol=0)


@pytest.mark.parametrize("tangent", [False, True])
def test_pairs_are_symmetric(tangent: bool) -> None:
    net = network("siamese", tangent)
    phi, statistics = net.initial([0])
    x, y = batch("siamese", 1)
    a, b = (net.training_pass(phi, statistics, z, cross_entropy(y), True) for z in (x, x.flip(2)))
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-9, atol=0)
    assert (a.gradient - b.gradient).norm() <= 1e-9 * b.gradient.norm()
    v = torch.ones_like(phi)
    product = b.hessian_vector_product(v)
    assert (a.hessian_vector_product(v) - product).norm() <= 1e-9 * product.norm()
    torch.testing.assert_close(net.logits(phi, statistics, x), net.logits(phi, statistics, x.flip(2)))


@pytest.mark.parametrize(("name", "tangent"), KINDS)
def test_gradient_evaluations(name: str, tangent: bool) -> None:
    """Per replicate: N for a gradient, 2N for a Hessian-vector product, none for a prediction."""
    net = network(name, tangent)
    phi, statistics = net.initial([0, 1])
    x, y = batch(name, 2)
    net.logits(phi, statistics, x)
    assert net.gradient_evaluations == 0
    net.training_pass(phi, statistics, x, cross_entropy(y))
    assert net.gradient_evaluations == N
    twice = net.training_pass(phi, statistics, x, cross_entropy(y), twice=True)
    twice.hessian_vector_product(phi)
    twice.hessian_vector_product(phi)
    assert net.gradient_evaluations == N + N + 4 * N


@pytest.mark.parametrize(("name", "tangent"), KINDS)
def test_head_is_a_view_of_the_last_layer(name: str, tangent: bool) -> None:
    net = network(name, tangent)
    phi, statistics = net.initial([0, 1])
    x, _ = batch(name, 2)
    weight, bias = net.head(phi)
    features = net.embed(phi, statistics, x)
    expected = torch.einsum("rcf,rnf->rnc", weight, features) + bias.unsqueeze(1)
    torch.testing.assert_close(net.logits(phi, statistics, x), expected, rtol=1e-9, atol=1e-12)
    bias.fill_(7)
    assert (phi[:, -CLASSES:] == 7).all()


def test_too_small_images_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 16x16"):
        RainbowNet((3, 15, 20), 10)
    with pytest.raises(ValueError, match="at least 8x8"):
        SiameseNet((3, 8, 7), 2)


def test_a_user_defined_network_must_define_embed() -> None:
    class Empty(EmbeddingNet):
        pass

    with pytest.raises(TypeError, match="Empty must define embed"):
        Empty()(torch.zeros(1))


class Drawn(nn.Module):
    """A network of one's own with constants that are drawn, and a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.randperm(48)[:20])
        self.mask = torch.rand(20) > 0.5
        self.first, self.second = nn.Linear(20, 5), nn.Linear(5, CLASSES)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        places = self.get_buffer("places")
        return self.second(self.first(x.flatten(1)[:, places] * self.mask).tanh())


def test_constants_that_are_drawn_do_not_depend_on_the_process() -> None:
    """A checkpoint predicted with another permutation where the process had drawn numbers before."""
    x = torch.rand(2, N, 3, 4, 4)
    logits = []
    for _ in range(2):
        torch.rand(7)
        net = Network(Drawn)
        logits.append(net.logits(*net.initial([0, 1]), x))
    assert torch.equal(*logits)


def test_parameters_that_are_not_trained_stay_as_they_are() -> None:
    """They were trained like all others."""
    net = Network(Drawn)
    phi, statistics = net.initial([3])
    assert sorted(net.named_parameters(phi)) == ["second.bias", "second.weight"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(3, "network"))
        module = Drawn()
    assert torch.equal(net.named_statistics(statistics)["first.weight"][0], module.first.weight)
    x, y = torch.rand(1, N, 3, 4, 4), torch.zeros(1, N, dtype=torch.int64)
    step = net.training_pass(phi, statistics, x, cross_entropy(y), twice=True)
    assert torch.equal(step.statistics, statistics)
    assert step.gradient.shape == phi.shape and (step.gradient != 0).any()
    assert step.hessian_vector_product(phi).shape == phi.shape
    module.mask = net.module.mask
    module.register_buffer("places", net.module.get_buffer("places"))
    torch.testing.assert_close(net.logits(phi, statistics, x)[0], module(x[0]))
