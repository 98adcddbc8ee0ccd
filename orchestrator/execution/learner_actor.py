"""`LearnerActor`, a Tune trial that owns its GPU, and `ActorSource`, through which it reads from the `StreamActor`.

What a stream gives is in `streams`; what a trial does is in `orchestrator.protocol.online`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from learners import checkpoint, registry
from orchestrator.errors import OrchestratorError, disk_full_as_error
from orchestrator.execution.messages import ChunkResult, Refusal, TrialSpec, to_tune
from orchestrator.execution.stream_actor import node_stream_actor
from orchestrator.protocol import metrics, online
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.source import StackedDatapoints, StreamShape, StreamSource
from orchestrator.search.population.decisions import fitness
from orchestrator.search.population.segments import LostStateError
from orchestrator.storage import chunk_files, retention
from orchestrator.storage.mirror import TrialCopy
from orchestrator.storage.trial_log import TrialLog, note_machine
from orchestrator.system import hardware
from orchestrator.tracking import points, provenance
from streams.schedule import Schedule
from streams.store.task_store import TaskStore
from streams.stream import Datapoints


class ActorSource:
    """A stack of streams, read through the node's `StreamActor`.

    The next chunk, and the held-out points of the tasks that end within this one, are fetched while the learner is
    busy.
    """

    def __init__(self, actor: Any, seeds: list[int], schedule: Schedule) -> None:
        self._actor, self._seeds, self._schedule = actor, seeds, schedule
        self._ahead: dict[tuple[int, int], Any] = {}
        self._held_out_ahead: dict[tuple[tuple[int, ...], str], Any] = {}
        self._splits: list[str] = []  # those that were read before, and will be again
        self._shape: StreamShape = ray.get(actor.shape.remote(seeds, schedule))

    def shape(self) -> StreamShape:
        return self._shape

    def read(self, start: int, count: int) -> StackedDatapoints:
        reference = self._ahead.pop((start, count), None) or self._fetch(start, count)
        self._ahead.clear()
        if start + count < self._shape.length:
            self._ahead[start + count, count] = self._fetch(start + count, count)
        self._prefetch_held_out(start, start + count)
        return _writable(ray.get(reference))

    def held_out(self, tasks: list[int], split: str) -> list[Datapoints]:
        if split not in self._splits:
            self._splits.append(split)
        reference = self._held_out_ahead.pop((tuple(tasks), split), None)
        held_out: list[Datapoints] = ray.get(reference or self._fetch_held_out(tasks, split))
        return [Datapoints(task.image_ids.copy(), task.labels.copy(), task.tasks.copy()) for task in held_out]

    def first_tasks(self, count: int) -> StackedDatapoints:
        return _writable(ray.get(self._actor.first_tasks.remote(self._seeds, self._schedule, count)))

    def _prefetch_held_out(self, start: int, stop: int) -> None:
        """Where all seeds leave their tasks together (a sequential stream), fetch those that end in (start, stop]."""
        self._held_out_ahead.clear()
        if not self._shape.has_boundaries:
            return
        for ends in zip(*self._shape.ends, strict=True):
            if start < ends[0][0] <= stop:
                tasks = [task for _, task in ends]
                for split in self._splits:
                    self._held_out_ahead[tuple(tasks), split] = self._fetch_held_out(tasks, split)

    def _fetch(self, start: int, count: int) -> Any:
        return self._actor.read.remote(self._seeds, self._schedule, start, count)

    def _fetch_held_out(self, tasks: list[int], split: str) -> Any:
        return self._actor.held_out.remote(self._seeds, self._schedule, tasks, split)


def _writable(stack: StackedDatapoints) -> StackedDatapoints:
    """A copy: Ray's arrays are read-only, which torch does not accept."""
    return StackedDatapoints(stack.image_ids.copy(), stack.labels.copy())


class NotBuiltError(OrchestratorError):
    """A learner refuses its options or its stream while it is built."""


