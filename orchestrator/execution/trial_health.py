"""Names running trials that give no sign of life, and ends those beyond `trial_timeout` or the grace of a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.tune.experiment import Trial as TuneTrial

from orchestrator.execution.context import SweepContext
from orchestrator.execution.messages import TrialSpec

LOOK_S = 0.5
FIRST_S, SILENCE_S, PACE = 120.0, 60.0, 5.0
"""A trial is named after `PACE` times its longest time between two results, and never before `SILENCE_S` seconds;
before any result is known, after `FIRST_S`; with `trial_timeout`, at its half if that is earlier."""
ENDING_S = 10.0
"""Seconds of `shutdown_grace`, at most its half, that are kept for MLflow and the report."""


def _process(answer: Any) -> str:
    try:
        address, pid = ray.get(answer, timeout=0)
    except ray.exceptions.RayError:  # it has died, or did not answer
        return "process unknown"
    return f"process {pid} on {address}"


@dataclass
class _Signs:
    """The signs of life of a running trial.

    Attributes:
        trial: Tune's.
        since: the time of its last sign of life: its start, or a result.
        process: the answer of its actor to the question which process it is.
        silence_named: the silence, in seconds, when it was last named; 0 if it was not.
        end: why it was ended; empty as long as it runs.
    """

    trial: TuneTrial
    since: float
    process: Any
    silence_named: float = 0.0
    end: str = ""


@dataclass
class TrialHealth:
    """Watches the running trials from its own thread, inside a `with` block.

    A learner that hangs answers no request, so its process is killed.

    Args:
        context: of the sweep; has the limits and the stop request.
        report: receives a line for each trial without a sign of life.
        clock: returns seconds.
        kill: ends the process of an actor, given its handle.
        locate: the process that answered `get_current_ip_pid`, in words.
    """

    context: SweepContext
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    kill: Callable[[Any], None] = ray.kill
    locate: Callable[[Any], str] = _process
    _running: dict[str, _Signs] = field(default_factory=dict)
    _longest: dict[str, float] = field(default_factory=dict)
    _give_up_at: float | None = None

    def __post_init__(self) -> None:
        document = self.context.sweep.document
        self._timeout, self._grace = document.trial_timeout, document.shutdown_grace
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trial-health", daemon=True)

    def __enter__(self) -> TrialHealth:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def started(self, trial: TuneTrial) -> None:
        """A trial took a slot; its actor has no task yet, and so can still say which process it is."""
        process = trial.temporary_state.ray_actor.get_current_ip_pid.remote()
        with self._lock:
            self._running[_key(trial)] = _Signs(trial, self.clock(), process)

    def reported(self, trial: TuneTrial) -> None:
        """A trial sent a result."""
        key, now = _key(trial), self.clock()
        with self._lock:
            if (signs := self._running.get(key)) is not None:
                self._longest[key] = max(self._longest.get(key, 0.0), now - signs.since)
                signs.since, signs.silence_named = now, 0.0

    def ended(self, trial: TuneTrial) -> str:
        """A trial gave its slot up; returns why it was ended here, empty if it was not."""
        with self._lock:
            signs = self._running.pop(_key(trial), None)
        return "" if signs is None else signs.end

    def look(self) -> None:
        """Name and end trials, as the time requires."""
        with self._lock:
            running = dict(self._running)
            longest = dict(self._longest)
        now = self.clock()
        if self._give_up_at is None and self.context.stop_request.requested:
            self._give_up_at = now + max(self._grace / 2, self._grace - ENDING_S)
        for key, signs in running.items():
            silence = now - signs.since
            if signs.end:
                continue
            if self._give_up_at is not None and now >= self._give_up_at:
                self._end(key, signs, f"its chunk in flight is given up: shutdown_grace is {self._grace:g} s")
            elif self._timeout is not None and silence >= self._timeout:
                self._end(key, signs, f"no result for {silence:.0f} s: trial_timeout is {self._timeout:g} s")
            elif silence >= max(self._patience(key, longest), 2 * signs.silence_named):
                signs.silence_named = silence
                rest = (
                    "if it hangs, kill this process, and another resumes from its last chunk (trial_timeout does that)"
                )
                if self._timeout is not None:
                    rest = f"it is ended after {self._timeout:g} s (trial_timeout)"
                self.report(f"{self._name(signs)}: no result for {silence:.0f} s, {self.locate(signs.process)}; {rest}")

    def _patience(self, key: str, longest: dict[str, float]) -> float:
        """Seconds without a result that the pace of the trial explains; of the others, if it has none yet."""
        paces = longest.get(key) or max(longest.values(), default=0.0)
        patience = max(SILENCE_S, PACE * paces) if paces else FIRST_S
        return patience if self._timeout is None else min(patience, self._timeout / 2)

    def _end(self, key: str, signs: _Signs, reason: str) -> None:
        actor = signs.trial.temporary_state.ray_actor
        if actor is None:
            return  # it is ending already
        signs.end = f"{reason} ({self.locate(signs.process)})"
        if self._give_up_at is not None:  # else the callback reports what follows
            self.report(f"{self._name(signs)}: {signs.end}")
        self.kill(actor)

    def _name(self, signs: _Signs) -> str:
        """The label and the key of a trial, of a pack those of its first trial."""
        first, *others = TrialSpec.from_tune(signs.trial.config).pack
        key = first.trial.key
        together = f" and {len(others)} others in its pack" if others else ""
        return f"{self.context.outcome.plan.trial(key).configuration.label} ({key}){together}"

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()


def _key(trial: TuneTrial) -> str:
    return TrialSpec.from_tune(trial.config).trial.key
