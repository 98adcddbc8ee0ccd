"""The hand-written passes have the values of autograd's, in every case where they could differ."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from learners.networks import tangent
from learners.networks.build import build
from learners.networks.network import Loss, Network, cross_entropy
from learners.networks.tangent import TangentEmbeddingPass, TangentPass

SIZES = {
    "rainbow": [(28, 28), (17, 19), (32, 32), (16, 16), (23, 40)],
    "siamese": [(16, 16), (17, 19), (8, 8), (11, 14)],
}
CASES = [(name, size) for name, sizes in SIZES.items() for size in sizes]
SMALL = [("rainbow", (17, 19)), ("siamese", (9, 10))]
CLASSES = 5


def networks(name: str, size: tuple[int, int], dtype: torch.dtype = torch.float64) -> tuple[Network, Network]:
    """The hand-written network, and that of autograd."""
    pair = [build(name, (3, *size), CLASSES, dtype=dtype, tangent=tangent) for tangent in (True, False)]
    return pair[0], pair[1]


def pictures(name: str, size: tuple[int, int], R: int, N: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    views = (2,) if name == "siamese" else ()
    return torch.rand(R, N, *views, 3, *size, generator=g, dtype=torch.float64)


def flat_areas(x: Tensor) -> Tensor:
    """Images of a bar and a rectangle on one colour, like digits: most windows of the max-pool are ties."""
    x = x[..., :1, :1].expand(x.shape).clone()
    x[..., 5:9, 3:4] = 1
    x[..., 2:4, 2:7] = 0.5
    return x


def labels(R: int, N: int = 3) -> Tensor:
    return torch.randint(CLASSES, (R, N), generator=torch.Generator().manual_seed(5))


def direction(phi: Tensor, seed: int = 3) -> Tensor:
    return torch.randn(phi.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(phi.dtype)


def brier(y: Tensor) -> Loss:
    targets = torch.nn.functional.one_hot(y, CLASSES)
    return lambda logits: (logits.softmax(2) - targets).square().sum((1, 2))


def distance(a: Tensor, b: Tensor) -> float:
    """The relative distance, by norm."""
    if not b.any():
        return float(a.norm())
    return float((a - b).norm() / b.norm())


def assert_equal_passes(
    name: str, size: tuple[int, int], x: Tensor, loss: Loss, change: Callable[[Network, Tensor], None] | None = None
) -> None:
    by_hand, by_autograd = networks(name, size)
    phi, statistics = by_autograd.initial(list(range(len(x))))
    if change is not None:
        change(by_autograd, phi)
    a = by_hand.training_pass(phi, statistics, x, loss, twice=True)
    b = by_autograd.training_pass(phi, statistics, x, loss, twice=True)
    assert isinstance(a, TangentPass)
    assert a.loss.shape == b.loss.shape
    assert a.statistics.shape == b.statistics.shape
    assert distance(a.loss, b.loss) < 1e-12
    assert distance(a.gradient, b.gradient) < 1e-10
    for seed in (1, 2):  # twice: a product does not change the pass
        v = direction(phi, seed)
        assert distance(a.hessian_vector_product(v), b.hessian_vector_product(v)) < 1e-10


@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize(("name", "size"), CASES)
def test_equal_to_autograd(name: str, size: tuple[int, int], R: int) -> None:
    assert_equal_passes(name, size, pictures(name, size, R), cross_entropy(labels(R)))


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_equal_on_flat_areas(name: str, size: tuple[int, int]) -> None:
    assert_equal_passes(name, size, flat_areas(pictures(name, size, 2)), cross_entropy(labels(2)))


def test_ties_in_single_precision() -> None:
    """Equal values in a window are equal bit for bit in both passes, so that both select the first."""
    x = flat_areas(pictures("rainbow", (28, 28), 1, N=8)).float()
    by_hand, by_autograd = networks("rainbow", (28, 28), torch.float32)
    phi, statistics = by_autograd.initial([0])
    passes = [n.training_pass(phi, statistics, x, cross_entropy(labels(1, 8)), True) for n in (by_hand, by_autograd)]
    assert distance(passes[0].gradient, passes[1].gradient) < 1e-5
    products = [one.hessian_vector_product(direction(phi)) for one in passes]
    assert distance(*products) < 1e-5


def no_biases(network: Network, phi: Tensor) -> None:
    """Make every input of a ReLU exactly 0 for a black image."""
    offset = 0
    for name, p in network.module.named_parameters():
        if name.startswith("convolutions") and name.endswith("bias"):
            phi[:, offset : offset + p.numel()] = 0
        offset += p.numel()


@pytest.mark.parametrize("change", [None, no_biases])
@pytest.mark.parametrize(("name", "size"), SMALL)
def test_equal_on_black_images(
    name: str, size: tuple[int, int], change: Callable[[Network, Tensor], None] | None
) -> None:
    x = torch.zeros_like(pictures(name, size, 2))
    assert_equal_passes(name, size, x, cross_entropy(labels(2)), change)


@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize(
    "loss", [brier(labels(3)), lambda logits: logits[..., 0].sum(1) - logits[..., 1].mean(1)], ids=["curved", "linear"]
)
@pytest.mark.parametrize(("name", "size"), SMALL)
def test_equal_for_other_losses(name: str, size: tuple[int, int], loss: Loss, R: int) -> None:
    of_these = loss if R == 3 else lambda logits: loss(logits.expand(3, -1, -1))[:1]
    assert_equal_passes(name, size, pictures(name, size, R), of_these)


@pytest.mark.parametrize("gap", [300.0, -300.0])
def test_logits_far_apart(gap: float) -> None:
    by_hand, by_autograd = networks("rainbow", (16, 16))
    phi, statistics = by_hand.initial([0])
    by_hand.head(phi)[1][:, 0] += gap
    x, loss = pictures("rainbow", (16, 16), 1), cross_entropy(labels(1))
    a, b = (n.training_pass(phi, statistics, x, loss, True) for n in (by_hand, by_autograd))
    assert distance(a.gradient, b.gradient) < 1e-10
    v = direction(phi)
    assert distance(a.hessian_vector_product(v), b.hessian_vector_product(v)) < 1e-10


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_a_stack_equals_each_replicate_alone(name: str, size: tuple[int, int]) -> None:
    network = networks(name, size)[0]
    phi, statistics = network.initial([0, 1, 2])
    x, y, v = pictures(name, size, 3), labels(3), direction(phi)
    together = network.training_pass(phi, statistics, x, cross_entropy(y), twice=True)
    product = together.hessian_vector_product(v)
    logits = network.logits(phi, statistics, x)
    for r in range(3):
        one = slice(r, r + 1)
        alone = network.training_pass(phi[one], statistics[one], x[one], cross_entropy(y[one]), twice=True)
        assert torch.equal(alone.gradient, together.gradient[one])
        assert torch.equal(alone.statistics, together.statistics[one])
        assert torch.equal(alone.hessian_vector_product(v[one]), product[one])
        assert torch.equal(network.logits(phi[one], statistics[one], x[one]), logits[one])


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_all_replicates_in_one_pass(name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with the same tensors on the CPU."""
    network = networks(name, size)[0]
    phi, statistics = network.initial([0, 1, 2])
    x, loss, v = pictures(name, size, 3), cross_entropy(labels(3)), direction(phi)
    one_by_one = network.training_pass(phi, statistics, x, loss, twice=True)
    monkeypatch.setattr(tangent, "groups_of", lambda phi: [slice(0, len(phi))])
    at_once = network.training_pass(phi, statistics, x, loss, twice=True)
    assert distance(at_once.gradient, one_by_one.gradient) < 1e-10
    assert distance(at_once.statistics, one_by_one.statistics) < 1e-12
    assert distance(at_once.hessian_vector_product(v), one_by_one.hessian_vector_product(v)) < 1e-10


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_passes_do_not_share_memory(name: str, size: tuple[int, int]) -> None:
    """A window holds several passes; the products of each are independent of later passes."""
    network, by_autograd = networks(name, size)
    phi, statistics = network.initial([0])
    v = direction(phi)
    loss = cross_entropy(labels(1))
    xs = [pictures(name, size, 1, seed=seed) for seed in range(4)]
    passes = [network.training_pass(phi, statistics, x, loss, twice=True) for x in xs]
    first = [one.hessian_vector_product(v) for one in passes]
    network.logits(phi, statistics, xs[0])
    for x, one, product in zip(xs, passes, first, strict=True):
        assert torch.equal(one.hessian_vector_product(v), product)
        truth = by_autograd.training_pass(phi, statistics, x, loss, twice=True).hessian_vector_product(v)
        assert distance(product, truth) < 1e-10


