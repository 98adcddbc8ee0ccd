"""Learning without Forgetting (LwF): Li & Hoiem 2017, with one head for all tasks."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from learners.base import Diagnostics, ModelLearner, Setting, documented, not_negative, positive
from learners.batch import Batch
from learners.networks.network import Loss, cross_entropy
from learners.training.model import Model
from learners.training.replicate_options import Real


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of LwF, under the original's names where it has them."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    distillation: float = not_negative(1.0, "λ, weight of the distillation loss")
    temperature: float = positive(2.0, "T of both softmaxes of the distillation loss")
    t_squared: bool = documented(True, "multiply by T², so that the size of the gradients does not depend on T")


def distillation(student: Tensor, teacher: Tensor, temperature: Real) -> Tensor:
    """KL(teacher ‖ student) [R] of the softmaxes at this temperature, mean over the datapoints; logits are [R, B, C].

    Computed from log-softmaxes without a division, so that it is finite for any finite logits.
    """
    log_p = (teacher / temperature).log_softmax(-1)
    log_q = (student / temperature).log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean(1)


class LwF(ModelLearner):
    """Takes one step per batch on the labels of the new data and on the predictions of the model before the task.

    May use: boundaries, and the newest batch. It stores no datapoint.

    L = cross-entropy + λ T² KL(teacher ‖ student), both at temperature T → `_loss`; the teacher is the model at the
    last boundary, and the first task has none → `begin_task`. The KL has the same gradient as eq. 2–4 of the original
    (y^{1/T}, normalised, is the softmax of the logits over T).

    Deviations: the tasks share their classes and hence one head, so that no new head is warmed up; one step per batch
    instead of epochs; Adam, whose moments are kept across boundaries; the factor T², which the original does not have.
    The teacher predicts with running batch-norm statistics, the student with those of the batch.
    """

    needs_boundaries = True
    changeable = ("alpha", "distillation", "temperature")
    presets: ClassVar = {"tuned": {"alpha": 0.001668, "distillation": 0.2742, "temperature": 2.0}}
    """`tuned` is the best of 24 trials on Rainbow-MNIST (docs/reproduction/budgets.md)."""
    options_class = Options
    state_fields = ("model", "teacher", "task")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, "adam", options.alpha)
        self.teacher = self.model.copy()
        self.task = -1

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return dict.fromkeys(("temperature", "t_squared"), "distillation: 0") if options.distillation == 0 else {}

    def begin_task(self) -> None:
        self.task += 1
        self.teacher = self.model.copy()

    def update(self, batch: Batch) -> Diagnostics:
        return {"loss": self.model.learn(batch, self._loss(batch))}

    def _loss(self, batch: Batch) -> Loss:
        o = self.options
        new_labels = cross_entropy(batch.y)
        if self.task <= 0:
            return new_labels
        teacher_logits = self.teacher.predict(batch.x)
        weight = o.distillation * (o.temperature**2 if o.t_squared else 1.0)
        return lambda logits: new_labels(logits) + weight * distillation(logits, teacher_logits, o.temperature)
