"""MOCA: PCOC and the belief against closed forms and brute force, the training loss against finite differences."""

import io
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from learners import Batch, Learner
from learners.changepoint.belief import Belief
from learners.changepoint.pcoc import Prior, log_joint
from learners.changepoint.window import FARTHEST, Window, window_gradient, window_loss
from learners.networks.cuda_graphs import RecordedFunction

D = torch.float64
HAZARD = 0.05


def made_prior(replicates: int = 1, classes: int = 2, features: int = 3, seed: int = 0, dtype: Any = D) -> Prior:
    draw = torch.Generator().manual_seed(seed)
    flat = torch.randn(replicates, Prior.size(classes, features), generator=draw, dtype=dtype)
    return Prior.unflatten(0.5 * flat, classes)


def made_points(
    count: int, replicates: int = 1, classes: int = 2, features: int = 3, seed: int = 1
) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(replicates, count, features, generator=draw, dtype=D)
    return z, torch.randint(0, classes, (replicates, count), generator=draw)


def switching_points(counts: list[int], distance: float = 4.0, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Features of two classes, N(∓distance/2, 1), whose means are swapped from each part to the next."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (1, sum(counts)), generator=draw)
    sign = torch.cat([torch.full((count,), (-1.0) ** part, dtype=D) for part, count in enumerate(counts)])
    centre = (2 * y - 1) * sign * distance / 2
    return centre.unsqueeze(2) + torch.randn(1, sum(counts), 1, generator=draw, dtype=D), y


def evidence(prior: Prior, z: Tensor, y: Tensor) -> Tensor:
    """log p(z, y) of the datapoints of one task: the features of a class are jointly Gaussian, the labels a Pólya urn.

    z [n, F], y [n], with the first replicate's prior; computed jointly, not datapoint by datapoint.
    """
    total = torch.zeros((), dtype=D)
    alpha = prior.log_counts[0].exp()
    for c in range(len(alpha)):
        points = z[y == c]
        n = len(points)
        total = total + torch.lgamma(alpha[c] + n) - torch.lgamma(alpha[c])
        for f in range(z.shape[1] if n else 0):
            noise, strength = prior.log_noise[0, c, f].exp(), prior.log_strength[0, c, f].exp()
            covariance = noise * (torch.eye(n, dtype=D) + 1 / strength)
            mean = prior.mean[0, c, f].expand(n)
            total = total + MultivariateNormal(mean, covariance).log_prob(points[:, f])
    return total - torch.lgamma(alpha.sum() + len(z)) + torch.lgamma(alpha.sum())


def enumerated_belief(prior: Prior, z: Tensor, y: Tensor) -> Tensor:
    """p(current task started at s | datapoints), s = 0 … n, over all 2ⁿ divisions of n datapoints into tasks."""
    n = len(y)
    parts = {(a, b): evidence(prior, z[a:b], y[a:b]) for b in range(n + 1) for a in range(b + 1)}
    weights: list[list[Tensor]] = [[] for _ in range(n + 1)]
    for cuts in itertools.product([False, True], repeat=n):  # cuts[i]: a task ends with datapoint i
        ends = [i + 1 for i, cut in enumerate(cuts) if cut]
        log_p = torch.tensor(sum(math.log(HAZARD if cut else 1 - HAZARD) for cut in cuts), dtype=D)
        for start, stop in itertools.pairwise([0, *ends, n]):
            log_p = log_p + parts[start, stop]
        weights[ends[-1] if ends else 0].append(log_p)
    return torch.stack([torch.stack(each).logsumexp(0) for each in weights]).softmax(0)


def segmented_belief(prior: Prior, z: Tensor, y: Tensor) -> Tensor:
    """The same for longer streams: sums over the start of the last task first, with the evidence of complete tasks."""
    n = len(y)
    starts = [torch.zeros((), dtype=D)]  # log p(datapoints before s, a task starts at s)
    for stop in range(1, n + 1):
        parts = [
            starts[s] + evidence(prior, z[s:stop], y[s:stop]) + (stop - s - 1) * math.log(1 - HAZARD) + math.log(HAZARD)
            for s in range(stop)
        ]
        starts.append(torch.stack(parts).logsumexp(0))
    ages = range(n, -1, -1)
    last = [starts[n - age] + evidence(prior, z[n - age :], y[n - age :]) + age * math.log(1 - HAZARD) for age in ages]
    return torch.stack(last).softmax(0)


def learned(prior: Prior, z: Tensor, y: Tensor, most: int = 1000) -> Belief:
    return Belief.fresh(prior).learn(prior, z, y, 0, HAZARD, most)


class TestPCOC:
    def test_posterior_and_predictive_equal_their_closed_forms(self) -> None:
        """One class, one feature, m=1, σ²=4, κ=2, datapoints 3, 5, 4: mean (2·1+12)/5, predictive variance 4 (1 + 1/5)."""
        prior = Prior(
            torch.tensor([[[1.0]]], dtype=D),
            torch.tensor([[[math.log(4)]]], dtype=D),
            torch.tensor([[[math.log(2)]]], dtype=D),
            torch.zeros(1, 1, dtype=D),
        )
        belief = learned(prior, torch.tensor([[[3.0], [5.0], [4.0]]], dtype=D), torch.zeros(1, 3, dtype=torch.int64))
        z = torch.tensor([[[0.5]]], dtype=D)
        oldest = log_joint(prior, belief.counts, belief.sums, z)[0, 0, 0]
        expected = -0.5 * ((0.5 - 2.8) ** 2 / 4.8 + math.log(2 * math.pi * 4.8))
        assert oldest.item() == pytest.approx(expected, rel=1e-12)

    def test_class_probabilities_are_counts_over_their_sum(self) -> None:
        """α = (1, 2), labels 0, 0, 1: (1+2)/6 and (2+1)/6, with equal densities of z."""
        prior = Prior.unflatten(torch.zeros(1, Prior.size(2, 1), dtype=D), 2)
        prior = prior._replace(log_counts=torch.tensor([[0.0, math.log(2)]], dtype=D))
        counts = torch.tensor([[[2.0, 1.0]]], dtype=D)
        density = log_joint(prior, counts * 0, torch.zeros(1, 1, 2, 1, dtype=D), torch.zeros(1, 1, 1, dtype=D))
        assert density.exp()[0, 0, 0, 1] / density.exp()[0, 0, 0, 0] == pytest.approx(2)
        certain = prior._replace(log_strength=prior.log_strength + 50)
        seen = log_joint(certain, counts, density.new_zeros(1, 1, 2, 1), density.new_zeros(1, 1, 1))
        assert seen[0, 0, 0].softmax(0).tolist() == pytest.approx([0.5, 0.5])

    def test_the_product_of_predictives_is_the_joint_evidence(self) -> None:
        """The joint evidence is a multivariate Gaussian and a Pólya urn of all datapoints."""
        prior, (z, y) = made_prior(classes=3), made_points(12, classes=3)
        counts, sums = torch.zeros(1, 1, 3, dtype=D), torch.zeros(1, 1, 3, 3, dtype=D)
        total = 0.0
        for t in range(12):
            label = torch.nn.functional.one_hot(y[:, t], 3)[:, None]
            total += float(log_joint(prior, counts, sums, z[:, t : t + 1])[0, 0, 0, y[0, t]])
            counts, sums = counts + label, sums + label.unsqueeze(3) * z[:, t, None, None]
        assert total == pytest.approx(float(evidence(prior, z[0], y[0])), rel=1e-12)


class TestBelief:
    def test_of_nine_datapoints_is_the_sum_over_all_512_segmentations(self) -> None:
        prior, (z, y) = made_prior(), made_points(9)
        belief = learned(prior, z, y)
        assert belief.start[0].tolist() == list(range(10))
        torch.testing.assert_close(belief.log_weight[0].exp(), enumerated_belief(prior, z[0], y[0]), rtol=1e-10, atol=0)

    def test_of_thirty_datapoints_is_the_run_length_posterior(self) -> None:
        prior, (z, y) = made_prior(features=1), switching_points([12, 18])
        expected = segmented_belief(prior, z[0], y[0])
        torch.testing.assert_close(learned(prior, z, y).log_weight[0].exp(), expected, rtol=1e-9, atol=0)

    def test_at_a_change_point(self) -> None:
        """Before it, the first hypothesis has the mass; soon after it, no earlier hypothesis has any."""
        prior = Prior.unflatten(torch.zeros(1, Prior.size(2, 1), dtype=D), 2)
        z, y = switching_points([40, 20])
        before, at, after = (learned(prior, z[:, :n], y[:, :n]) for n in (40, 41, 50))
        assert before.start[0, before.log_weight[0].argmax()] == 0
        assert before.log_weight[0, 0].exp() > 0.8
        assert at.log_weight[0, 0] < before.log_weight[0, 0]
        assert after.start[0, after.log_weight[0].argmax()] == 40
        assert after.log_weight[0, 40].exp() > 0.5
        assert after.log_weight[0, :40].exp().sum() < 0.01
        assert float(before.run_length(40)) > 32
        assert 5 < float(after.run_length(50)) < 10.1

    def test_predicts_the_mixture_weighted_by_p_of_x(self) -> None:
        """Σ_h w_h p(x|h) p(y|x,h) / Σ_h w_h p(x|h), computed directly."""
        prior, (z, y), (new, _) = made_prior(), made_points(4), made_points(6, seed=3)
        belief = learned(prior, z, y)
        for b in range(6):
            joint = log_joint(prior, belief.counts, belief.sums, new)[0, b].exp()
            p_x = joint.sum(1)
            weight = belief.log_weight[0].exp() * p_x
            expected = ((weight / weight.sum())[:, None] * joint / p_x[:, None]).sum(0)
            torch.testing.assert_close(belief.predict(prior, new)[0, b].exp(), expected, rtol=1e-12, atol=0)

    def test_keeps_the_best_fifty_of_eighty_hypotheses(self) -> None:
        prior, (z, y) = made_prior(features=1), switching_points([30, 30, 20], distance=1.5)
        exact_49, exact_50 = learned(prior, z[:, :49], y[:, :49]), learned(prior, z[:, :50], y[:, :50])
        torch.testing.assert_close(learned(prior, z[:, :49], y[:, :49], 50), exact_49)
        pruned = learned(prior, z[:, :50], y[:, :50], 50)
        worst = int(exact_50.log_weight[0].argmin())
        stay = [h for h in range(51) if h != worst]
        assert pruned.start[0].tolist() == stay
        expected = exact_50.log_weight[0, stay].softmax(0)
        torch.testing.assert_close(pruned.log_weight[0].exp(), expected)
        torch.testing.assert_close(pruned.sums[0], exact_50.sums[0, stay])

        exact, end = learned(prior, z, y), learned(prior, z, y, 50)
        assert end.log_weight.shape == (1, 50)
        assert float(end.log_weight.exp().sum()) == pytest.approx(1)
        dense = torch.zeros(81, dtype=D).scatter(0, end.start[0], end.log_weight[0].exp())
        assert float((dense - exact.log_weight[0].exp()).abs().sum()) < 0.05
        torch.testing.assert_close(end.predict(prior, z), exact.predict(prior, z), rtol=0, atol=0.02)

    def test_features_far_wider_than_the_noise_end_every_task(self) -> None:
        """One class, 64 features, no change: of deviation 4, each datapoint is more probable under the wider prior."""
        prior = Prior.unflatten(torch.zeros(1, Prior.size(1, 64), dtype=D), 1)
        z = torch.randn(1, 100, 64, generator=torch.Generator().manual_seed(4), dtype=D)
        none = torch.zeros(1, 100, dtype=torch.int64)
        assert float(learned(prior, 4 * z, none).run_length(100)) < 3
        assert float(learned(prior, 0.4 * z, none).run_length(100)) > 90

    def test_recomputes_the_window_and_keeps_settled_statistics(self) -> None:
        """Datapoints 0–2 are settled with their old features; 3–5 have new ones; hypotheses 0, 2, 4 and 6."""
        prior = made_prior(features=1, classes=1)
        belief = learned(prior, torch.arange(6.0, dtype=D).reshape(1, 6, 1), torch.zeros(1, 6, dtype=torch.int64))
        rows = torch.tensor([0, 2, 4, 6])
        belief = Belief(*(part[:, rows] for part in belief))
        assert belief.sums.flatten().tolist() == [15, 14, 9, 0]
        old, y = torch.tensor([[[0.0], [1.0], [2.0]]], dtype=D), torch.zeros(1, 3, dtype=torch.int64)
        belief = belief.settle(old, y, 0).recompute(torch.tensor([[[30.0], [40.0], [50.0]]], dtype=D), y, 3)
        assert belief.settled_sums.flatten().tolist() == [3, 2, 0, 0]
        assert belief.sums.flatten().tolist() == [123, 122, 90, 0]
        assert belief.counts.flatten().tolist() == [6, 4, 2, 0]

    def test_a_stack_equals_each_seed_alone(self) -> None:
        prior, (z, y) = made_prior(3, 3, 4), made_points(40, 3, 3, 4)
        stack = learned(prior, z, y, 10)
        for r in range(3):
            alone = learned(Prior(*(part[r : r + 1] for part in prior)), z[r : r + 1], y[r : r + 1], 10)
            for one, all_of_them in zip(alone, stack, strict=True):
                torch.testing.assert_close(one[0], all_of_them[r], rtol=1e-12, atol=1e-12)

    def test_is_finite_far_away(self) -> None:
        prior, (z, y) = made_prior(dtype=torch.float32), made_points(30)
        far = (z * 1e9).clamp(-FARTHEST, FARTHEST).float()
        belief = learned(prior, far, y, 8)
        assert all(bool(part.isfinite().all()) for part in belief)
        assert bool(belief.predict(prior, far).isfinite().all())
        assert bool(belief.predict(prior, 0 * far).isfinite().all())


class TestWindowLoss:
    @pytest.mark.parametrize("points", [1, 2, 25])
    def test_equals_the_mean_loss_of_the_belief(self, points: int) -> None:
        prior, (z, y) = made_prior(2, 3, 4), made_points(points, 2, 3, 4)
        belief, losses = Belief.fresh(prior), []
        for t in range(points):
            now = slice(t, t + 1)
            losses.append(-belief.predict(prior, z[:, now])[:, 0].gather(1, y[:, now]))
            belief = belief.learn(prior, z[:, now], y[:, now], t, HAZARD, 1000)
        torch.testing.assert_close(window_loss(prior, z, y, HAZARD), torch.cat(losses, 1).mean(1), rtol=1e-11, atol=0)

    def test_gradient_equals_finite_differences(self) -> None:
        (z, y), flat = made_points(14, 2, 3, 2), torch.cat([part.flatten(1) for part in made_prior(2, 3, 2)], 1)

        def loss(flat: Tensor, z: Tensor) -> Tensor:
            return window_loss(Prior.unflatten(flat, 3), z, y, HAZARD)

        assert torch.autograd.gradcheck(loss, (flat.requires_grad_(), z.requires_grad_()), rtol=1e-7, atol=1e-9)

    def test_is_finite_far_away_with_its_gradient(self) -> None:
        flat = torch.zeros(1, Prior.size(2, 3), requires_grad=True)
        z, y = made_points(30)
        far = (z * 1e9).clamp(-FARTHEST, FARTHEST).float().requires_grad_()
        loss = window_loss(Prior.unflatten(flat, 2), far, y, HAZARD)
        gradients = torch.autograd.grad(loss.sum(), (flat, far))
        assert bool(loss.isfinite().all())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)

    def test_window_of_newest_datapoints(self) -> None:
        def window(start: int, stop: int) -> Window:
            number = torch.arange(start, stop)[None]
            return Window(number.float(), number, number[..., None], number[..., None].double(), start)

        oldest, newest = window(0, 4).append(window(4, 7)).split(5)
        assert (oldest.y.tolist(), oldest.first) == ([[0, 1, 2, 3, 4]], 0)
        assert (newest.y.tolist(), newest.first) == ([[5, 6]], 5)
        assert newest.z.shape == (1, 2, 1)