def test_memory_of_a_deleted_pass_is_reused() -> None:
    network = networks("rainbow", (16, 16))[0]
    phi, statistics = network.initial([0])
    x, loss = pictures("rainbow", (16, 16), 1), cross_entropy(labels(1))
    window = [network.training_pass(phi, statistics, x, loss, twice=True) for _ in range(3)]
    for _ in range(20):
        window = [*window[1:], network.training_pass(phi, statistics, x, loss, twice=True)]
    (stages,) = network._stages.values()  # type: ignore[attr-defined]
    window.clear()
    assert len(stages._free) == 4


def test_memory_is_kept_for_recent_shapes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass still works after the memory of its shape is dropped from the cache."""
    monkeypatch.setitem(tangent._SHAPES, "cpu", 3)
    network, by_autograd = networks("rainbow", (16, 16))
    phi, statistics = network.initial([0])
    x, v = pictures("rainbow", (16, 16), 1), direction(phi)
    old_pass = network.training_pass(phi, statistics, x, cross_entropy(labels(1)), twice=True)
    for N in (4, 5, 6, 7, 5):
        network.logits(phi, statistics, pictures("rainbow", (16, 16), 1, N))
    assert [shape[1] for shape in network._stages] == [6, 7, 5]  # type: ignore[attr-defined]
    truth = by_autograd.training_pass(phi, statistics, x, cross_entropy(labels(1)), twice=True)
    assert distance(old_pass.hessian_vector_product(v), truth.hessian_vector_product(v)) < 1e-10


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_hessian_is_symmetric_and_linear(name: str, size: tuple[int, int]) -> None:
    network = networks(name, size)[0]
    phi, statistics = network.initial([0])
    gradient_pass = network.training_pass(
        phi, statistics, pictures(name, size, 1), cross_entropy(labels(1)), twice=True
    )
    u, v = direction(phi, 1), direction(phi, 2)
    hu, hv = gradient_pass.hessian_vector_product(u), gradient_pass.hessian_vector_product(v)
    assert float((u * hv).sum()) == pytest.approx(float((v * hu).sum()), rel=1e-9)
    assert distance(gradient_pass.hessian_vector_product(u - 2 * v), hu - 2 * hv) < 1e-10


@pytest.mark.parametrize(("name", "size"), [("rainbow", (28, 28)), ("siamese", (32, 32))])
def test_single_precision(name: str, size: tuple[int, int]) -> None:
    """PyTorch's batch norm with channels last would have an error of 2e-2.

    The median of three: if rounding changes the selection of a ReLU or max-pool, even autograd has an error of 1e-3.
    """
    single, double = networks(name, size, torch.float32)[0], networks(name, size)[0]
    loss = cross_entropy(labels(1, 4))
    apart = []
    for seed in range(3):
        phi, statistics = single.initial([seed])
        x, v = pictures(name, size, 1, N=4, seed=seed).float(), direction(phi)
        a = single.training_pass(phi, statistics, x, loss, twice=True)
        b = double.training_pass(phi.double(), statistics.double(), x.double(), loss, twice=True)
        assert a.gradient.dtype == torch.float32
        product = a.hessian_vector_product(v)
        apart.append(
            max(
                distance(a.gradient.double(), b.gradient),
                distance(product.double(), b.hessian_vector_product(v.double())),
            )
        )
    assert sorted(apart)[1] < 2e-4


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_predictions(name: str, size: tuple[int, int]) -> None:
    """With the running statistics, for any number of images, and differentiable if parameters require a gradient."""
    by_hand, by_autograd = networks(name, size)
    phi, statistics = by_hand.initial([0, 1])
    statistics += torch.rand(statistics.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = pictures(name, size, 2, N=37)
    expected = by_autograd.logits(phi, statistics, x)
    assert distance(by_hand.logits(phi, statistics, x), expected) < 1e-12
    parameters = phi.clone().requires_grad_()
    logits = by_hand.logits(parameters, statistics, x)
    assert distance(logits.detach(), expected) < 1e-12
    assert torch.autograd.grad(logits.sum(), parameters)[0].any()


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_leaves_no_graph_and_changes_nothing(name: str, size: tuple[int, int]) -> None:
    network = networks(name, size)[0]
    phi, statistics = network.initial([0])
    x, v = pictures(name, size, 1), direction(phi)
    before = [t.clone() for t in (phi, statistics, x, v)]
    gradient_pass = network.training_pass(phi.requires_grad_(), statistics, x, brier(labels(1)), twice=True)
    product = gradient_pass.hessian_vector_product(v)
    for t in (gradient_pass.loss, gradient_pass.gradient, gradient_pass.statistics, product):
        assert t.grad_fn is None
        assert not t.requires_grad
    assert all(torch.equal(t, was) for t, was in zip((phi, statistics, x, v), before, strict=True))


@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize(("name", "size"), CASES)
def test_activity_equals_autograd(name: str, size: tuple[int, int], R: int) -> None:
    """The mean |h| of every unit; measuring it changes nothing, and each replicate has the bits that it has alone."""
    by_hand, by_autograd = networks(name, size)
    phi, statistics = by_autograd.initial(list(range(R)))
    x, loss = pictures(name, size, R), cross_entropy(labels(R))
    a, b = (network.training_pass(phi, statistics, x, loss, activity=True) for network in (by_hand, by_autograd))
    assert a.activity is not None
    assert b.activity is not None
    assert a.activity.shape == (R, sum(by_hand.module.filters))  # type: ignore[arg-type]
    assert not a.activity.requires_grad
    assert not b.activity.requires_grad
    assert distance(a.activity, b.activity) < 1e-11
    for network, one in ((by_hand, a), (by_autograd, b)):
        plain = network.training_pass(phi, statistics, x, loss)
        assert plain.activity is None
        assert torch.equal(plain.gradient, one.gradient)
        assert torch.equal(plain.statistics, one.statistics)
        last = slice(R - 1, R)
        alone = network.training_pass(
            phi[last], statistics[last], x[last], cross_entropy(labels(R)[last]), activity=True
        )
        assert alone.activity is not None
        assert one.activity is not None
        assert torch.equal(alone.activity, one.activity[last])


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_activity_of_all_replicates_in_one_pass(
    name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with the same tensors on the CPU."""
    network = networks(name, size)[0]
    phi, statistics = network.initial([0, 1, 2])
    x, loss = pictures(name, size, 3), cross_entropy(labels(3))
    one_by_one = network.training_pass(phi, statistics, x, loss, activity=True).activity
    monkeypatch.setattr(tangent, "groups_of", lambda phi: [slice(0, len(phi))])
    at_once = network.training_pass(phi, statistics, x, loss, activity=True).activity
    assert one_by_one is not None
    assert at_once is not None
    assert distance(at_once, one_by_one) < 1e-12


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_counts_evaluations_and_refuses_products_without_twice(name: str, size: tuple[int, int]) -> None:
    network = networks(name, size)[0]
    phi, statistics = network.initial([0, 1])
    x, loss = pictures(name, size, 2), cross_entropy(labels(2))
    once = network.training_pass(phi, statistics, x, loss)
    assert network.gradient_evaluations == 3
    twice = network.training_pass(phi, statistics, x, loss, twice=True)
    twice.hessian_vector_product(phi)
    assert network.gradient_evaluations == 3 + 3 + 6
    with pytest.raises(ValueError, match="twice=True"):
        once.hessian_vector_product(phi)


