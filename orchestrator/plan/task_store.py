"""Opens the task store that a sweep learns from: verified, and of the stream that the sweep names."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.config.cross_checks import check_interval, check_with_store
from orchestrator.config.schema import PAST_METRICS, LearnerSpec, Sweep
from orchestrator.errors import ConfigError
from orchestrator.protocol.objectives import ObjectiveMetric
from orchestrator.protocol.source import StoreSource, StreamShape
from streams.build import cached
from streams.errors import Faults
from streams.progress import ProgressLine
from streams.recipe import Progress
from streams.store.task_store import TaskStore
from streams.store.transport import localise

if TYPE_CHECKING:
    from torch import Tensor, nn

    from learners.base import Learner
    from learners.networks.network import Network

logger = logging.getLogger(__name__)


def open_store(sweep: Sweep, progress: Progress | None = None, *, any_objective: bool = False) -> TaskStore:
    """The sweep's verified task store: at the folder or address that the sweep names, or the recipe's in the cache.

    Args:
        sweep: the checked sweep.
        progress: called while a store is built or copied; it prints a line on standard error if None.
        any_objective: accept an objective that has no value on this stream, where nothing is chosen by it.

    Raises:
        StreamsError: the store is damaged or a seed is missing, or the source is not valid.
        ConfigError: the store is of another stream, or does not fit the sweep's options.
        ObjectiveError: the objective's function cannot be imported.
    """
    progress = progress or ProgressLine()
    objective_of(sweep).check()
    if sweep.store is None:
        store = TaskStore.open(cached(sweep.recipe, sweep.seeds, progress).path, verify=True)
    else:
        store = _named_store(sweep, sweep.store, progress)
    shape = StoreSource(store, sweep.seeds, sweep.schedule).shape()  # raises if the schedule does not fit the tasks
    faults = Faults(sweep.file)
    check_interval(sweep.scheduler, shape.length, faults)
    check_with_store(sweep, store.classes, faults)
    _check_batches(sweep.document.batch_size, shape, faults)
    if not any_objective:
        _check_objective(sweep, shape, faults)
    if sweep.document.network is not None:
        _check_network(sweep, store, faults)
    _check_states(sweep, store, faults)
    faults.check(ConfigError)
    return store


def objective_of(sweep: Sweep) -> ObjectiveMetric:
    """The objective of a sweep, to be computed from curves."""
    document = sweep.document
    return ObjectiveMetric.of(document.objective.model_dump(exclude_none=True), document.batch_size)


def _check_network(sweep: Sweep, store: TaskStore, faults: Faults) -> None:
    """Take one training pass of the network, and check that it has what each learner needs."""
    import torch

    from learners import registry
    from learners.networks import build
    from learners.networks.hidden_units import HiddenUnits
    from learners.networks.network import cross_entropy

    images = (store.images_per_datapoint,) if store.images_per_datapoint > 1 else ()
    try:
        network = build.build(sweep.network, store.shape, store.classes)
        phi, statistics = network.initial([0])
        x, y = torch.full((1, 2, *images, *store.shape), 0.5), torch.zeros(1, 2, dtype=torch.int64)
        _check_norms(network.module)
        logits = network.logits(phi, statistics, x)
        if logits.shape != (1, 2, store.classes):
            raise ValueError(f"must return [B, {store.classes}] for B datapoints (got {list(logits.shape[1:])} for 2)")
        constants = {name: b.clone() for name, b in network.module.named_buffers() if not b.is_floating_point()}
        network.training_pass(phi, statistics, x, cross_entropy(y), twice=True).hessian_vector_product(phi)
        _check_constants(network.module, constants)
    except Exception as error:  # a user's module may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        if "called random operation" in reason:  # torch.vmap's words, which advise a flag that no user can set
            reason = "must draw no random numbers in training, as dropout does"
        rule = f"must be a network that can be trained ({reason})"
        faults.add("network", rule, sweep.network, "see docs/adding-a-network.md")
        return
    _check_single(sweep, store, network, x[:, :1], faults)
    for index, spec in enumerate(sweep.learners):
        kind, of_learner = registry.learner_class(spec.name), faults.at("learners", index)
        if kind.needs_features and not network.features:
            rule = "needs features, which the network does not have"
            of_learner.add("name", rule, spec.name, "make it a subclass of EmbeddingNet")
        elif kind.needs_features and (reason := _feature_fault(network, phi, statistics, x)):
            of_learner.add("name", f"needs features ({reason})", spec.name, "see docs/adding-a-network.md")
        elif kind.needs_hidden_layers:
            try:
                if not HiddenUnits(network).count:
                    raise ValueError("the network names no hidden_layers")
            except ValueError as error:
                of_learner.add("name", f"needs hidden units ({error})", spec.name, "see docs/adding-a-network.md")


def _check_norms(module: nn.Module) -> None:
    """Refuse norms whose running statistics are a cumulative average: their count of batches is not kept.

    Raises:
        ValueError: of the first such norm.
    """
    from torch.nn.modules.batchnorm import _NormBase

    for name, norm in module.named_modules():
        if isinstance(norm, _NormBase) and norm.track_running_stats and norm.momentum is None:
            raise ValueError(f"{name}: momentum of {type(norm).__name__} must be a number, got None")


def _check_constants(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Refuse a network that changes a buffer of whole numbers, such as a counter, which no state holds.

    Raises:
        ValueError: of the first such buffer.
    """
    import torch

    for name, buffer in module.named_buffers():
        if name in before and not torch.equal(buffer, before[name]):
            raise ValueError(f"{name}: a buffer must be of floats if the network changes it, got {buffer.dtype}")


