"""`StreamActor`, one per node, which serves a task store's datapoints, and `StreamActors`, which owns them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.errors import ConfigError, OrchestratorError, fault
from orchestrator.execution.nodes import joined as joined_nodes
from orchestrator.protocol.source import StackedDatapoints, StoreSource, StreamShape
from orchestrator.storage.journal import MARKER
from orchestrator.storage.mirror import Mirror
from orchestrator.storage.remote_folder import has_file
from streams.errors import StoreError
from streams.schedule import Schedule
from streams.store.address import is_address, join, without_keys
from streams.store.task_store import TaskStore
from streams.store.transport import localise, share
from streams.stream import Datapoints

NAMESPACE = "foml-orchestrator"
SHARED_STORES = "~stores"
"""The folder in a sweep's storage for stores that only the driver has; no sweep's folder begins with ~."""
_LOOK_S = 2.0
_WAIT_S = 60.0
_KNOWN_S = 30.0
"""Seconds that Ray may list a node on which it places no actor: one that has just joined, or has just left."""


class StreamActor:
    """Fetches one store onto its node, and serves its datapoints to all learners there.

    A read is addressed by position, so a restarted actor needs no state.

    Args:
        addresses: where the store may be, as for `localise`; the first that has it is used.
        store_hash: the store's hash.
        seeds: the seeds that the store must have; its hash does not depend on them.
    """

    def __init__(self, addresses: list[str], store_hash: str, seeds: list[int]) -> None:
        self._addresses, self._hash, self._seeds = addresses, store_hash, seeds
        self._opened: TaskStore | None = None
        self._sources: dict[tuple[tuple[int, ...], Schedule], StoreSource] = {}

    def _store(self) -> TaskStore:
        if self._opened is None:
            *others, last = self._addresses
            near = next((address for address in others if self.has(address)), last)
            store = TaskStore.open(localise(near))
            if store.hash != self._hash:
                raise StoreError(fault(near, "", f"must be the store {self._hash[:12]} on every node", store.hash[:12]))
            if not set(self._seeds) <= set(store.seeds):
                raise StoreError(fault(near, "", f"must have the seeds {self._seeds} on every node", store.seeds))
            self._opened = store
        return self._opened

    def has(self, address: str) -> bool:
        """Whether the store is at the address, as seen from this node, with every seed that is needed."""
        try:
            store = TaskStore.open(localise(address))
        except StoreError:
            return False
        return store.hash == self._hash and set(self._seeds) <= set(store.seeds)

    def sees(self, address: str, name: str) -> bool:
        """Whether a file of that name is at the address, as seen from this node."""
        return has_file(address, name)

    def path(self) -> str:
        """The store's folder on this node: learners map the same files."""
        return str(self._store().path)

    def _source(self, seeds: list[int], schedule: Schedule) -> StoreSource:
        key = (tuple(seeds), schedule)
        if key not in self._sources:
            self._sources[key] = StoreSource(self._store(), seeds, schedule)
        return self._sources[key]

    def shape(self, seeds: list[int], schedule: Schedule) -> StreamShape:
        return self._source(seeds, schedule).shape()

    def read(self, seeds: list[int], schedule: Schedule, start: int, count: int) -> StackedDatapoints:
        return self._source(seeds, schedule).read(start, count)

    def held_out(self, seeds: list[int], schedule: Schedule, tasks: list[int], split: str) -> list[Datapoints]:
        return self._source(seeds, schedule).held_out(tasks, split)

    def first_tasks(self, seeds: list[int], schedule: Schedule, count: int) -> StackedDatapoints:
        return self._source(seeds, schedule).first_tasks(count)


def stream_actor_name(store_hash: str, node: str) -> str:
    """The name of this job's actor of the store on that node.

    A job is a driver and everything that it started. Two sweeps on one cluster have separate actors: an actor ends with
    its driver.
    """
    return f"stream-{store_hash[:12]}-{ray.get_runtime_context().get_job_id()}-{node}"


def node_stream_actor(store_hash: str, wait_s: float = _WAIT_S) -> Any:
    """The actor of this process's node; on a node that has just joined, it may start seconds later.

    Raises:
        OrchestratorError: none has started after `wait_s` seconds.
    """
    node = ray.get_runtime_context().get_node_id()
    until = time.monotonic() + wait_s
    while True:
        try:
            return ray.get_actor(stream_actor_name(store_hash, node), NAMESPACE)
        except ValueError:
            if time.monotonic() > until:
                address = ray.util.get_node_ip_address()
                raise OrchestratorError(f"node {address}: no stream actor started within {wait_s:g} s") from None
            time.sleep(0.2)


