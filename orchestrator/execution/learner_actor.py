"""`LearnerActor`, a Tune trial that owns its GPU, and how it reads through its node's `StreamActor`.

It delegates: what a stream gives is in `streams`, what a trial does is in `orchestrator.protocol.online`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune

from orchestrator.errors import OrchestratorError, disk_full_as_error
from orchestrator.execution.stream_actor import own_stream_actor
from orchestrator.protocol import curves as orchestrator_curves
from orchestrator.protocol import metrics, online
from orchestrator.protocol.source import StackedDatapoints, StreamShape, StreamSource
from orchestrator.search.population.decisions import fitness
from orchestrator.search.population.segments import LostStateError, SegmentPlan
from orchestrator.storage import retention, trial_files
from orchestrator.storage.mirror import TrialCopy
from orchestrator.storage.trial_log import TrialLog, note_machine
from orchestrator.system import hardware
from orchestrator.system import hardware as usage
from orchestrator.tracking import points as tracking_points
from orchestrator.tracking import provenance
from streams.schedule import Schedule
from streams.store.task_store import TaskStore
from streams.stream import Datapoints


class ActorSource:
    """A stack of streams read through the node's `StreamActor`.

    What will be asked for next is fetched while the learner is busy: the next chunk, and the held-out points of the
    tasks that end within this one.
    """

    def __init__(self, actor: Any, seeds: list[int], schedule: Schedule) -> None:
        self._actor, self._seeds, self._schedule = actor, seeds, schedule
        self._ahead: dict[tuple[int, int], Any] = {}
        self._held_out_ahead: dict[tuple[tuple[int, ...], str], Any] = {}
        self._splits: list[str] = []  # those that were ever asked for, and will be again
        self._shape: StreamShape = ray.get(actor.shape.remote(seeds, schedule))

    def shape(self) -> StreamShape:
        return self._shape

    def read(self, start: int, count: int) -> StackedDatapoints:
        reference = self._ahead.pop((start, count), None) or self._ask(start, count)
        self._ahead.clear()
        if start + count < self._shape.length:
            self._ahead[start + count, count] = self._ask(start + count, count)
        self._fetch_held_out(start, start + count)
        return _own(ray.get(reference))

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        if split not in self._splits:
            self._splits.append(split)
        reference = self._held_out_ahead.pop((tuple(tasks), split), None)
        points: list[Datapoints] = ray.get(reference or self._ask_held_out(tasks, split))
        return [Datapoints(one.image_ids.copy(), one.labels.copy(), one.tasks.copy()) for one in points]

    def first_tasks(self, count: int) -> StackedDatapoints:
        return _own(ray.get(self._actor.first_tasks.remote(self._seeds, self._schedule, count)))

    def _fetch_held_out(self, start: int, stop: int) -> None:
        """Where all seeds leave their tasks together (a sequential stream), ask for what is due in [start, stop)."""
        self._held_out_ahead.clear()
        if not self._shape.has_boundaries:
            return
        for places in zip(*self._shape.ends, strict=True):
            if start < places[0][0] <= stop:
                tasks = [task for _, task in places]
                for split in self._splits:
                    self._held_out_ahead[tuple(tasks), split] = self._ask_held_out(tasks, split)

    def _ask(self, start: int, count: int) -> Any:
        return self._actor.read.remote(self._seeds, self._schedule, start, count)

    def _ask_held_out(self, tasks: list[int], split: str) -> Any:
        return self._actor.held_out.remote(self._seeds, self._schedule, tasks, split)


def _own(stack: StackedDatapoints) -> StackedDatapoints:
    """A copy: Ray's own arrays are read-only, and torch wants others."""
    return StackedDatapoints(stack.image_ids.copy(), stack.labels.copy())


class NotBuiltError(OrchestratorError):
    """A learner that refuses its options or its stream while it is built."""