def _feature_fault(network: Network, phi: Tensor, statistics: Tensor, x: Tensor) -> str:
    """Why a network's features are none; empty if they are as many as it says."""
    try:
        shape = list(network.embed(phi, statistics, x).shape[1:])
    except Exception as error:  # a user's module may raise anything
        return " ".join(str(error).split()) or type(error).__name__
    rule = f"embed must return [B, {network.features}] for B datapoints, as many as its attribute features"
    return "" if shape == [x.shape[1], network.features] else f"{rule}, got {shape} for {x.shape[1]}"


def _check_states(sweep: Sweep, store: TaskStore, faults: Faults) -> None:
    """Let each of the user's own learners learn a batch; check its curves, and that its state can be read again."""
    for index, spec in enumerate(sweep.learners):
        if "." not in spec.name:
            continue  # the contract tests save and load those of this package
        from learners.state import StateError, plain_state
        from orchestrator.protocol.batches import DiagnosticsError

        try:
            plain_state(_first_updates(sweep, store, spec).state_dict(), "its state")
        except StateError as error:
            remedy = "convert arrays with torch.as_tensor, numbers with float or int"
            faults.at("learners", index).add("name", f"must have a state that can be saved: {error}", spec.name, remedy)
        except DiagnosticsError as error:
            faults.at("learners", index).add("name", f"must return curves of its own: {error}", spec.name)
        except Exception:  # of an option value that no trial may have: each trial reports its own errors
            logger.debug("%s: not tried", spec.name, exc_info=True)


def _check_single(sweep: Sweep, store: TaskStore, network: Network, datapoint: Tensor, faults: Faults) -> None:
    """Refuse learners that take a training pass of one datapoint with a network that cannot, as with some batch norms.

    The last batch of a stream, or the part of a batch before a task's end, may have one datapoint.
    """
    import torch

    from learners.networks.network import cross_entropy

    try:
        loss = cross_entropy(torch.zeros(1, 1, dtype=torch.int64))
        network.training_pass(*network.initial([0]), datapoint, loss)
    except Exception as error:  # a user's module may raise anything
        reason = str(error)
    else:
        return
    for index, spec in enumerate(sweep.learners):
        try:
            _first_updates(sweep, store, spec, shortest=True)
        except Exception as error:
            if str(error) == reason:  # else each trial reports its own errors
                rule = f"must take no training pass of one datapoint with this network ({' '.join(reason.split())})"
                remedy = "set another batch_size, so that no part of a batch has one datapoint, or another norm"
                faults.at("learners", index).add("name", rule, spec.name, remedy)


