"""Learning without Forgetting (LwF): Li & Hoiem 2017, with one head for all tasks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from learners.base import Diagnostics, Learner, Setting, documented, not_negative, positive
from learners.batch import Batch
from learners.networks.network import Loss, cross_entropy
from learners.training.model import Model


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of LwF, under the original's names where it has them."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    distillation: float = not_negative(1.0, "λ, weight of the teacher's say")
    temperature: float = positive(2.0, "T of both softmaxes in the teacher's say")
    t_squared: bool = documented(True, "times T², so that λ weighs gradients of the same size whatever T is")


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of the softmaxes at this temperature, mean over the datapoints.

    Logits [R, B, C] to [R]; finite however far apart the logits are, since no softmax is ever divided by.
    """
    log_p = (teacher / temperature).log_softmax(-1)
    log_q = (student / temperature).log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean(1)


class LwF(Learner):
    """One step a batch on the new data alone: learn its labels, and keep answering as before the task began.

    May know: boundaries, and the newest batch. It keeps no datapoint.

    L = cross-entropy + λ T² KL(teacher ‖ student), both at temperature T → `_loss`; teacher = the model at the last
    boundary, none in the first task → `begin_task`. The KL has the gradient of the original's eq. 2–4 (y^{1/T},
    normalised, is the softmax of the logits over T).

    Where it deviates: the tasks share their classes and hence one head, so there is no new head to warm up; one step a
    batch instead of epochs; Adam, which keeps its state over boundaries; T², which the original has not. The teacher
    answers as it would predict (running batch-norm statistics); the student is in training.
    """

    needs_boundaries = True
    changeable = ("alpha", "distillation", "temperature")
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

    def predict(self, x: Tensor) -> Tensor:
        return self.model.predict(x)

    def update(self, batch: Batch) -> Diagnostics:
        return {"loss": self.model.learn(batch, self._loss(batch))}

    def _loss(self, batch: Batch) -> Loss:
        o = self.options
        new_labels = cross_entropy(batch.y)
        if self.task <= 0:
            return new_labels
        answers = self.teacher.predict(batch.x)
        weight = o.distillation * (o.temperature**2 if o.t_squared else 1.0)
        return lambda logits: new_labels(logits) + weight * distillation(logits, answers, o.temperature)
