"""iCaRL: herding against brute force, means and exemplars by hand, and targets for recurring classes."""

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from learners import Batch, ImageTable, Learner, Setting, create
from learners.networks.architectures import EmbeddingNet
from learners.networks.network import Network
from learners.training.exemplars import herding, herding_on_device


class PixelNet(EmbeddingNet):
    """A network whose features are the image's two pixels, so that means and exemplars have known values."""

    features = 2

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 10)

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def by_angle(degrees: list[float], classes: int = 10, seeds: tuple[int, ...] = (0,), **options: Any) -> Learner:
    """An iCaRL on images of two pixels: image i is a vector with angle i (to the precision of a byte)."""
    turned = np.deg2rad(degrees)
    pixels = np.round(250 * np.stack([np.cos(turned), np.sin(turned)], 1)).astype(np.uint8).reshape(-1, 1, 1, 2)
    network = Network(PixelNet, dtype=torch.float64)
    setting = Setting(network, list(seeds), 10, 2, classes, ImageTable(pixels, dtype=torch.float64))
    return create("icarl", {"updates_per_task": 2, **options}, setting)


def shown(learner: Learner, ids: list[int], labels: list[int]) -> Batch:
    """A batch of these images, the same for every replicate."""
    shape = (learner.setting.replicates, len(ids))
    image_ids = torch.tensor(ids).expand(shape).unsqueeze(-1)
    return Batch(learner.setting.require_images().gather(image_ids), torch.tensor(labels).expand(shape), image_ids)


def unit(degrees: float) -> Tensor:
    """The unit vector with this angle, as stored in its image."""
    turned = math.radians(degrees)
    pixels = torch.tensor([round(250 * math.cos(turned)), round(250 * math.sin(turned))], dtype=torch.float64)
    return pixels / pixels.norm()


# Herding


@pytest.mark.parametrize("seed", range(5))
def test_herding_equals_brute_force(seed: int) -> None:
    """Each selection is compared with all alternatives."""
    features = F.normalize(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)
    rows, mean = features.numpy(), features.numpy().mean(0)
    order: list[int] = []
    for _ in range(8):
        remaining = [i for i in range(8) if i not in order]
        order.append(min(remaining, key=lambda i: float(np.linalg.norm(mean - rows[[*order, i]].mean(0)))))
    assert herding(features, 8).tolist() == order
    assert herding(features, 3).tolist() == order[:3]
    assert herding(features, 100).tolist() == order


def test_herding_in_float32_is_accurate_despite_the_tolerance_for_ties() -> None:
    """The mean of the 100 selected of 300 unit vectors is closer to the mean of all than that of any random 100."""
    g = torch.Generator().manual_seed(0)
    features = F.normalize(torch.rand(300, 64, generator=g), dim=1)
    order = herding(features, 100)
    assert order.tolist() == herding(features.double(), 100).tolist()
    off = float((features[order].mean(0) - features.mean(0)).norm())
    others = [
        float((features[torch.randperm(300, generator=g)[:100]].mean(0) - features.mean(0)).norm()) for _ in range(50)
    ]
    assert off < 0.5 * min(others)


def test_herding_reads_no_value_on_the_host(traces: Any) -> None:
    """Its operations on one class are those on another, so that a GPU need not wait at each exemplar."""
    first, second = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    traced = traces(lambda features: herding_on_device(features, 7), [first])
    for features in (first, second):
        assert torch.equal(traced(features), herding(features, 7))
    assert herding(first, 7).tolist() != herding(second, 7).tolist()
    assert herding(first, 0).tolist() == []


def test_herding_by_hand() -> None:
    """In one dimension: the mean of 0, 1, 2 and 9 is 3."""
    features = torch.tensor([[0.0], [1.0], [2.0], [9.0]], dtype=torch.float64)
    # k=1: |3−2| = 1 is the smallest. k=2: 2+1 → 1.5, error 1.5; 2+0 → 1, error 2; 2+9 → 5.5, error 2.5.
    # k=3: 2+1+9 → 4, error 1; 2+1+0 → 1, error 2.
    assert herding(features, 4).tolist() == [2, 1, 3, 0]


def test_the_first_of_equal_features_is_selected() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert herding(features, 4).tolist() == [0, 1, 2, 3]
    for order in permutations(range(4)):
        selection = herding(features[list(order)], 2).tolist()
        assert selection[0] == 0
        other = [i for i in range(4) if order[i] % 2 != order[0] % 2]
        assert selection[1] == other[0]


def test_the_same_image_twice_is_a_tie_despite_rounding() -> None:
    features = torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    features[2] += torch.tensor([1e-16, -2e-16])  # slightly closer to the mean than the first
    assert herding(features, 3).tolist() == herding(features.flip(0), 3).tolist()
    assert herding(features.float(), 3).tolist() == herding(features.float().flip(0), 3).tolist()