class LearnerActor(tune.Trainable):  # type: ignore[misc]
    """One trial: a configuration on a stack of seeds, resumed from its newest chunk file.

    A step learns one chunk of batches. State and curves are on disk before the result is returned, so the trial can
    resume from every result that the driver has seen. Tune's own checkpoints are not used.
    """

    _copy: TrialCopy | None = None

    def setup(self, config: dict[str, Any]) -> None:
        """Must have no side effects: Tune may start an actor and discard it.

        The trial is claimed in the first `step`.
        """
        self.cleanup()
        self._spec = TrialSpec.from_tune(config)
        self._started = False

    def step(self) -> dict[str, Any]:
        """Learn a chunk, save it, and return its result."""
        if not self._started:
            try:
                self._start()
            except (NotBuiltError, LostStateError) as error:  # another attempt would fail, too
                return to_tune(Refusal(str(error)))
        protocol, plan = self._protocol, self._spec.segments
        with self._log.recording():
            curves = protocol.curves.since(protocol.batches)
            # The trial may have been finished, or have reached its pause, before this actor started.
            advances = not protocol.finished and (plan is None or protocol.batches < plan.stop)
            if advances:
                curves = protocol.advance(self._next_batches())
            self._save(advances)
            result = self._result(curves)
            self._log_chunk(curves, result)
            if plan and not result.trial_over and plan.segment(protocol.batches).start == protocol.batches:
                self._load()  # a chunk file was damaged, and the end of an earlier segment was trained again
            return to_tune(result)

    def _start(self) -> None:
        """Claim the trial, and load its state.

        Raises:
            NotBuiltError: the learner refuses its options or its stream.
            LostStateError: A population member's chunk files, or its parent's, are missing.
        """
        spec = self._spec
        # Results at an address are written to a local copy, and each file is uploaded.
        self._copy = None if spec.address is None else TrialCopy(spec.address)
        self._folder = Path(spec.folder) if self._copy is None else self._copy.folder
        with disk_full_as_error(self._folder):
            self._attempt = chunk_files.claim(self._folder)
            if self._copy is not None:
                self._copy.claim(self._attempt)
            self._log = TrialLog(self._folder, f"attempt {self._attempt}")
            with self._log.recording():
                self._open_stream()
                self._load()
        self._started = True

    def _open_stream(self) -> None:
        spec, trial = self._spec, self._spec.trial
        self._gpu = torch.cuda.is_available() and spec.gpus > 0
        self._device = torch.device("cuda" if self._gpu else "cpu")
        torch.set_num_threads(spec.threads)
        if spec.modules is not None:
            registry.search_also(spec.modules)
        actor = node_stream_actor(spec.store)
        self._store = TaskStore.open(ray.get(actor.path.remote()))
        self._source: StreamSource = ActorSource(actor, list(trial.seeds), spec.schedule)
        hardware.reset_peak_memory(self._device)
        facts = hardware.facts(self._device)
        note_machine(self._folder / f"attempt-{self._attempt:04d}", facts)
        self._log.say(
            f"starts on {facts['foml.hostname']}, process {os.getpid()}, {facts['foml.device']}, "
            f"{facts['foml.threads']} thread(s); {trial.configuration.learner} {trial.configuration.options}, "
            f"seeds {list(trial.seeds)}; {provenance.code()}"
        )
        self._remarks: list[str] = []

    def _load(self) -> None:
        """Build the protocol, and load the newest chunk file; at a segment's start, enter the segment."""
        plan, chunk = self._spec.segments, chunk_files.newest(self._folder, self._device, self._remarks)
        for remark in self._remarks:
            self._log.say(remark)
        segment = None if plan is None else plan.segment(0 if chunk is None else chunk.batches)
        copied = None if plan is None else plan.copied_state(chunk, self._chunk_of)
        self._protocol = self._built({} if segment is None else segment.values)
        ends, size = self._source.shape().ends, self._spec.trial.configuration.batch_size
        self._kept = retention.steps(self._spec.keep_checkpoints, ends, size)
        if chunk is not None:
            if copied is None:
                self._protocol.load_state_dict(chunk.state, chunk.curves)
            else:
                self._protocol.load_with_new_options(copied, chunk.curves)
            self._log.say(f"resumes from batch {chunk.batches}, {chunk.path.name}")
        if segment is not None and segment.start == self._protocol.batches:
            self._protocol.mark(segment.marks or {})
            parent = f" and the state of {segment.parent}" if segment.parent else ""
            self._log.say(f"from batch {segment.start} with {segment.values}{parent}")

    def _built(self, values: dict[str, Any]) -> online.OnlineProtocol:
        """The protocol at batch 0, its learner with these values of its hyper-parameters."""
        trial = self._spec.trial
        configuration = trial.configuration
        try:
            return online.assemble(
                self._store,
                configuration.learner,
                configuration.options | values,
                list(trial.seeds),
                configuration.batch_size,
                configuration.network,
                source=self._source,
                device=self._device,
            )
        except (ValueError, OrchestratorError) as error:
            raise NotBuiltError(" ".join(str(error).split()) or type(error).__name__) from error

    def _chunk_of(self, member: str, batches: int) -> chunk_files.Chunk | None:
        """The newest undamaged chunk of a population member, of at most this number of batches."""
        if self._copy is None:
            return chunk_files.load_at_most(self._folder.parent / member, batches, self._device)
        copy = TrialCopy(self._spec.parents[member])
        try:
            return chunk_files.load_at_most(copy.folder, batches, self._device)
        finally:
            copy.close()

    def _next_batches(self) -> int:
        """Batches of the next chunk, which ends early at a checkpoint to keep and at a segment's end."""
        at = self._protocol.batches
        stops = [step - at for step in self._kept if step > at]
        if self._spec.segments is not None:
            stops.append(self._spec.segments.next_stop(at))
        return min([self._spec.chunk, *stops])

    def _save(self, advanced: bool) -> None:
        """Write the chunk file, and the learner where its checkpoint is kept."""
        protocol, configuration = self._protocol, self._spec.trial.configuration
        with disk_full_as_error(self._folder):
            if protocol.finished or protocol.batches in self._kept:
                name = chunk_files.LEARNER_FILE if protocol.finished else retention.file_name(protocol.batches)
                path = self._folder / name
                if advanced or not checkpoint.is_intact(path):
                    learner, network = configuration.learner, configuration.network
                    store = self._store
                    names, background = store.label_names, store.background
                    checkpoint.save(path, learner, protocol.learner, network, store.shape, names, background)
            if advanced:
                keep = () if self._spec.segments is None else self._spec.segments.kept_steps
                state = protocol.state_dict()
                chunk_files.write(self._folder, self._attempt, state, protocol.curves, protocol.finished, keep)
        if self._copy is not None:
            self._copy.push(self._attempt)

    def _result(self, chunk: Curves) -> ChunkResult:
        protocol, plan, curves = self._protocol, self._spec.segments, self._protocol.curves
        by_metric = {name: metrics.objective(curves, name) for name in ("online_error", *points.BY_TASK)}
        pauses = plan is not None and not protocol.finished and protocol.batches >= plan.stop
        remarks, self._remarks = self._remarks, []
        return ChunkResult(
            batches=protocol.batches,
            total_batches=protocol.total_batches,
            seconds=float(curves.chunks["seconds"].sum()),
            curves=chunk,
            objectives={name: values for name, values in by_metric.items() if values is not None},
            finished=protocol.finished,
            fitness=fitness(curves, plan.metric, plan.start, plan.stop) if plan and pauses else None,
            remarks=tuple(remarks),
            memory=hardware.resident_bytes(),
            gpu_memory=hardware.gpu_bytes(self._gpu),
        )

    def _log_chunk(self, chunk: Curves, result: ChunkResult) -> None:
        """Log each seed that diverged in this chunk, and how far the trial is."""
        for seed, at in zip(chunk.seeds, self._protocol.curves.diverged, strict=True):
            if at >= chunk.first_batch:
                self._log.say(f"seed {seed} diverged at batch {at}: a loss or a diagnostic is not finite")
        errors = ", ".join(f"{metric} {values.mean():.4f}" for metric, values in result.objectives.items())
        position = f"batch {result.batches} of {result.total_batches}, {errors}"
        if result.finished:
            self._log.say(f"finished: {position}, {result.seconds:.1f} s")
        else:
            self._log.now_and_then(position)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Run another trial in this process, which saves its start and its imports."""
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """Delete the local copy of a trial whose folder is elsewhere."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Do nothing: the chunk file is the checkpoint."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: the first step loads the newest chunk file."""
