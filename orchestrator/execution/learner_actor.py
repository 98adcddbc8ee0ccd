"""`LearnerActor`, a Tune trial that owns its GPU, and `ActorSource`, through which it reads from the `StreamActor`.

What a stream gives is in `streams`; what a trial does is in `orchestrator.protocol.online`.
"""

import copy
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from learners import checkpoint, registry
from orchestrator.errors import OrchestratorError, disk_full_as_error
from orchestrator.execution.chunk_length import ChunkLength
from orchestrator.execution.messages import ChunkResult, Refusal, Result, TrialSpec, to_tune
from orchestrator.execution.nodes import check_node_stays
from orchestrator.execution.stream_actor import node_stream_actor
from orchestrator.protocol import metrics, packs
from orchestrator.protocol.curves import Curves
from orchestrator.protocol.objectives import STANDARD, ObjectiveError
from orchestrator.protocol.source import StackedDatapoints, StreamShape, StreamSource
from orchestrator.search.population.decisions import fitness
from orchestrator.search.population.segments import LostStateError, Segment
from orchestrator.storage import atomic, chunk_files, retention
from orchestrator.storage.mirror import TrialCopy
from orchestrator.storage.trial_files import TrialFiles
from orchestrator.storage.trial_log import note_machine
from orchestrator.system import hardware
from orchestrator.tracking import provenance
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
        self._ahead: dict[int, tuple[int, Any]] = {}  # start → count, and what was fetched
        self._held_out_ahead: dict[tuple[tuple[int, ...], str], Any] = {}
        self._splits: list[str] = []  # those that were read before, and will be again
        self._shape: StreamShape = ray.get(actor.shape.remote(seeds, schedule))

    def shape(self) -> StreamShape:
        return self._shape

    def read(self, start: int, count: int) -> StackedDatapoints:
        ahead = self._ahead.pop(start, None)
        self._ahead.clear()
        reference = ahead[1] if ahead is not None and ahead[0] >= count else self._fetch(start, count)
        if start + count < self._shape.length:
            self._ahead[start + count] = count, self._fetch(start + count, count)
        self._prefetch_held_out(start, start + count)
        return _writable(ray.get(reference), count)

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


def _writable(stack: StackedDatapoints, count: int | None = None) -> StackedDatapoints:
    """A copy, of the first `count` of each seed: Ray's arrays are read-only, which torch does not accept."""
    return StackedDatapoints(stack.image_ids[:, :count].copy(), stack.labels[:, :count].copy())