# Exemplars


def test_exemplars_are_selected_by_herding_in_order() -> None:
    """Class 0 has angles 0°, 20°, 80°: 20° is closest to their mean, and then 80° brings the mean closer than 0°."""
    angles = [0.0, 20.0, 80.0, 45.0]
    learner = by_angle(angles, memory=20)
    learner.begin_task()
    learner.update(shown(learner, [0, 1, 2, 3], [0, 0, 0, 1]))
    learner.end_task()
    mean = (unit(0) + unit(20) + unit(80)) / 3
    assert float((mean - (unit(20) + unit(80)) / 2).norm()) < float((mean - (unit(20) + unit(0)) / 2).norm())
    assert [points.tolist() for points in learner.exemplars[0][:3]] == [[1, 2, 0], [3], []]


def counts(learner: Learner) -> list[int]:
    return [len(points) for points in learner.exemplars[0]]


def test_counts_with_tasks_of_two_five_and_three_classes() -> None:
    """M = 21: ⌊21/2⌋ = 10 each, then ⌊21/7⌋ = 3, then ⌊21/10⌋ = 2; fewer if a class has fewer datapoints."""
    learner = by_angle([float(i) for i in range(90)], memory=21)
    for classes, expected in (
        ([0, 1], [10, 10] + [0] * 8),
        ([2, 3, 4, 5, 6], [3] * 7 + [0] * 3),
        ([7, 8, 9], [2] * 10),
    ):
        before = [points.tolist() for points in learner.exemplars[0]]
        learner.begin_task()
        for step in range(2):
            labels = [classes[i % len(classes)] for i in range(30)]
            learner.update(shown(learner, list(range(30 * step, 30 * step + 30)), labels))
        learner.end_task()
        assert counts(learner) == expected
        for c in range(10):  # an absent class keeps the first of its list
            if c not in classes:
                assert learner.exemplars[0][c].tolist() == before[c][: expected[c]]
    assert learner.known.tolist() == [[True] * 10]


def test_a_class_with_few_datapoints_keeps_all() -> None:
    learner = by_angle([10.0, 20.0, 30.0], memory=100)
    learner.begin_task()
    learner.update(shown(learner, [0, 1, 2], [4, 4, 7]))
    learner.end_task()
    assert [sorted(points.tolist()) for points in learner.exemplars[0] if len(points)] == [[0, 1], [2]]


def test_a_recurring_class_selects_from_old_exemplars_and_new_datapoints() -> None:
    """Class 0 has exemplars at 0° and 10° and recurs at 60°, 70°, 80°; class 1 does not recur."""
    learner = by_angle([0.0, 10.0, 60.0, 70.0, 80.0, 30.0, 40.0], memory=10, classes=10)
    learner.begin_task()
    learner.update(shown(learner, [0, 1, 5, 6], [0, 0, 1, 1]))
    learner.end_task()
    old = learner.exemplars[0][1].tolist()
    learner.begin_task()
    learner.update(shown(learner, [2, 3, 4], [0, 0, 0]))
    learner.end_task()
    candidates = torch.stack([unit(a) for a in (0, 10, 60, 70, 80)])  # in order of position: 0, 1, 4, 5, 6
    expected = [[0, 1, 4, 5, 6][i] for i in herding(candidates, 5).tolist()]
    assert learner.exemplars[0][0].tolist() == expected
    assert learner.exemplars[0][1].tolist() == old


def test_a_tie_between_old_exemplars_goes_to_the_first_position_not_to_the_first_listed() -> None:
    """36.87° and 53.13° are exactly symmetric about 45°; the second was listed first in its first task."""
    learner = by_angle([36.8699, 53.1301, 90.0, 0.0, 45.0])
    learner.begin_task()
    learner.update(shown(learner, [0, 1, 2], [0, 0, 0]))
    learner.end_task()
    listed = learner.exemplars[0][0].tolist()
    assert listed.index(1) < listed.index(0)
    learner.begin_task()
    learner.update(shown(learner, [3, 4], [0, 0]))
    learner.end_task()
    assert learner.exemplars[0][0].tolist()[:2] == [4, 0]


def test_memory_must_hold_every_class() -> None:
    with pytest.raises(ValueError, match=r"memory >= classes must hold, but got \(memory=9, classes=10\)"):
        by_angle([0.0], memory=9)


# Prediction