# Features, and the gradient from one with respect to them


def given_by_features(R: int, N: int, F: int) -> Tensor:
    return torch.randn(R, N, F, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@pytest.mark.parametrize(("R", "N"), [(1, 3), (3, 3), (2, 37)])
@pytest.mark.parametrize(("name", "size"), [*SMALL, ("rainbow", (28, 28)), ("siamese", (16, 16))])
def test_embedding_pass_equals_autograd(name: str, size: tuple[int, int], R: int, N: int) -> None:
    """Without batch norm, 37 images are split into several passes."""
    by_hand, by_autograd = networks(name, size)
    phi, statistics = by_autograd.initial(list(range(R)))
    x = pictures(name, size, R, N)
    a, b = (network.embedding_pass(phi, statistics, x) for network in (by_hand, by_autograd))
    assert isinstance(a, TangentEmbeddingPass)
    assert distance(a.features, b.features) < 1e-9
    assert a.statistics.shape == b.statistics.shape
    assert distance(a.statistics, b.statistics) < 1e-9
    w = given_by_features(*a.features.shape)
    by_a, by_b = a.backward(w), b.backward(w)
    assert distance(by_a, by_b) < 1e-9
    assert all(not part.any() for part in by_hand.head(by_a))
    assert by_hand.gradient_evaluations == by_autograd.gradient_evaluations == N


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_gradient_from_the_features_equals_that_from_the_logits(name: str, size: tuple[int, int]) -> None:
    """Except for the head: the gradient with respect to the logits times the head is that with respect to the features."""
    network = networks(name, size)[0]
    phi, statistics = network.initial([0, 1])
    x, y = pictures(name, size, 2), labels(2)
    embedded = network.embedding_pass(phi, statistics, x)
    weight, bias = network.head(phi)
    p = (embedded.features @ weight.transpose(1, 2) + bias.unsqueeze(1)).softmax(2)
    slope = (p - torch.nn.functional.one_hot(y, CLASSES)) / y.shape[1]
    gradient_pass = network.training_pass(phi, statistics, x, cross_entropy(y))
    expected = gradient_pass.gradient.clone()
    for part in network.head(expected):
        part.zero_()
    assert distance(embedded.backward(slope @ weight), expected) < 1e-10
    assert torch.equal(embedded.statistics, gradient_pass.statistics)


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_embedding_passes_of_a_stack(name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replicate alone, bit for bit; all in one pass, as on a GPU, up to rounding."""
    network = networks(name, size)[0]
    phi, statistics = network.initial([0, 1, 2])
    x, w = pictures(name, size, 3), given_by_features(3, 3, network.features)
    together = network.embedding_pass(phi, statistics, x)
    gradient = together.backward(w)
    for r in range(3):
        one = slice(r, r + 1)
        alone = network.embedding_pass(phi[one], statistics[one], x[one])
        assert torch.equal(alone.features, together.features[one])
        assert torch.equal(alone.backward(w[one]), gradient[one])
    monkeypatch.setattr(tangent, "groups_of", lambda phi: [slice(0, len(phi))])
    at_once = network.embedding_pass(phi, statistics, x)
    assert distance(at_once.features, together.features) < 1e-10
    assert distance(at_once.backward(w), gradient) < 1e-10


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_features_of_predictions(name: str, size: tuple[int, int]) -> None:
    by_hand, by_autograd = networks(name, size)
    phi, statistics = by_hand.initial([0, 1])
    statistics += torch.rand(statistics.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = pictures(name, size, 2, N=37)
    expected = by_autograd.embed(phi, statistics, x)
    assert distance(by_hand.embed(phi, statistics, x), expected) < 1e-10
    parameters = phi.clone().requires_grad_()
    features = by_hand.embed(parameters, statistics, x)
    assert distance(features.detach(), expected) < 1e-10
    assert torch.autograd.grad(features.sum(), parameters)[0].any()
