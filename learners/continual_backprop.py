"""Continual backpropagation: Dohare et al. 2024, "Loss of plasticity in deep continual learning", Nature 632."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from learners.base import Diagnostics, ModelLearner, Setting, at_least_one, documented, positive
from learners.batch import Batch
from learners.networks.hidden_units import HiddenUnits, spread
from learners.networks.network import cross_entropy
from learners.seeding import Generators
from learners.training.model import Model
from learners.training.optim import Adam, Moments


@dataclass(frozen=True)
class Options:
    """Hyper-parameters of continual backpropagation."""

    alpha1: float = positive(0.001, "learning rate")
    replacement_rate: float = documented(0.0001, "rho, share of mature units replaced per batch", ge=0, le=1)
    decay: float = documented(0.99, "eta, factor of the utility of earlier batches", ge=0, lt=1)
    maturity: int = at_least_one(100, "m, batches for which a new unit is protected")
    online_optimizer: Literal["adam", "sgd"] = documented("adam", "optimiser of phi")


class ContinualBackprop(ModelLearner):
    """Plain online learning in which new random units replace the least useful hidden units.

    May use: the newest batch. No task id, no boundary, no replay.

    Algorithm 1, after the step on a batch, for each hidden layer:

    - age a ← a + 1, and contribution utility u ← η u + (1 − η) mean |h| Σ |outgoing weights| (eq. 1), with the mean
      over the batch, and over the pixels of a feature map → `update`;
    - c ← c + ρ · (number of mature units, those with a > m); of the mature units the ⌊c⌋ with the smallest u are
      replaced, and c ← c − ⌊c⌋ → `_select`;
    - a new unit has incoming weights from the initial distribution, outgoing weights 0, u = 0 and a = 0 → `_replace`.

    Deviations: h is what the outgoing weights multiply, so after max-pool and batch norm. The bias and the batch norm
    of a new unit are initial too. Adam begins again for the weights of a new unit: moments 0 → `_replace`, and a bias
    correction that counts steps from then on → `_step`.
    """

    needs_features = True
    needs_hidden_layers = True
    changeable = ("alpha1", "replacement_rate", "decay")
    options_class = Options
    state_fields = ("model", "utility", "age", "due", "draws")

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(options, setting)
        self.model = Model.fresh(setting.network, setting.seeds, options.online_optimizer, options.alpha1)
        self.units = HiddenUnits(setting.network)
        self.utility = self.model.phi.new_zeros(setting.replicates, self.units.count)  # u
        # On the CPU: whether a unit is replaced depends only on these, so that a GPU is not waited for.
        self.age = torch.zeros(self.utility.shape, dtype=torch.int64)  # a
        self.due = torch.zeros(setting.replicates, len(self.units.layers), dtype=torch.float64)  # c
        self.draws = Generators(setting.seeds, "new units")

    @classmethod
    def without_effect(cls, options: Options) -> dict[str, str]:
        return dict.fromkeys(("decay", "maturity"), "replacement_rate: 0") if options.replacement_rate == 0 else {}

    def update(self, batch: Batch) -> Diagnostics:
        o, model = self.options, self.model
        loss = cross_entropy(batch.y)
        gradient_pass = model.network.training_pass(model.phi, model.statistics, batch.x, loss, activity=True)
        assert gradient_pass.activity is not None
        self.age = self.age + 1
        self._step(gradient_pass.gradient)
        model.statistics = gradient_pass.statistics
        contribution = gradient_pass.activity * self.units.outgoing_sums(model.phi)
        self.utility = o.decay * self.utility + (1 - o.decay) * contribution
        replaced = self._select()
        if bool(replaced.any()):
            self._replace(replaced)
        return {"loss": gradient_pass.loss, "replaced": replaced.sum(1).to(gradient_pass.loss)}

    def _step(self, gradient: Tensor) -> None:
        """The optimiser's step; for Adam's bias correction, the step number of a weight is the age of its unit."""
        model, before = self.model, self.model.phi
        model.phi, model.moments = model.optimizer.step(before, gradient, model.moments)
        adam, steps = model.optimizer, model.moments.steps
        if not isinstance(adam, Adam) or bool((self.age == steps).all()):
            return
        m, s, _ = model.moments
        assert m is not None and s is not None
        # Powers of the few different ages, which are sorted; a weight between two units is as old as the younger one.
        ages, index = torch.unique(self.age, return_inverse=True)
        index, old = index.to(before.device, torch.int32), len(ages)
        index = torch.minimum(spread(index, self.units.incoming, old), spread(index, self.units.outgoing, old))
        numbers, flat = [*ages.tolist(), steps], index.flatten()  # the lookup is faster in a flat tensor
        powers = (before.new_tensor([1 - b**number for number in numbers]) for b in (adam.b1, adam.b2))
        c1, c2 = (each.index_select(0, flat).view_as(m) for each in powers)
        after = before - adam.rate * (m / c1 / ((s / c2).sqrt() + adam.epsilon))
        model.phi = torch.where(index < int((ages < steps).sum()), after, model.phi)

    def _select(self) -> Tensor:
        """The units that are replaced now, as a mask [R, U] on the CPU; they are subtracted from `due`."""
        mature = self.age > self.options.maturity
        eligible = torch.stack([mature[:, units].sum(1) for units in self.units.layers], 1).double()
        due = self.due + self.options.replacement_rate * eligible
        counts = torch.minimum(due.floor(), eligible)
        self.due = due - counts
        selected = torch.zeros_like(mature)
        if bool(counts.any()):
            utility = self.utility.cpu().masked_fill(~mature, math.inf)
            for r, layer in counts.nonzero().tolist():
                units = self.units.layers[layer]
                smallest = utility[r, units].argsort(stable=True)[: int(counts[r, layer])]
                selected[r, units.start + smallest] = True
        return selected

    def _replace(self, replaced: Tensor) -> None:
        """Replace the units of a mask [R, U], each by the same unit of a newly drawn network."""
        model, units = self.model, self.units
        new, new_statistics = model.phi.clone(), model.statistics.clone()
        for r, rng in enumerate(self.draws):
            if bool(replaced[r].any()):
                phi, statistics = model.network.initial([int(rng.integers(2**63))], "new units")
                new[r], new_statistics[r] = phi[0], statistics[0]
        self.age = self.age.masked_fill(replaced, 0)
        replaced = replaced.to(new.device)
        self.utility = self.utility.masked_fill(replaced, 0)
        incoming, outgoing = (spread(replaced, which, 0) for which in (units.incoming, units.outgoing))
        # As in Algorithm 1, which goes through the layers in order: a weight between two new units is drawn.
        model.phi = torch.where(incoming, new, model.phi.masked_fill(outgoing, 0))
        model.statistics = torch.where(spread(replaced, units.statistics, 0), new_statistics, model.statistics)
        m, s, steps = model.moments
        if m is not None and s is not None:
            either = incoming | outgoing
            model.moments = Moments(m.masked_fill(either, 0), s.masked_fill(either, 0), steps)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.age, self.due = self.age.cpu(), self.due.cpu()  # used on the CPU, whichever device the state was loaded to