def test_the_linear_head_predicts_before_the_first_boundary() -> None:
    learner = by_angle([10.0, 80.0])
    learner.begin_task()
    batch = shown(learner, [0, 1], [0, 1])
    learner.update(batch)
    head = learner.setting.network.logits(learner.model.phi, learner.model.statistics, batch.x)
    assert torch.equal(learner.predict(batch.x), head)
    learner.end_task()
    assert not torch.equal(learner.predict(batch.x), head)


def test_nearest_renormalised_mean_predicts() -> None:
    """Class 3 at 0° and 20°, class 5 at 90°: logits are −‖z − μ‖², with the mean of 0° and 20° normalised."""
    learner = by_angle([0.0, 20.0, 90.0, 49.0, 51.0])
    learner.begin_task()
    learner.update(shown(learner, [0, 1, 2], [3, 3, 5]))
    learner.end_task()
    x = shown(learner, [3, 4], [0, 0]).x
    logits = learner.predict(0.5 * x)[0]  # the norm of a feature has no effect
    mu3 = unit(0) + unit(20)
    mu3, mu5 = mu3 / mu3.norm(), unit(90)
    for row, angle in zip(logits, (49, 51), strict=True):
        assert float(row[3]) == pytest.approx(-float((unit(angle) - mu3).square().sum()), abs=1e-12)
        assert float(row[5]) == pytest.approx(-float((unit(angle) - mu5).square().sum()), abs=1e-12)
    assert logits.argmax(-1).tolist() == [3, 5]  # half way between 10° and 90° is 50°
    unknown = [c for c in range(10) if c not in (3, 5)]
    assert float(logits[:, unknown].max()) < -4.0


def test_means_in_the_middle_of_a_task_include_its_datapoints() -> None:
    learner = by_angle([0.0, 90.0, 40.0, 80.0])
    learner.begin_task()
    learner.update(shown(learner, [0, 1], [0, 1]))
    learner.end_task()
    learner.begin_task()
    learner.update(shown(learner, [2, 3], [0, 2]))
    x = shown(learner, [0], [0]).x
    mu0 = (unit(0) + unit(40)) / (unit(0) + unit(40)).norm()
    logits = learner.predict(x)[0, 0]
    assert float(logits[0]) == pytest.approx(-float((unit(0) - mu0).square().sum()), abs=1e-12)
    assert float(logits[2]) == pytest.approx(-float((unit(0) - unit(80)).square().sum()), abs=1e-12)
    learner.update(shown(learner, [2], [0]))  # another datapoint changes the mean
    mu0 = unit(0) + 2 * unit(40)
    assert float(learner.predict(x)[0, 0, 0]) == pytest.approx(
        -float((unit(0) - mu0 / mu0.norm()).square().sum()), abs=1e-12
    )


def test_means_are_recomputed_after_each_update() -> None:
    """With one update per task of two batches, the means after the second batch include both batches."""
    learner = by_angle([0.0, 90.0, 40.0, 60.0], updates_per_task=1)
    learner.begin_task()
    for _ in range(2):
        learner.update(shown(learner, [0, 1], [0, 1]))
    learner.end_task()
    x = shown(learner, [0], [0]).x
    assert float(learner.predict(x)[0, 0, 0]) == pytest.approx(0, abs=1e-12)
    learner.begin_task()
    assert learner.update(shown(learner, [2], [0])) == {}
    assert float(learner.predict(x)[0, 0, 0]) == pytest.approx(0, abs=1e-12)
    assert learner.update(shown(learner, [3], [0])) != {}
    mean = 2 * unit(0) + unit(40) + unit(60)
    expected = -float((unit(0) - mean / mean.norm()).square().sum())
    assert float(learner.predict(x)[0, 0, 0]) == pytest.approx(expected, abs=1e-12)


def test_a_mean_uses_evenly_spaced_datapoints() -> None:
    """Of five exemplars, a mean of three datapoints uses the first, the middle and the last."""
    learner = by_angle([0.0, 10.0, 20.0, 70.0, 80.0], mean_points=3)
    learner.begin_task()
    learner.update(shown(learner, [0, 1, 2, 3, 4], [0] * 5))
    learner.end_task()
    listed = learner.exemplars[0][0].tolist()
    angles = [[0.0, 10.0, 20.0, 70.0, 80.0][listed[i]] for i in (0, 2, 4)]
    mean = sum(unit(angle) for angle in angles)
    x = shown(learner, [0], [0]).x
    expected = -float((unit(0) - mean / mean.norm()).square().sum())
    assert float(learner.predict(x)[0, 0, 0]) == pytest.approx(expected, abs=1e-12)


# Learning


