"""The step that `meta_gradient.py` times, by every contender.

All do the same step j: from φ, θ and the last K batches, the online step on D_j, the gradient at φ_j on D_m, and dJ/dθ
through K steps, and Adam's step on θ. Ours has stored its data of the steps before; the others rerun the window,
as these libraries are normally used. Imports `higher` and `torchopt` only where they are needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from learners.batch import Batch
from learners.networks.architectures import NETWORKS
from learners.networks.build import build
from learners.networks.network import cross_entropy
from learners.networks.tangent import TangentNetwork
from learners.training.meta_gradient import MetaObjective, OnlineStep
from learners.training.optim import create_optimizer

N, CLASSES = 10, 10
ALPHA1, ALPHA2, BETA1, BETA2 = 0.01, 0.001, 0.05, 0.01
SHAPES = {"rainbow": (3, 28, 28), "siamese": (3, 32, 32)}

Step = Callable[[], Tensor]
"""A function that does the step and returns the meta-gradient, flat."""


@dataclass
class Case:
    """The state K − 1 steps before j, the K batches up to D_j with the θ of each step, and D_m."""

    network: str
    start: Tensor
    statistics: Tensor
    batches: list[Batch]
    thetas: list[Tensor]
    meta_batch: Batch

    @property
    def where(self) -> dict[str, Any]:
        return {"device": self.start.device, "dtype": self.start.dtype}


def make_case(network: str, K: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Case:
    """A case of noise for pictures, with every θ slightly off φ, so that the pull of β₁ is not zero."""
    phi, statistics = build(network, SHAPES[network], CLASSES, device=device, dtype=dtype).initial([0])
    g = torch.Generator().manual_seed(1)
    views = (2,) if network == "siamese" else ()

    def batch() -> Batch:
        x = torch.rand(1, N, *views, *SHAPES[network], generator=g).to(device, dtype)
        return Batch(x, torch.randint(CLASSES, (1, N), generator=g).to(device), torch.zeros(1, N, 1))

    batches = [batch() for _ in range(K)]
    thetas = [phi + 0.01 * torch.randn(phi.shape, generator=g).to(device, dtype) for _ in range(K)]
    return Case(network, phi, statistics, batches, thetas, batch())


def ours(case: Case, online: str = "sgd", tangent: bool = True, recorded: bool = True) -> Step:
    """Our step; the K − 1 steps before it run here, with the data that each of them stores."""
    network = build(case.network, SHAPES[case.network], CLASSES, tangent=tangent, **case.where)
    if isinstance(network, TangentNetwork) and not recorded:
        network.recorder = None
    optimizer = create_optimizer("sgd", ALPHA1) if online == "sgd" else create_optimizer("adam", 0.001)
    meta_optimizer = create_optimizer("adam", ALPHA2)
    objective = MetaObjective(optimizer, BETA1, BETA2)
    theta, meta = case.thetas[-1], case.meta_batch
    meta_moments = meta_optimizer.initial(theta)
    window: list[OnlineStep] = []

    def next_step() -> OnlineStep:
        phi, statistics, moments = case.start, case.statistics, optimizer.initial(case.start)
        if window:
            phi, statistics, moments = window[-1].new_phi, window[-1].training_pass.statistics, window[-1].after
        batch, its_theta = case.batches[len(window)], case.thetas[len(window)]
        return objective.online_step(network, batch, phi, its_theta, statistics, moments)

    while len(window) < len(case.batches) - 1:
        window.append(next_step())

    def step() -> Tensor:
        newest = next_step()
        statistics = newest.training_pass.statistics
        at_phi = network.training_pass(newest.new_phi, statistics, meta.x, cross_entropy(meta.y))
        gradient = objective.adjoint([*window, newest], theta, at_phi.gradient)
        meta_optimizer.step(theta, gradient.total, meta_moments)
        return gradient.total[0]

    return step


class Rerun:
    """The common part of the others: an ordinary module at φ of the window's start, and the parts of J."""

    def __init__(self, case: Case, channels_last: bool) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.module: nn.Module = NETWORKS[case.network](SHAPES[case.network], CLASSES).to(**case.where)
        self.shapes = [p.shape for p in self.module.parameters()]
        with torch.no_grad():
            for p, value in zip(self.module.parameters(), self.split(case.start), strict=True):
                p.copy_(value)
        self.module.to(memory_format=layout)
        *online, (self.meta_x, self.meta_y) = [
            (b.x[0].contiguous(memory_format=layout) if b.x.dim() == 5 else b.x[0], b.y[0])
            for b in [*case.batches, case.meta_batch]
        ]
        self.thetas = [self.split(theta.clone()) for theta in case.thetas]
        self.meta_optimizer = torch.optim.Adam([nn.Parameter(t) for t in self.thetas[-1]], lr=ALPHA2)
        self.window = [(x, y, theta) for (x, y), theta in zip(online, self.thetas, strict=True)]

    def split(self, flat: Tensor) -> list[Tensor]:
        pieces = flat[0].split([shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def deltas(self) -> list[Tensor]:
        """δ = 0, by which J is differentiated."""
        return [torch.zeros_like(theta, requires_grad=True) for theta in self.thetas[0]]

    def pull(self, phi: Any, theta: Sequence[Tensor], deltas: Sequence[Tensor]) -> Tensor:
        """‖φ − θ − δ‖²."""
        return torch.stack([(p - t - d).square().sum() for p, t, d in zip(phi, theta, deltas, strict=True)]).sum()

    def move(self, gradient: Sequence[Tensor]) -> Tensor:
        """Adam's step on θ; returns the gradient, flat."""
        for p, g in zip(self.meta_optimizer.param_groups[0]["params"], gradient, strict=True):
            p.grad = g
        self.meta_optimizer.step()
        return torch.cat([g.flatten() for g in gradient])


def with_higher(case: Case, channels_last: bool) -> Step:
    import higher

    run = Rerun(case, channels_last)
    optimizer = torch.optim.SGD(run.module.parameters(), lr=ALPHA1)

    def step() -> Tensor:
        deltas, theta = run.deltas(), run.thetas[-1]
        with higher.innerloop_ctx(run.module, optimizer) as (model, inner):
            penalty = run.pull(model.parameters(), theta, deltas)
            for x, y, its_theta in run.window:
                inner.step(F.cross_entropy(model(x), y) + BETA1 * run.pull(model.parameters(), its_theta, deltas))
                penalty = penalty + run.pull(model.parameters(), theta, deltas)
            objective = F.cross_entropy(model(run.meta_x), run.meta_y) + BETA2 * penalty
            return run.move(torch.autograd.grad(objective, deltas))

    return step


def with_torchopt(case: Case, channels_last: bool) -> Step:
    import torchopt

    run = Rerun(case, channels_last)
    model, start = run.module, torchopt.extract_state_dict(run.module, by="reference")

    def step() -> Tensor:
        deltas, theta = run.deltas(), run.thetas[-1]
        inner = torchopt.MetaSGD(model, lr=ALPHA1)
        penalty = run.pull(model.parameters(), theta, deltas)
        for x, y, its_theta in run.window:
            inner.step(F.cross_entropy(model(x), y) + BETA1 * run.pull(model.parameters(), its_theta, deltas))
            penalty = penalty + run.pull(model.parameters(), theta, deltas)
        objective = F.cross_entropy(model(run.meta_x), run.meta_y) + BETA2 * penalty
        gradient = run.move(torch.autograd.grad(objective, deltas))
        torchopt.recover_state_dict(model, start)
        return gradient

    return step


def with_autograd(case: Case, channels_last: bool) -> Step:
    run = Rerun(case, channels_last)
    names = [name for name, _ in run.module.named_parameters()]

    def loss(phi: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(run.module, dict(zip(names, phi, strict=True)), (x,)), y)

    def step() -> Tensor:
        deltas, theta = run.deltas(), run.thetas[-1]
        phi = [p.detach().requires_grad_() for p in run.module.parameters()]
        penalty = run.pull(phi, theta, deltas)
        for k, (x, y, its_theta) in enumerate(run.window):
            # The window's first step starts from a constant: its gradient needs no graph.
            gradient = torch.autograd.grad(loss(phi, x, y), phi, create_graph=k > 0)
            each = zip(phi, gradient, its_theta, deltas, strict=True)
            phi = [p - ALPHA1 * (g + 2 * BETA1 * (p - t - d)) for p, g, t, d in each]
            penalty = penalty + run.pull(phi, theta, deltas)
        objective = loss(phi, run.meta_x, run.meta_y) + BETA2 * penalty
        return run.move(torch.autograd.grad(objective, deltas))

    return step


OURS: dict[str, Callable[[Case], Step]] = {
    "ours": ours,
    "ours, Adam online": lambda case: ours(case, online="adam"),
    "adjoint on autograd's graphs": lambda case: ours(case, tangent=False),
}
OTHERS = {"unrolled": with_autograd, "higher": with_higher, "torchopt": with_torchopt}


def contenders(network: str) -> dict[str, Callable[[Case], Step]]:
    """All contenders that can run here, ours first; the others in both memory layouts."""
    steps = dict(OURS)
    if torch.cuda.is_available():
        steps["ours, not recorded"] = lambda case: ours(case, recorded=False)
    for name, other in OTHERS.items():
        if name == "unrolled" or (network == "rainbow" and find_spec(name) is not None):
            steps[name] = lambda case, other=other: other(case, False)  # type: ignore[misc]
            steps[f"{name}, channels_last"] = lambda case, other=other: other(case, True)  # type: ignore[misc]
    return steps
