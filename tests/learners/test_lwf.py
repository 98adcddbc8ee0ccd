"""LwF's distillation against its formula, and the tasks that have a teacher."""

import math

import pytest
import torch
from torch.nn import functional as F

from learners.lwf import distillation


def test_distillation_at_temperature_two_by_hand() -> None:
    """Teacher (2 ln 3, 0) is (3/4, 1/4) at T = 2; student (0, 2 ln 7) is (1/8, 7/8)."""
    teacher = torch.tensor([[[2 * math.log(3), 0.0]]], dtype=torch.float64)
    student = torch.tensor([[[0.0, 2 * math.log(7)]]], dtype=torch.float64)
    expected = 0.75 * math.log(0.75 / 0.125) + 0.25 * math.log(0.25 / 0.875)
    assert float(distillation(student, teacher, 2.0)) == pytest.approx(expected, rel=1e-14)


def test_distillation_is_a_mean_over_datapoints_per_replicate() -> None:
    g = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(2, 5, 3, generator=g, dtype=torch.float64) for _ in range(2))
    result = distillation(student, teacher, 2.0)
    for r in range(2):
        each = [
            sum(
                p * math.log(p / q)
                for p, q in zip(
                    (teacher[r, n] / 2).softmax(0).tolist(), (student[r, n] / 2).softmax(0).tolist(), strict=True
                )
            )
            for n in range(5)
        ]
        assert float(result[r]) == pytest.approx(sum(each) / 5, rel=1e-12)


def test_distillation_has_the_gradient_of_the_originals_cross_entropy() -> None:
    """Li & Hoiem, eq. 2–4: −Σ y'_o log ŷ'_o with y' = y^{1/T} / Σ y^{1/T} of the recorded probabilities."""
    g = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(1, 4, 3, generator=g, dtype=torch.float64) for _ in range(2))
    student.requires_grad_()

    def at_temperature(logits: torch.Tensor) -> torch.Tensor:
        y = logits.softmax(-1) ** 0.5
        return y / y.sum(-1, keepdim=True)

    theirs = -(at_temperature(teacher) * at_temperature(student).log()).sum(-1).mean()
    (expected,) = torch.autograd.grad(theirs, student)
    (result,) = torch.autograd.grad(distillation(student, teacher, 2.0).sum(), student)
    assert torch.allclose(result, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distillation_is_finite_at_a_gap_of_300(dtype: torch.dtype) -> None:
    """Teacher and student are certain of different classes: the KL divergence is 300 / T."""
    teacher = torch.tensor([[[300.0, 0.0]]], dtype=dtype)
    student = torch.tensor([[[0.0, 300.0]]], dtype=dtype, requires_grad=True)
    result = distillation(student, teacher, 2.0)
    assert float(result.detach()) == pytest.approx(150.0, rel=1e-6)
    (gradient,) = torch.autograd.grad(result.sum(), student)
    assert gradient.flatten().tolist() == pytest.approx([-0.5, 0.5], abs=1e-6)
    assert float(distillation(teacher, teacher, 2.0)) == 0.0


@pytest.mark.parametrize(("t_squared", "weight"), [(True, 0.3 * 9.0), (False, 0.3)])
def test_the_loss_is_the_sum_of_both_terms(smooth, t_squared: bool, weight: float) -> None:
    learner = smooth.learner("lwf", (0, 1), distillation=0.3, temperature=3.0, t_squared=t_squared)
    smooth.drive(learner, 0, 6)
    batch = smooth.batch(6, (0, 1))
    network, model, teacher = learner.setting.network, learner.model, learner.teacher
    student, _ = network.training_logits(model.phi, model.statistics, batch.x)
    teacher_logits = network.logits(teacher.phi, teacher.statistics, batch.x)
    expected = torch.stack(
        [
            F.cross_entropy(student[r], batch.y[r])
            + weight
            * F.kl_div(
                (student[r] / 3).log_softmax(-1),
                (teacher_logits[r] / 3).log_softmax(-1),
                reduction="batchmean",
                log_target=True,
            )
            for r in range(2)
        ]
    )
    result = learner.update(batch)["loss"]
    assert torch.allclose(result, expected, rtol=1e-12)
    assert float((student - teacher_logits).abs().max()) > 1e-3  # the distillation term is not zero


def test_the_teacher_is_the_model_at_the_boundary(smooth) -> None:
    learner = smooth.learner("lwf")
    smooth.drive(learner, 0, 4)
    at_boundary = learner.model.phi
    smooth.drive(learner, 4, 7)
    assert torch.equal(learner.teacher.phi, at_boundary)
    assert not torch.equal(learner.model.phi, at_boundary)
    assert learner.model.moments.steps == 7  # one optimiser for all tasks


def test_without_a_teacher_it_is_plain_online_learning(smooth) -> None:
    """In the first task, and with λ = 0 in every task."""
    online, first = smooth.learner("online", (0, 1)), smooth.learner("lwf", (0, 1), distillation=1.0)
    smooth.drive(online, 0, 4)
    smooth.drive(first, 0, 4)
    assert torch.equal(first.model.phi, online.model.phi)
    indifferent = smooth.learner("lwf", (0, 1), distillation=0.0)
    smooth.drive(online, 4, 11)
    smooth.drive(indifferent, 0, 11)
    smooth.drive(first, 4, 11)
    assert torch.allclose(indifferent.model.phi, online.model.phi, rtol=0, atol=1e-12)
    assert float((first.model.phi - online.model.phi).norm()) > 1e-4


def test_a_teacher_reduces_forgetting(smooth) -> None:
    """Task two has other images; with a strong teacher the predictions on those of task one change less."""
    moved = {}
    for weight in (0.0, 100.0):
        learner = smooth.learner("lwf", alpha=0.01, distillation=weight)
        smooth.drive(learner, 0, 4)
        x = smooth.batch(0).x
        before = learner.predict(x).softmax(-1)
        smooth.drive(learner, 4, 8)
        moved[weight] = float((learner.predict(x).softmax(-1) - before).abs().mean())
    assert moved[100.0] < 0.5 * moved[0.0]