class LearnerActor(tune.Trainable):  # type: ignore[misc]
    """One trial: a configuration on a stack of seeds, from wherever its newest chunk file says.

    A step is a chunk of batches. State and curves are on disk before the result is returned, so a result that was
    seen can always be gone on from. Tune's own checkpoints are not used.
    """

    _copy: TrialCopy | None = None

    def setup(self, config: dict[str, Any]) -> None:
        """Nothing that another actor would notice: Tune starts one for a trial that it then gives to another, and
        ends the first when it is there. The trial is begun, and claimed, by the one that is told to learn."""
        self.cleanup()
        self._config: dict[str, Any] = config["trial"]
        self._begun = False

    def _begin(self) -> None:
        config = self._config
        # Results at an address are worked on in a copy, and every file of it is put there.
        self._copy = None if config["address"] is None else TrialCopy(config["address"])
        self._folder = Path(config["folder"]) if self._copy is None else self._copy.folder
        with disk_full_as_error(self._folder):
            self._attempt = trial_files.claim(self._folder)
            if self._copy is not None:
                self._copy.claim(self._attempt)
            self._log = TrialLog(self._folder, f"attempt {self._attempt}")
            with self._log.recording():
                self._take_up(config)
        self._begun = True

    def _take_up(self, config: dict[str, Any]) -> None:
        import torch

        gpu = self._gpu = torch.cuda.is_available() and config["gpus"] > 0
        torch.set_num_threads(config["threads"])
        actor = own_stream_actor(config["store"])
        self._store = TaskStore.open(ray.get(actor.path.remote()))
        self._source: StreamSource = ActorSource(actor, config["seeds"], config["schedule"])
        self._device = torch.device("cuda" if gpu else "cpu")
        hardware.reset_peak_memory(self._device)
        facts = hardware.facts(self._device)
        note_machine(self._folder / f"attempt-{self._attempt:04d}", facts)
        self._log.say(
            f"starts on {facts['foml.hostname']}, process {os.getpid()}, {facts['foml.device']}, "
            f"{facts['foml.threads']} thread(s); {config['learner']} {config['options']}, seeds {config['seeds']}; "
            f"{provenance.code()}"
        )
        self._plan: SegmentPlan | None = config.get("segments")
        self._remarks: list[str] = []
        self._open()

    def _open(self) -> None:
        """Build the protocol and load the newest chunk file; at the start of a segment, enter the segment."""
        plan, done = self._plan, trial_files.newest(self._folder, self._device, self._remarks)
        for remark in self._remarks:
            self._log.say(remark)
        segment = None if plan is None else plan.segment(0 if done is None else done.batches)
        copied = None if plan is None else plan.copied_state(done, self._chunk_of)
        self._protocol = self._made({} if segment is None else segment.values)
        ends, size = self._source.shape().ends, self._config["batch_size"]
        self._kept = retention.steps(self._config["keep_checkpoints"], ends, size)
        if done is not None:
            if copied is None:
                self._protocol.load_state_dict(done.state, done.curves)
            else:
                self._protocol.load_with_new_options(copied, done.curves)
            self._log.say(f"goes on from batch {done.batches}, {done.path.name}")
        if segment is not None and segment.start == self._protocol.batches:
            self._protocol.mark(segment.marks or {})
            of = f" and the state of {segment.parent}" if segment.parent else ""
            self._log.say(f"from batch {segment.start} with {segment.values}{of}")

    def _made(self, values: dict[str, Any]) -> online.OnlineProtocol:
        """The protocol at batch 0, its learner with these values."""
        config = self._config
        try:
            return online.assemble(
                self._store,
                config["learner"],
                config["options"] | values,
                config["seeds"],
                config["batch_size"],
                config["network"],
                source=self._source,
                device=self._device,
            )
        except (ValueError, OrchestratorError) as error:
            raise NotBuiltError(" ".join(str(error).split()) or type(error).__name__) from error

    def _chunk_of(self, member: str, batches: int) -> trial_files.Chunk | None:
        """The newest whole chunk of a member of the population, of at most so many batches."""
        if self._copy is None:
            return trial_files.load_at_most(self._folder.parent / member, batches, self._device)
        theirs = TrialCopy(self._config["parents"][member])
        try:
            return trial_files.load_at_most(theirs.folder, batches, self._device)
        finally:
            theirs.close()

    def step(self) -> dict[str, Any]:
        if not self._begun:
            try:
                self._begin()
            except (NotBuiltError, LostStateError) as error:  # another attempt would fail too: the trial ends here
                return {"done": True, "finished": False, "refused": str(error)}
        with self._log.recording():
            return self._step()

    def _step(self) -> dict[str, Any]:
        from learners import checkpoint

        run, plan, config = self._protocol, self._plan, self._config
        # It may have been finished before this actor began, or have reached its pause.
        advances = not run.finished and (plan is None or run.batches < plan.stop)
        slice_ = run.curves.since(run.batches)
        if advances:
            count = self._until_kept()
            slice_ = run.advance(count if plan is None else min(count, plan.next_stop(run.batches)))
        with disk_full_as_error(self._folder):
            if run.finished or run.batches in self._kept:
                path = self._folder / (trial_files.LEARNER_FILE if run.finished else retention.file_name(run.batches))
                if advances or not checkpoint.is_intact(path):
                    checkpoint.save(path, config["learner"], run.learner, config["network"], self._store.shape)
            if advances:
                keep = () if plan is None else plan.kept_steps
                trial_files.write(self._folder, self._attempt, run.state_dict(), run.curves, run.finished, keep)
        if self._copy is not None:
            self._copy.push(self._attempt)
        pauses = plan is not None and not run.finished and run.batches >= plan.stop
        remarks, self._remarks = self._remarks, []
        by_seed = _objectives(run.curves)
        self._tell(slice_, by_seed)
        result = {
            "done": run.finished or pauses,
            "finished": run.finished,
            "batches": run.batches,
            "total_batches": run.total_batches,
            "seconds": float(run.curves.chunks["seconds"].sum()),
            "pid": os.getpid(),
            "slice": slice_,
            "remarks": remarks,
            "by_seed": by_seed,
            "usage": {"memory": usage.resident_bytes(), "gpu_memory": usage.gpu_bytes(self._gpu)},
            **{metric: float(values.mean()) for metric, values in by_seed.items()},
        }
        if plan is not None and pauses:
            result["fitness"] = fitness(run.curves, plan.metric, plan.start, plan.stop)
        elif plan is not None and not run.finished and plan.segment(run.batches).start == run.batches:
            self._open()  # a chunk file was damaged, and the end of an earlier segment was trained again
        return result

    def _tell(self, slice_: orchestrator_curves.Curves, by_seed: dict[str, np.ndarray]) -> None:
        """A line in the trial's log for every seed that is lost, and for how far the trial is."""
        run, first = self._protocol, slice_.first_batch
        for seed, at in zip(run.curves.seeds, run.curves.diverged, strict=True):
            if at >= first:
                self._log.say(f"seed {seed} diverged at batch {at}: a loss or a diagnostic is not finite")
        errors = ", ".join(f"{metric} {values.mean():.4f}" for metric, values in by_seed.items())
        where = f"batch {run.batches} of {run.total_batches}, {errors}"
        if run.finished:
            self._log.say(f"finished: {where}, {run.curves.chunks['seconds'].sum():.1f} s")
        else:
            self._log.now_and_then(where)

    def _until_kept(self) -> int:
        """Batches of the next chunk, which ends early where a checkpoint is to be kept."""
        at = self._protocol.batches
        chunk: int = self._config["chunk"]
        return min([chunk, *(step - at for step in self._kept if step > at)])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take over another trial in this process, which spares it a start and its imports."""
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """Leave nothing on this machine of a trial whose folder is elsewhere."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the chunk file is the checkpoint."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the first step reads the newest chunk file."""


def _objectives(curves: orchestrator_curves.Curves) -> dict[str, np.ndarray]:
    """What a searcher may look at, by seed [R]; left out while there is no value."""
    found = {metric: metrics.objective(curves, metric) for metric in ("online_error", *tracking_points.BY_TASK)}
    return {metric: values for metric, values in found.items() if values is not None}