class StreamActors:
    """A store's actors inside a `with` block, owned by the driver, with which they end.

    Every node has one when the block starts, and every node that joins later gets one. A store that only the driver has
    (with all seeds) is copied into the sweep's storage, from which the other nodes fetch it.

    Args:
        store: the store on this node.
        seeds: the seeds that every node needs.
        address: where other nodes find the store; its path on this node if None.
        root: the sweep's folder, which every node must see.
        report: called with a line for each node that joins later.
        mirror: the address that `root` is a copy of, which every node must reach; None if `root` is no copy.

    Raises:
        ConfigError: on entering: a node does not see the sweep's folder, or cannot get the store.
    """

    def __init__(
        self,
        store: TaskStore,
        seeds: Sequence[int],
        address: str | None,
        root: Path,
        report: Callable[[str], None],
        mirror: Mirror | None = None,
    ) -> None:
        self._store, self._seeds, self._report, self._mirror = store, list(seeds), report, mirror
        self._root = root.absolute()
        self._storage = self._root.parent.as_uri() if mirror is None else mirror.storage
        self._shared: Path | str = ""
        if address is not None and is_address(address):
            self._addresses = [address]
        else:
            self._shared = self._root.parent / SHARED_STORES / store.hash
            if mirror is not None:
                self._shared = join(self._storage, SHARED_STORES, store.hash)
            self._addresses = [str(store.path), join(self._storage, SHARED_STORES, store.hash)]
        self._handles: dict[str, Any] = {}
        self._marker = self._root / f"{MARKER}{secrets.token_hex(8)}"
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="stream-actors", daemon=True)

    def __enter__(self) -> StreamActors:
        self._marker.touch()
        if self._mirror is not None:
            self._mirror.push(self._marker)
        try:
            faults = self._provide(_nodes())
            if faults:
                raise ConfigError(*faults)
        except BaseException:
            self._unmark()
            raise
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watcher.join(_WAIT_S)
        self._handles.clear()
        self._unmark()

    def _unmark(self) -> None:
        self._marker.unlink(missing_ok=True)
        if self._mirror is not None:
            self._mirror.remove(self._marker)

    def _watch(self) -> None:
        seen = set(self._handles)
        while not self._stop.wait(_LOOK_S):
            new = {node: address for node, address in _nodes().items() if node not in seen}
            if new:
                seen |= set(new)
                for line in self._provide(new) or [f"joined: {', '.join(sorted(new.values()))}"]:
                    self._report(line)

    def _provide(self, nodes: dict[str, str]) -> list[str]:
        """Start actors on these nodes; returns a line for each node without one, except nodes that have left."""
        started = {node: self._start(node) for node in nodes}
        unseen, faults = [], []
        for node, actor in started.items():
            until = time.monotonic() + _KNOWN_S
            while True:
                try:
                    if not self._provided(node, actor):
                        unseen.append(nodes[node])
                except ray.exceptions.RayTaskError as error:
                    lines = getattr(error.cause, "faults", [str(error.cause)])
                    faults += [f"node {nodes[node]}: {line}" for line in lines]
                except (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError) as error:
                    if node in _nodes():
                        unknown = isinstance(error, ray.exceptions.ActorUnschedulableError)
                        if unknown and time.monotonic() < until:  # it has just joined, or has just left
                            time.sleep(0.5)
                            actor = self._start(node)
                            continue
                        reason = str(error).splitlines()[0]
                        faults.append(f"node {nodes[node]}: the stream actor cannot run there: {reason}")
                break
        if unseen:
            rule = f"must be a folder that every node sees; not seen from {', '.join(sorted(unseen))}"
            remedy = "put it on shared storage, such as storage=/srv/foml/results or storage=s3://bucket/results"
            got = self._root.parent if self._mirror is None else without_keys(self._storage)
            faults.insert(0, fault("storage", "", rule, got, remedy))
        return faults

    def _provided(self, node: str, actor: Any) -> bool:
        """Give the store to the actor; returns whether its node sees the sweep's folder."""
        if node != ray.get_runtime_context().get_node_id():
            where = self._root.as_uri() if self._mirror is None else self._mirror.address
            if not ray.get(actor.sees.remote(where, self._marker.name)):
                return False
            if self._shared and not ray.get(actor.has.remote(self._addresses[0])):
                share(self._store, self._shared)
        ray.get(actor.path.remote())
        self._handles[node] = actor
        return True

    def _start(self, node: str) -> Any:
        actor = ray.remote(StreamActor).options(
            name=stream_actor_name(self._store.hash, node),
            namespace=NAMESPACE,
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return actor.remote(self._addresses, self._store.hash, self._seeds)


def _nodes() -> dict[str, str]:
    """Id → address of every node that is alive."""
    return {node.id: node.address for node in joined_nodes()}