class NotBuiltError(OrchestratorError):
    """A learner refuses its options or its stream while it is built."""


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Errors that cannot be copied, such as one of a user's own class, are raised as `RuntimeError`.

    Tune copies an error, and Ray sends it to the driver: the trial would fail with the error of copying it.
    """
    try:
        yield
    except Exception as error:
        try:
            copy.copy(error)
            pickle.loads(pickle.dumps(error))
        except Exception:  # a class with other arguments than its text, or one inside a function
            text = f"{type(error).__name__}: {atomic.reason(error)}"
            raise RuntimeError(text).with_traceback(error.__traceback__) from None  # a cause would be copied, too
        raise


class LearnerActor(tune.Trainable):  # type: ignore[misc]
    """A pack of trials, mostly one: configurations on a stack of seeds, each resumed from its newest chunk file.

    A step learns one chunk of batches. State and curves of each trial are on disk before the results are returned, so
    the trials can resume from every result that the driver has seen. Tune's own checkpoints are not used.
    """

    _files: Sequence[TrialFiles] = ()

    def setup(self, config: dict[str, Any]) -> None:
        """Must have no side effects: Tune may start an actor and discard it.

        The trials are claimed in the first `step`.
        """
        self.cleanup()
        self._spec = TrialSpec.from_tune(config)
        self._refusals: dict[int, Refusal] = {}  # place in the pack → why the trial has no more results
        self._started = False

    def step(self) -> dict[str, Any]:
        """Learn a chunk, save it, and return the results of the trials."""
        with _readable_errors():
            return self._step()

    def _step(self) -> dict[str, Any]:
        check_node_stays()
        if not self._started:
            try:
                self._start()
            except (NotBuiltError, LostStateError) as error:  # another attempt would fail, too
                if self._spec.others:
                    raise  # they are tried in halves of the pack
                return to_tune([Refusal(str(error))])
        pack, plan = self._pack, self._spec.segments  # members of a population pause together
        with self._recording():
            parts = [curves.since(pack.batches) for curves in pack.curves]
            # The trials may have been finished, or have reached their pause, before this actor started.
            advances = not pack.finished and (plan is None or pack.batches < plan.stop)
            if advances:
                parts = pack.advance(self._next_batches())
                seconds = sum(float(curves.chunks["seconds"].sum()) for curves in parts)
                self._length.measured(parts[0].batches - parts[0].first_batch, seconds)
            self._save(advances)
            results = [self._result(member, curves) for member, curves in enumerate(parts)]
            over = all(result.trial_over for result in results)
            if plan and not over and plan.segment(pack.batches).start == pack.batches:
                self._load()  # a chunk file was damaged, and the end of an earlier segment was trained again
            return to_tune(results)

    def _start(self) -> None:
        """Claim the trials, and load their states.

        Raises:
            NotBuiltError: the learner refuses its options or its stream.
            LostStateError: A population member's chunk files, or its parent's, are missing.
        """
        spec = self._spec
        with disk_full_as_error(Path(spec.folder)):
            self._files = [TrialFiles(each.folder, each.address) for each in spec.pack]
            self._length = ChunkLength(spec.chunk)
            with self._recording():
                self._open_stream()
                self._load()
        self._started = True

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Whatever is printed is in the log of each trial."""
        with ExitStack() as stack:
            for files in self._files:
                stack.enter_context(files.log.recording())
            yield

    def _open_stream(self) -> None:
        spec, seeds = self._spec, list(self._spec.trial.seeds)
        self._gpu = torch.cuda.is_available() and spec.gpus > 0
        self._device = torch.device("cuda" if self._gpu else "cpu")
        hardware.set_threads(spec.threads)
        if spec.modules is not None:
            registry.search_also(spec.modules)
        actor = node_stream_actor(spec.store)
        self._store = TaskStore.open(ray.get(actor.path.remote()))
        self._source: StreamSource = ActorSource(actor, seeds, spec.schedule)
        hardware.reset_peak_memory(self._device)
        facts = hardware.facts(self._device)
        together = f", in a pack of {len(spec.pack)} trials" if spec.others else ""
        for each, files in zip(spec.pack, self._files, strict=True):
            note_machine(files.claim, facts)
            configuration = each.trial.configuration
            files.log.say(
                f"starts on {facts['foml.hostname']}, process {os.getpid()}, {facts['foml.device']}, "
                f"{facts['foml.threads']} thread(s); {configuration.learner} {configuration.options}, "
                f"seeds {seeds}{together}; {provenance.code()}"
            )

    def _load(self) -> None:
        """Build the pack, and load the newest chunk files; at a segment's start, enter the segment."""
        chunks = [files.newest(self._device) for files in self._files]
        entered = [self._segment(spec, chunk) for spec, chunk in zip(self._spec.pack, chunks, strict=True)]
        segments, copied = zip(*entered, strict=True)
        pack = self._pack = self._built([{} if each is None else each.values for each in segments])
        ends, size = self._source.shape().ends, self._spec.trial.configuration.batch_size
        self._kept = retention.steps(self._spec.keep_checkpoints, ends, size)
        if present := [each for each in chunks if each is not None]:
            if len(present) < len(chunks):
                raise OrchestratorError("a trial of the pack has no chunk file, and another one has")
            states = [
                each.state if parent is None else pack.protocol.state_for_new_options(parent)
                for each, parent in zip(present, copied, strict=True)
            ]
            pack.load_state_dicts(states, [each.curves for each in present])
        for member, (chunk, segment, files) in enumerate(zip(chunks, segments, self._files, strict=True)):
            if chunk is not None:
                files.log.say(f"resumes from batch {chunk.batches}, {chunk.path.name}")
            if segment is not None and segment.start == pack.batches:
                pack.mark(member, segment.marks or {})
                parent = f" and the state of {segment.parent}" if segment.parent else ""
                files.log.say(f"from batch {segment.start} with {segment.values}{parent}")

    def _segment(
        self, spec: TrialSpec, chunk: chunk_files.Chunk | None
    ) -> tuple[Segment | None, dict[str, Any] | None]:
        """The segment of a population member after its newest chunk, and the state that it copies, if any.

        Raises:
            LostStateError: see `SegmentPlan.copied_state`.
        """
        plan = spec.segments
        if plan is None:
            return None, None
        copied = plan.copied_state(chunk, lambda member, batches: self._chunk_of(spec, member, batches))
        return plan.segment(0 if chunk is None else chunk.batches), copied

    def _built(self, values: Sequence[dict[str, Any]]) -> packs.Pack:
        """The pack at batch 0, its learners with these values of their hyper-parameters."""
        configuration = self._spec.trial.configuration
        try:
            return packs.assemble(
                self._store,
                configuration.learner,
                [spec.trial.configuration.options | each for spec, each in zip(self._spec.pack, values, strict=True)],
                list(self._spec.trial.seeds),
                batch_size=configuration.batch_size,
                network=configuration.network,
                source=self._source,
                device=self._device,
                evaluate_past=configuration.evaluate_past,
                start=self._spec.start,
            )
        except (ValueError, OSError, OrchestratorError) as error:
            raise NotBuiltError(" ".join(str(error).split()) or type(error).__name__) from error

    def _chunk_of(self, spec: TrialSpec, member: str, batches: int) -> chunk_files.Chunk | None:
        """The newest undamaged chunk of a parent of a trial, of at most this number of batches."""
        if spec.address is None:
            return chunk_files.load_at_most(self._files[0].folder.parent / member, batches, self._device)
        copy = TrialCopy(spec.parents[member])
        try:
            return chunk_files.load_at_most(copy.folder, batches, self._device)
        finally:
            copy.close()

    def _next_batches(self) -> int:
        """Batches of the next chunk, which ends early at a checkpoint to keep, a rung and a segment's end."""
        at = self._pack.batches
        stops = [step - at for step in (*self._kept, *self._spec.rungs) if step > at]
        if self._spec.segments is not None:
            stops.append(self._spec.segments.next_stop(at))
        return min([self._length.batches, *stops])

    def _save(self, advanced: bool) -> None:
        """Write the chunk file of each trial, and its learner where its checkpoint is kept."""
        pack, store = self._pack, self._store
        described = store.shape, store.label_names, store.background, store.images_per_datapoint
        for member, (spec, files) in enumerate(zip(self._spec.pack, self._files, strict=True)):
            configuration = spec.trial.configuration
            with disk_full_as_error(files.folder):
                if pack.finished or pack.batches in self._kept:
                    name = chunk_files.LEARNER_FILE if pack.finished else retention.file_name(pack.batches)
                    path = files.folder / name
                    if advanced or not checkpoint.is_intact(path):
                        files.check_newest()
                        learner = pack.learner(member)
                        checkpoint.save(path, configuration.learner, learner, configuration.network, *described)
                if advanced:
                    keep = () if spec.segments is None else spec.segments.kept_steps
                    files.write(pack.state_dict(member), pack.curves[member], pack.finished, keep)
            files.push()

    def _result(self, member: int, chunk: Curves) -> Result:
        """The result of a trial, whose log has it, too."""
        if member in self._refusals:
            return self._refusals[member]
        files, curves = self._files[member], self._pack.curves[member]
        pack, plan, objective = self._pack, self._spec.segments, self._spec.objective
        try:
            by_metric = {name: metrics.objective(curves, name) for name in STANDARD}
            if not objective.is_standard:
                by_metric[objective.name] = objective(curves)
        except ObjectiveError as error:
            return self._refusals.setdefault(member, Refusal(str(error)))
        pauses = plan is not None and not pack.finished and pack.batches >= plan.stop
        remarks, files.remarks = files.remarks, []
        memory, trials = hardware.resident_bytes(), len(self._files)
        result = ChunkResult(
            batches=pack.batches,
            total_batches=pack.protocol.total_batches,
            seconds=float(curves.chunks["seconds"].sum()),
            curves=chunk,
            objectives={name: values for name, values in by_metric.items() if values is not None},
            finished=pack.finished,
            fitness=fitness(curves, plan.metric, plan.start, plan.stop) if plan and pauses else None,
            remarks=tuple(remarks),
            memory=None if memory is None else memory // trials,
            gpu_memory=hardware.gpu_bytes(self._gpu) // trials,
        )
        self._log_chunk(files, curves, chunk, result)
        return result

    def _log_chunk(self, files: TrialFiles, curves: Curves, chunk: Curves, result: ChunkResult) -> None:
        """Log each seed that diverged in this chunk, and how far the trial is."""
        for seed, at in zip(chunk.seeds, curves.diverged, strict=True):
            if at >= chunk.first_batch:
                files.log.say(f"seed {seed} diverged at batch {at}: a loss or a diagnostic is not finite")
        errors = ", ".join(f"{metric} {values.mean():.4f}" for metric, values in result.objectives.items())
        position = f"batch {result.batches} of {result.total_batches}, {errors}"
        if result.finished:
            files.log.say(f"finished: {position}, {result.seconds:.1f} s")
        else:
            files.log.now_and_then(position)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Run other trials in this process, which saves its start and its imports."""
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """Delete the local copies of trials whose folders are elsewhere."""
        for files in self._files:
            files.close()
        self._files = ()
