"""The number of gradient updates that a method with updates per task makes after each batch."""

from learners.state import Stateful


class UpdateBudget(Stateful):
    """Spreads u = `updates_per_task` evenly over the n batches of a task.

    After batch i of n, ⌊u (i+1) / n⌋ updates have been granted in total. With `growth`, u increases by that number for
    every `growth_every` datapoints seen (paper, appendix A.3: +10 per 100 tasks of 400 datapoints). A batch that is
    short at a boundary counts as a batch, and a task with more batches than n receives the updates of each.

    >>> budget = UpdateBudget(50, batches_per_task=20)
    >>> [budget.grant(10) for _ in range(4)]
    [2, 3, 2, 3]
    """

    state_fields = ("seen", "owed")

    def __init__(self, updates_per_task: int, batches_per_task: int, growth: int = 0, growth_every: int = 1) -> None:
        self._updates, self._batches = updates_per_task, batches_per_task
        self._growth, self._growth_every = growth, growth_every
        self.seen = 0
        self.owed = 0  # fraction of an update not yet granted, in units of 1/n

    def grant(self, datapoints: int) -> int:
        """The number of updates due after a batch of this many datapoints."""
        self.seen += datapoints
        self.owed += self._updates + self._growth * (self.seen // self._growth_every)
        due, self.owed = divmod(self.owed, self._batches)
        return due

    def skip(self, datapoints: int) -> None:
        """Count this many datapoints as seen without granting updates for them."""
        self.seen += datapoints

    def restart(self) -> None:
        """Start a task without the remainder of the previous one."""
        self.owed = 0
