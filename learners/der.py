"""Dark experience replay, DER++: Buzzega, Boschini, Porrello, Abati & Calderara 2020."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learners.base import Diagnostics, ModelLearner, Setting, at_least_one, not_negative, positive
from learners.batch import Batch
from learners.networks.network import Loss, cross_entropy
from learners.seeding import Generators
from learners.training.model import Model
from learners.training.replay_buffer import ReplayBuffer


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of DER++; `label_weight: 0` is DER."""

    alpha: float = positive(0.001, "learning rate (Adam)")
    logit_weight: float = not_negative(0.5, "the paper's alpha, weight of the squared error to the stored logits")
    label_weight: float = not_negative(0.5, "the paper's beta, weight of the replayed labels")
    memory: int = at_least_one(500, "datapoints in the reservoir", le=1_000_000)


class DER(ModelLearner):
    """Takes one step per batch on new labels, on stored logits and on stored labels of a small reservoir.

    May use: the newest batch, and `memory` earlier datapoints with the logits that the learner had for them. No task
    id, no boundary. 𝓑 stores their positions; no other datapoint is read from it.

    - Eq. 6 → `_loss`: L(φ; D_j) + α ‖z' − h(x')‖² + β L(φ; x'', y''), with two draws of N from the reservoir.
    - Algorithm 2 → `update`; the reservoir (Vitter 1985) → `_store`: datapoint number n replaces a random one with
      probability memory / n, and each datapoint seen is in it with equal probability.

    Deviations: Adam instead of SGD, and no augmentation. ‖·‖² is the mean over classes, as in the authors' code. The
    three batches are one pass of 3N, so that with batch norm they share their statistics.
    """

    changeable = ("alpha", "logit_weight", "label_weight")
    options_class = Options
    state_fields = ("model", "replay", "draws", "positions", "logits", "seen")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, "adam", options.alpha)
        self.replay = ReplayBuffer(setting.images, setting.seeds)
        self.draws = Generators(setting.seeds, "reservoir")
        self.positions = torch.zeros(setting.replicates, 0, dtype=torch.int64)  # in 𝓑, [R, M]
        self.logits = self.model.phi.new_zeros(setting.replicates, 0, setting.classes)  # [R, M, C]
        self.seen = 0

    def update(self, batch: Batch) -> Diagnostics:
        joint, stored = batch, self.logits[:, :0]
        if self.positions.shape[1]:
            first, second = (self.draws.integers(0, self.positions.shape[1], len(batch)) for _ in range(2))
            replayed = self.replay.take(self.positions.gather(1, torch.cat([first, second], 1)))
            joint = batch.concatenate(replayed)
            places = first.to(self.logits.device).unsqueeze(2).expand(-1, -1, self.setting.classes)
            stored = self.logits.gather(1, places)
        outputs: list[Tensor] = []
        loss = self.model.learn(joint, self._loss(joint.y, stored, len(batch), outputs))
        self.replay.add(batch)
        self._store(outputs[0])
        return {"loss": loss}

    def _loss(self, y: Tensor, stored: Tensor, new: int, outputs: list[Tensor]) -> Loss:
        """Eq. 6 for the labels of the new batch and of both draws; appends the new batch's logits to `outputs`."""
        o: Options = self.options

        def loss(logits: Tensor) -> Tensor:
            outputs.append(logits[:, :new].detach())
            total: Tensor = cross_entropy(y[:, :new])(logits[:, :new])
            if stored.shape[1] == 0:
                return total
            error = (logits[:, new : 2 * new] - stored).square().mean((1, 2))
            replayed = cross_entropy(y[:, 2 * new :])(logits[:, 2 * new :])
            return total + o.logit_weight * error + o.label_weight * replayed

        return loss

    def _store(self, outputs: Tensor) -> None:
        """Reservoir sampling of the new datapoints, the last of 𝓑, with their logits [R, N, C]."""
        count = outputs.shape[1]
        free = min(count, self.options.memory - self.positions.shape[1])
        new = torch.arange(self.seen, self.seen + count)
        positions = torch.cat([self.positions, new[:free].expand(len(outputs), -1)], 1)
        logits = torch.cat([self.logits, outputs[:, :free]], 1)
        for r, rng in enumerate(self.draws):
            for n in range(free, count):
                place = int(rng.integers(self.seen + n + 1))
                if place < self.options.memory:
                    positions[r, place], logits[r, place] = new[n], outputs[r, n]
        self.positions, self.logits, self.seen = positions, logits, self.seen + count

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.positions = self.positions.cpu()  # used on the CPU, whichever device the state was loaded to