def test_targets_are_labels_for_current_classes_and_the_teachers_sigmoids_for_absent_ones() -> None:
    learner = by_angle([float(10 * i) for i in range(9)], memory=20, update_batch=4)
    learner.begin_task()
    learner.update(shown(learner, [0, 1, 2], [0, 1, 2]))
    learner.end_task()
    learner.begin_task()
    learner.update(shown(learner, [3, 4], [1, 6]))
    learner.update(shown(learner, [5, 6], [6, 1]))
    # Known classes: 0, 1, 2, 6; current: 1 and 6; absent: 0 and 2.
    assert learner.update(shown(learner, [5], [6]))["distilled"].tolist() == [0.5]
    points = shown(learner, [0, 3, 4, 8], [0, 1, 6, 2])
    logits = learner.setting.network.logits(learner.model.phi, learner.model.statistics, points.x)
    teacher = learner.teacher.predict(points.x).sigmoid()
    assert not torch.equal(teacher, logits.sigmoid())
    expected = 0.0
    for n, label in enumerate([0, 1, 6, 2]):
        for c in (0, 1, 2, 6):
            target = float(teacher[0, n, c]) if c in (0, 2) else float(label == c)
            g = 1 / (1 + math.exp(-float(logits[0, n, c])))
            expected -= (target * math.log(g) + (1 - target) * math.log(1 - g)) / 4
    assert float(learner._loss(points)(logits)) == pytest.approx(expected, rel=1e-12)


def test_without_absent_classes_nothing_is_distilled() -> None:
    learner = by_angle([float(10 * i) for i in range(9)])
    for _ in range(2):
        learner.begin_task()
        learner.update(shown(learner, [0, 1], [0, 1]))
        points = shown(learner, [0, 1], [0, 1])
        logits = learner.setting.network.logits(learner.model.phi, learner.model.statistics, points.x)
        labels = F.one_hot(points.y, 10).double()
        expected = F.binary_cross_entropy_with_logits(logits[..., :2], labels[..., :2], reduction="sum") / 2
        assert float(learner._loss(points)(logits)) == pytest.approx(float(expected), rel=1e-12)
        assert learner.update(shown(learner, [1], [1]))["distilled"].tolist() == [0]
        learner.end_task()


def record_draws(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """A list to which every later draw of training appends its positions, per replicate."""
    draws: list[Tensor] = []
    real = learner.replay.choose

    def choose(positions: list[Tensor], count: int) -> Batch:
        draws.extend(positions)
        return real(positions, count)

    monkeypatch.setattr(learner.replay, "choose", choose)
    return draws


def test_it_trains_on_exemplars_and_the_current_task_only(rainbow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a reload."""
    learner = rainbow.learner("icarl", (0, 1), memory=20, updates_per_task=4, update_batch=3)
    rainbow.drive(learner, 0, 10, predict=False)
    state = learner.state_dict()
    other = rainbow.learner("icarl", (0, 1), memory=20, updates_per_task=4, update_batch=3)
    other.load_state_dict(state)
    other.restore_seen(rainbow.seen(10, (0, 1)))
    exemplars = [{int(p) for points in by_class for p in points} for by_class in learner.exemplars]
    assert all(0 < len(one) <= 20 for one in exemplars)
    for one in (learner, other):
        draws = record_draws(one, monkeypatch)
        one.update(rainbow.batch(10, (0, 1)))
        assert [set(positions.tolist()) for positions in draws] == [old | set(range(40, 55)) for old in exemplars]
    assert torch.equal(learner.model.phi, other.model.phi)


def test_pairs_have_two_classes_over_the_pair_feature(siamese) -> None:
    learner = siamese.learner("icarl", memory=6, updates_per_task=4, update_batch=3)
    siamese.drive(learner, 0, 8, predict=False)
    assert [len(points) for points in learner.exemplars[0]] == [3, 3]
    features = learner._features(learner.exemplars)[0]
    means = F.normalize(torch.stack([z.mean(0) for z in features]), dim=1)
    x = siamese.batch(70).x
    z = F.normalize(learner.setting.network.embed(learner.model.phi, learner.model.statistics, x)[0], dim=1)
    expected = -(z.unsqueeze(1) - means).square().sum(-1)
    assert torch.allclose(learner.predict(x)[0], expected, rtol=1e-9, atol=1e-12)


def test_predicts_from_the_state_alone(rainbow) -> None:
    """Without images, because the class means are in the state."""
    learner = rainbow.learner("icarl", (0, 1), memory=20, updates_per_task=4)
    rainbow.drive(learner, 0, 6, predict=False)
    setting = replace(rainbow.setting((0, 1)), images=None)
    blind = create("icarl", {"memory": 20, "updates_per_task": 4}, setting)
    blind.load_state_dict(learner.state_dict())
    x = rainbow.batch(70, (0, 1)).x
    assert torch.equal(blind.predict(x), learner.predict(x))