SMALL: dict[str, Any] = {"window": 12, "hypotheses": 6}  # with batches of five, both are full after three


class TestWindowGradient:
    def test_is_the_gradient_of_the_loss_of_normalised_features(self) -> None:
        features, y = made_points(20, replicates=2)
        flat = torch.cat([part.flatten(1) for part in made_prior(2)], 1)
        origin, unit = features.mean(1, keepdim=True), torch.tensor([0.5, 3.0], dtype=D).view(2, 1, 1)
        losses, by_features, by_prior = window_gradient(features, flat, y, origin, unit, 2, HAZARD)

        def total(features: Tensor, flat: Tensor) -> Tensor:
            return window_loss(Prior.unflatten(flat, 2), (features - origin) / unit, y, HAZARD).sum()

        torch.testing.assert_close(losses.sum(), total(features, flat), rtol=1e-12, atol=0)
        for position, gradient in enumerate((by_features, by_prior)):
            direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(position), dtype=D)
            ends = []
            for step in (-1e-6, 1e-6):
                arguments = [features, flat]
                arguments[position] = arguments[position] + step * direction
                ends.append(float(total(*arguments)))
            assert float((gradient * direction).sum()) == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-7)

    def test_a_far_feature_is_at_the_bound_and_has_no_gradient(self) -> None:
        features, y = made_points(6)
        features[0, 3, 1] = 2 * FARTHEST
        flat = torch.zeros(1, Prior.size(2, 3), dtype=D)
        _, by_features, _ = window_gradient(
            features, flat, y, torch.zeros(1, 1, 3, dtype=D), torch.ones(1, 1, 1, dtype=D), 2, HAZARD
        )
        assert float(by_features[0, 3, 1]) == 0
        assert float(by_features[0, 3, 0]) != 0

    @pytest.mark.parametrize("name", ["rainbow", "siamese"])
    def test_recorded_operations_give_the_same_bits(
        self, request: pytest.FixtureRequest, traces: Any, name: str
    ) -> None:
        """The recursion reads no value and keeps none: the operations of one batch are those of the following ones."""
        world = replace(request.getfixturevalue(name), dtype=torch.float32)
        plain, recorded = (world.learner("moca", (0, 1), window=15) for _ in range(2))
        recorded._window_gradient = RecordedFunction(recorded._window_gradient)
        losses: tuple[list[Tensor], list[Tensor]] = [], []
        for step in range(9):  # of five datapoints: the window is full at the third, and recorded at the fifth
            for learner, its in zip((plain, recorded), losses, strict=True):
                its.append(learner.update(world.batch(step, (0, 1)))["window_loss"])
            assert torch.equal(plain.parameters, recorded.parameters)
        assert traces.made == 1
        assert torch.equal(*map(torch.stack, losses))  # no later batch overwrote a loss