def _first_updates(sweep: Sweep, store: TaskStore, spec: LearnerSpec, shortest: bool = False) -> Learner:
    """The learner after the first batch, with the smallest values of the whole numbers that are searched.

    Args:
        shortest: then learn a batch as short as the shortest one, or part of one, of the stream, and end the task.
    """
    from learners import Batch
    from orchestrator.protocol import online
    from orchestrator.protocol.batches import check_diagnostics

    size, options = sweep.document.batch_size, dict(spec.fixed)
    options |= {
        key: min(space.values) for key, space in spec.spaces.items() if all(type(each) is int for each in space.values)
    }
    source = StoreSource(store, sweep.seeds[:1], sweep.schedule)
    run = online.assemble(store, spec.name, options, sweep.seeds[:1], size, sweep.network, source=source)
    learner, length = run.learner, source.shape().length
    if learner.pretrain_tasks:
        run.pretrain(1)
    if learner.needs_boundaries:
        learner.begin_task()
    batch, _ = run.batch(0)[0]
    learner.predict(batch.x)
    check_diagnostics(learner.update(batch), learner)
    if shortest:
        parts = (part for at in range(0, length, size) for part in run.parts(at, min(size, length - at)))
        count = min(stop - start for start, stop in parts)
        learner.update(Batch(batch.x[:, :count], batch.y[:, :count], batch.ids[:, :count]))
        if learner.needs_boundaries:
            learner.end_task()
    return learner


def _check_batches(size: int, shape: StreamShape, faults: Faults) -> None:
    """Check that no batch holds datapoints of more than two tasks: a task within it would have no batch of its own."""
    if not shape.has_boundaries:
        return
    shortest = min(stop - start for ends in shape.ends for start, stop in pairwise([0, *(at for at, _ in ends)]))
    if size > shortest:
        rule = f"must be at most the {shortest} datapoints of the shortest task"
        faults.add("batch_size", rule, size, f"set batch_size={shortest}, or use longer tasks")


def _check_objective(sweep: Sweep, shape: StreamShape, faults: Faults) -> None:
    """Check that the stream has what the objective is computed from: else no trial of the sweep has a value."""
    metric, remedy = sweep.document.objective.metric, "choose another objective"
    if metric == "forward_transfer" and not shape.has_boundaries:
        rule = "needs sharp task boundaries that all seeds share, which this stream does not have"
        faults.add("objective", rule, metric, f"use the schedule sequential, or {remedy}")
    if metric in ("forward_transfer", *PAST_METRICS):
        short = [seed for seed, ends in zip(sweep.seeds, shape.ends, strict=True) if len(ends) < 2]
        if short:
            rule = f"needs two tasks in the stream of each seed, and there is one with seeds {short}"
            faults.add("objective", rule, metric, f"use more tasks, or {remedy}")


def _named_store(sweep: Sweep, address: str, progress: Progress) -> TaskStore:
    store = TaskStore.open(localise(address, progress), verify=True)
    faults = Faults(sweep.file)
    if store.manifest["recipe"] != sweep.recipe.identity():
        rule = f"must be a store of {json.dumps(sweep.recipe.identity())}"
        faults.add("stream.store", rule, json.dumps(store.manifest["recipe"]))
    if missing := sorted(set(sweep.seeds) - set(store.seeds)):
        command = f"python -m streams.build {sweep.recipe.name} --out {address} --seeds {max(sweep.seeds) + 1}"
        faults.add("seeds", f"must be among the store's seeds {store.seeds}", missing, f"add them: {command}")
    faults.check(ConfigError)
    return store