class TestLearner:
    def test_steps_along_the_gradient_of_the_window_loss(self, smooth: Any) -> None:
        """After one batch, Adam's first moment is a tenth of the gradient; compared with central differences."""
        learner, batch = smooth.learner("moca"), smooth.batch(0)
        start, network = learner.parameters, learner.setting.network
        learner.update(batch)
        size = len(network.initial([0])[0][0])

        def loss(parameters: Tensor) -> float:
            z = network.embed(parameters[:, :size], learner.statistics, batch.x)
            z = (z - learner.origin) / learner.unit
            return float(window_loss(Prior.unflatten(parameters[:, size:], 3), z, batch.y, 0.01)[0])

        step, steps = 1e-5, torch.eye(start.shape[1], dtype=D) * 1e-5
        numeric = torch.tensor([(loss(start + e) - loss(start - e)) / (2 * step) for e in steps], dtype=D)
        gradient = 10 * learner.moments.m[0]
        assert float((gradient - numeric).norm() / numeric.norm()) < 1e-7

    def test_noise_is_in_root_mean_squares_of_the_first_batch(self, smooth: Any) -> None:
        batch = smooth.batch(0)
        one, five = smooth.learner("moca"), smooth.learner("moca", noise=5)
        start, statistics = one.parameters[:, : one._phi_size], one.statistics
        features = one.setting.network.embed(start, statistics, batch.x)
        size = features.square().mean().sqrt()
        torch.testing.assert_close(one._features(batch.x), features)  # before the first batch
        one.update(batch), five.update(batch)
        torch.testing.assert_close(one.unit[0, 0, 0], size, rtol=1e-12, atol=0)
        torch.testing.assert_close(five.unit[0, 0, 0], 5 * size, rtol=1e-12, atol=0)
        assert torch.equal(one.origin, five.origin)
        torch.testing.assert_close(5 * five.window.z, one.window.z, rtol=1e-12, atol=1e-12)

    def test_the_unit_of_features_that_are_zero_is_the_noise(self, smooth: Any) -> None:
        learner = smooth.learner("moca", noise=3)
        learner.parameters = torch.zeros_like(learner.parameters)
        learner._measure(smooth.batch(0))
        assert set(learner.unit.flatten().tolist()) == {3.0}

    def test_running_statistics_are_updated_with_the_newest_batch_before_the_meta_step(self, siamese: Any) -> None:
        learner, batch = siamese.learner("moca", **SMALL), siamese.batch(2)
        siamese.drive(learner, 0, 2)
        before = learner.statistics
        expected = learner.network.embedding_pass(learner._phi, before, batch.x).statistics
        learner.update(batch)
        assert torch.equal(learner.statistics, expected)
        assert not torch.equal(expected, before)

    @pytest.mark.parametrize(("name", "old"), [("smooth", True), ("siamese", False)])
    def test_the_window_has_the_features_of_the_gradient_pass_unless_they_depend_on_the_batch(
        self, request: pytest.FixtureRequest, name: str, old: bool
    ) -> None:
        world = request.getfixturevalue(name)
        learner = world.learner("moca", **SMALL)
        world.drive(learner, 0, 2)
        before = learner.parameters
        learner.update(world.batch(2))
        with_new = learner._features(learner.window.x)
        learner.parameters = before
        with_old = learner._features(learner.window.x)
        assert not torch.equal(with_old, with_new)
        torch.testing.assert_close(learner.window.z, with_old if old else with_new, rtol=1e-12, atol=1e-12)

    def test_gradient_evaluations_are_the_datapoints_of_the_window(self, smooth: Any) -> None:
        learner = smooth.learner("moca", **SMALL)
        smooth.drive(learner, 0, 4)
        assert learner.setting.network.gradient_evaluations == 5 + 10 + 12 + 12

    def test_statistics_are_sums_of_the_features(self, smooth: Any) -> None:
        """While the window holds all datapoints: sums of the gradient pass's features, per hypothesis and class."""
        learner = smooth.learner("moca")
        smooth.drive(learner, 0, 3)
        window, belief = learner.window, learner.belief
        assert window.first == 0
        for h, start in enumerate(belief.start[0].tolist()):
            for c in range(3):
                expected = window.z[0, start:][window.y[0, start:] == c].sum(0)
                torch.testing.assert_close(belief.sums[0, h, c], expected, rtol=0, atol=1e-12)

    def test_counts_include_datapoints_before_the_window(self, smooth: Any) -> None:
        """The hypothesis of a single task counts all labels, also of datapoints that left the window."""
        learner = smooth.learner("moca", window=12, hypotheses=1000)
        smooth.drive(learner, 0, 6)
        labels = torch.cat([smooth.batch(step).y for step in range(6)], 1)[0]
        assert learner.belief.counts[0, 0].tolist() == torch.bincount(labels, minlength=3).tolist()
        assert learner.window.y[0].tolist() == labels[-12:].tolist()

    def test_meta_every(self, smooth: Any) -> None:
        learner = smooth.learner("moca", meta_every=2)
        seen = [learner.parameters]
        for step in range(4):
            diagnostics = learner.update(smooth.batch(step))
            seen.append(learner.parameters)
            assert ("window_loss" in diagnostics) == (step % 2 == 1)
        assert [bool(torch.equal(a, b)) for a, b in itertools.pairwise(seen)] == [True, False, True, False]

    @pytest.mark.parametrize("name", ["rainbow", "siamese"])
    def test_a_stack_equals_each_seed_alone(self, request: pytest.FixtureRequest, name: str) -> None:
        world = request.getfixturevalue(name)
        stack = world.learner("moca", (0, 1), **SMALL)
        world.drive(stack, 0, 8)
        together = stack.predict(world.batch(70, (0, 1)).x)
        for r in range(2):
            alone = world.learner("moca", (r,), **SMALL)
            world.drive(alone, 0, 8)
            torch.testing.assert_close(alone.predict(world.batch(70, (r,)).x)[0], together[r], rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("name", ["rainbow", "siamese"])
    @pytest.mark.parametrize("pretrained", [False, True])
    def test_resumed_equals_uninterrupted(self, request: pytest.FixtureRequest, name: str, pretrained: bool) -> None:
        """With dropped hypotheses and datapoints that left the window; in float32, bit for bit."""
        world = replace(request.getfixturevalue(name), dtype=torch.float32)
        options = SMALL | ({"pretrain_tasks": 1, "pretrain_passes": 1} if pretrained else {})
        learner = world.learner("moca", (0, 1), **options)
        if pretrained:
            learner.pretrain([world.batch(step, (0, 1)) for step in range(200, 203)])
        world.drive(learner, 0, 5)
        file = io.BytesIO()
        torch.save(learner.state_dict(), file)
        file.seek(0)
        other = world.learner("moca", (0, 1), **options)
        other.load_state_dict(torch.load(file, weights_only=True))
        for step in range(5, 9):
            batch = world.batch(step, (0, 1))
            assert torch.equal(learner.predict(batch.x), other.predict(batch.x))
            one, another = learner.update(batch), other.update(batch)
            assert all(torch.equal(one[key], another[key]) for key in one)

    def test_predicts_when_loaded_without_images(self, rainbow: Any) -> None:
        learner = rainbow.learner("moca", **SMALL)
        rainbow.drive(learner, 0, 4)
        blind = type(learner)(learner.options, replace(rainbow.setting(), images=None))
        blind.load_state_dict(learner.state_dict())
        x = rainbow.batch(70).x
        assert torch.equal(blind.predict(x), learner.predict(x))

    def test_predictions_are_log_probabilities(self, rainbow: Any) -> None:
        learner = rainbow.learner("moca")
        x = rainbow.batch(70, count=70).x
        torch.testing.assert_close(
            learner.predict(x).exp(), torch.full((1, 70, 10), 0.1, dtype=D)
        )  # before any datapoint
        rainbow.drive(learner, 0, 3)
        torch.testing.assert_close(learner.predict(x).exp().sum(2), torch.ones(1, 70, dtype=D))


class Switching:
    """Tasks on 1×2×3 images: class c is a bright pixel, and each task permutes the classes."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def task(self, batches: int, count: int = 5) -> list[Batch]:
        place = self.draw.permutation(6)[:3]
        return [self._batch(place, count) for _ in range(batches)]

    def _batch(self, place: np.ndarray, count: int) -> Batch:
        y = self.draw.integers(0, 3, size=(1, count))
        x = 0.2 * self.draw.random((1, count, 6))
        np.put_along_axis(x, place[y][..., None], 0.9, 2)
        ids = torch.zeros(1, count, 1, dtype=torch.int64)
        return Batch(torch.from_numpy(x.reshape(1, count, 1, 2, 3)), torch.from_numpy(y), ids)


def errors(learner: Learner, tasks: list[list[Batch]]) -> np.ndarray:
    """Error rates before learning, per task and batch."""
    rates = []
    for task in tasks:
        for batch in task:
            rates.append(float((learner.predict(batch.x).argmax(2) != batch.y).double().mean()))
            learner.update(batch)
    return np.array(rates).reshape(len(tasks), -1)


class TestLearning:
    def test_adapts_within_a_task_and_faster_in_later_ones(self, smooth: Any) -> None:
        source = Switching(0)
        stream = [source.task(8) for _ in range(20)]
        rates = errors(smooth.learner("moca", alpha=0.01), stream)
        plain = errors(smooth.learner("online", alpha1=0.01), stream)
        late = rates[10:]
        assert late[:, 4:].mean() < 0.1
        assert late.mean() < 0.75 * rates[:5].mean()
        assert late.mean() < 0.5 * plain[10:].mean()

    def test_pretrained_features_help_from_the_first_task_on_and_do_not_change(self, smooth: Any) -> None:
        source = Switching(1)
        others, stream = [source.task(8) for _ in range(10)], [source.task(8) for _ in range(6)]
        options: dict[str, Any] = {"alpha": 0.01, "pretrain_tasks": 10, "pretrain_passes": 2}
        learner = smooth.learner("moca", **options)
        learner.pretrain([batch for task in others for batch in task])
        fixed = learner.parameters
        assert (learner.seen, learner.window, learner.belief.start.tolist()) == (0, None, [[0]])
        rates = errors(learner, stream)
        assert torch.equal(learner.parameters, fixed)
        assert learner.seen == 6 * 8 * 5
        untrained = errors(smooth.learner("moca", alpha=0.01), stream)
        assert rates[:, 1:].mean() < 0.5 * untrained[:, 1:].mean()  # the first datapoints of a task are unpredictable

    def test_pretrain_must_come_before_update(self, smooth: Any) -> None:
        learner = smooth.learner("moca", pretrain_tasks=3)
        with pytest.raises(ValueError, match=r"pretrain\(\) must come before update\(\).*pretrain_tasks=3"):
            learner.update(smooth.batch(0))
