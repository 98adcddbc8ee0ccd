"""The sweep's folder on disk: the sweep's configuration, its trials, and which of them are finished or stopped."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from orchestrator.errors import ConfigError, DiskFullError, disk_full_line, fault, is_disk_full
from orchestrator.plan import identity
from orchestrator.plan.plan import POPULATION_PREFIX, Plan, Trial
from orchestrator.storage import atomic, chunk_files
from orchestrator.storage.lease import hold_lease
from orchestrator.storage.mirror import Mirror
from orchestrator.system.processes import started_at

FILE = "sweep.json"
COPY = "sweep-copy.json"
STOPPED = "stopped.json"
SCRATCH, MARKER = "tune-", ".seen-"
"""The prefixes of a folder and of a file that a running sweep needs, and deletes at its end."""
LOCK = "running"
"""The lock file of the command that runs the sweep; its content names the process."""
_SILENCE_S = 600
_DISCARDED = "discarded"
"""The key of the journal that lists trials whose files a command with `--rerun` is deleting."""
_REMOVED = "removed"
"""The key of a trial in the journal that an earlier version of the sweep planned, and the present one does not."""


@dataclass(frozen=True)
class Journal:
    """The folder of one sweep, and the plan that runs in it.

    `sweep.json` holds the configuration as given and with every default, and all stacks of seeds ever planned under
    this name, or since the last command with `--rerun`. It is replaced atomically, then its copy `sweep-copy.json`,
    which is read if the first is damaged.

    Attributes:
        root: the folder; with a mirror, the local copy of the folder at the mirror's address.
        plan: the trials of the sweep, earlier ones included.
        mirror: uploads what is written.
        discarded: keys of the trials whose files `take` deletes: they are of before a `--rerun`.
    """

    root: Path
    plan: Plan
    mirror: Mirror | None = None
    discarded: frozenset[str] = frozenset()

    @classmethod
    def look(cls, root: Path, plan: Plan, mirror: Mirror | None = None, rerun: bool = False) -> Journal:
        """The journal of a folder, and the plan extended by the trials that were run in it; changes no file.

        Args:
            root: the folder.
            plan: of the sweep, without what was run before.
            mirror: of the folder.
            rerun: discard all earlier trials: the plan is not extended, and `take` deletes their files.

        Raises:
            ConfigError: the folder holds another sweep of the same name; one line for each difference.
        """
        earlier = _read(root)
        planned = frozenset(trial.key for trial in plan.trials) if rerun else frozenset()
        if earlier is None:
            return cls(root, plan, mirror, planned)
        remedy = "choose another name; or another storage, and another tracking.experiment with it"
        if faults := identity.differences(str(root / FILE), earlier["sweep"], plan.resolved, remedy):
            raise ConfigError(*faults)
        discarded = frozenset(earlier.get(_DISCARDED, ()))  # by a command that was interrupted before it deleted them
        if rerun:
            return cls(root, plan, mirror, discarded | planned | {entry["key"] for entry in earlier["trials"]})
        entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
        studies = {study.key: study for study in plan.studies}
        for entry in earlier["trials"]:
            entries[entry["configuration"]].append(entry)
            study = studies.get(entry.get("drawn_by"))
            if study is not None and plan.open_draws(study):  # with fewer samples than before, the first ones
                plan.add(study.trial(entry["draws"]))
        return cls(root, plan.with_earlier(_stacks(root, entries)), mirror, discarded)

    @contextmanager
    def locked(
        self, report: Callable[[str], None] = print, stop: Callable[[str], object] = lambda reason: None
    ) -> Iterator[None]:
        """Hold the exclusive right to run this sweep.

        On this machine that is a file lock, which the kernel releases when the process ends; against other machines,
        with a mirror, it is a lease at the address.

        Args:
            report: receives a line if the command waits for another machine's lease to expire, and if another machine
                has taken over the sweep.
            stop: is then called with the same line, in a thread.

        Raises:
            ConfigError: another process runs the sweep, or the folder or the address cannot be written.
        """
        path = self.root / LOCK
        with _writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            holder = path.read_text().strip() if path.exists() else ""  # before older filelocks truncate the file
            try:
                lock = FileLock(path, timeout=0).acquire()
            except Timeout:
                rule, remedy = "one command at a time runs a sweep", "wait for it, or stop it"
                raise ConfigError(fault(str(self.root), "", rule, holder, remedy)) from None
        with lock:
            with suppress(OSError):  # the name of the holder is not essential; a full disk is reported elsewhere
                path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
            with nullcontext() if self.mirror is None else hold_lease(self.mirror.address, self.root, report, stop):
                self._delete_leftovers()
                try:
                    yield
                finally:
                    with suppress(OSError):
                        path.write_text("")

    def _delete_leftovers(self) -> None:
        """Delete what a killed command could not delete; no other command runs this sweep."""
        leftovers = [*self.root.glob(f"{SCRATCH}*"), *self.root.glob("report/.new-*")]
        leftovers += [path for name in (MARKER, f".{FILE}.", f".{COPY}.") for path in self.root.glob(f"{name}*")]
        for path in leftovers:
            with suppress(OSError):  # the sweep does not depend on it
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.mirror is not None:
            self.mirror.remove_all(MARKER)

    def take(self, report: Callable[[str], None] = print) -> None:
        """Delete the files of discarded trials, and write the plan into the folder.

        Args:
            report: receives a line if one of the two journal files is damaged, which is quarantined.

        Raises:
            ConfigError: the folder cannot be written.
        """
        with _writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            _, damaged = _read_both(self.root)
            for path, reason in damaged:
                other = COPY if path.name == FILE else FILE
                report(f"{path}: damaged ({reason}); {other} is used instead; {atomic.quarantine(path)}")
        if self.discarded:
            self._write(self.discarded)  # first: if this command is interrupted, the next one deletes the rest
            with _writing(self.root), nullcontext() if self.mirror is None else self.mirror.alone():
                self._delete_discarded()
        self._write()

    def _delete_discarded(self) -> None:
        for key in sorted(self.discarded):
            shutil.rmtree(self.root / key, ignore_errors=True)
            if self.mirror is not None:
                self.mirror.forget(key)
        for path in sorted(self.root.glob(f"{POPULATION_PREFIX}*.json")):
            path.unlink(missing_ok=True)
            if self.mirror is not None:
                self.mirror.remove(path)

    def draw(self, trial: Trial) -> None:
        """Record a trial that a searcher has drawn, before it starts."""
        self.plan.add(trial)
        self._write()

    def _write(self, discarded: Collection[str] = ()) -> None:
        """Write the journal: the plan's trials, and the earlier ones that are not in `discarded`."""
        earlier = _read(self.root)
        entries = {entry["key"]: entry for entry in earlier["trials"]} if earlier else {}
        # A trial that is no longer planned stays in the journal: its files are used if it is planned again.
        entries = {key: entry | {_REMOVED: True} for key, entry in entries.items() if key not in discarded}
        studies = {study.key: study for study in self.plan.studies}
        for trial in self.plan.trials:
            entry = entries[trial.key] = {
                "key": trial.key,
                "configuration": trial.configuration.hash,
                "label": trial.configuration.label,
                "seeds": list(trial.seeds),
            }
            if trial.drawn_by in studies:
                entry |= {"drawn_by": trial.drawn_by, "draws": studies[trial.drawn_by].draws(trial)}
        content = {
            "given": self.plan.source,
            "sweep": self.plan.resolved,
            "size": self.plan.size,
            "trials": list(entries.values()),
        }
        if self.plan.folder is not None:
            content["folder"] = self.plan.folder
        if discarded:
            content[_DISCARDED] = sorted(discarded)
        text = atomic.with_digest(content)
        for name in (FILE, COPY):
            self.keep(self.root / name, text)

    def stop(self, trial: Trial, batches: int, value: float) -> None:
        """Record that the scheduler stopped a trial after `batches` batches with this objective."""
        with _writing(self.root):
            trial.folder(self.root).mkdir(parents=True, exist_ok=True)
            self.keep(trial.folder(self.root) / STOPPED, json.dumps({"batches": batches, "objective": value}))

    def keep(self, path: Path, text: str) -> None:
        """Write a file of the sweep's folder atomically, and upload it where there is a mirror.

        Raises:
            DiskFullError, ConfigError: the folder or the address cannot be written.
        """
        with _writing(self.root), nullcontext() if self.mirror is None else self.mirror.alone():
            atomic.write(path, text)
            if self.mirror is not None:
                self.mirror.push(path)

    def stopped(self) -> dict[str, int]:
        """Key → batches, of the plan's trials that the scheduler has stopped.

        A trial with later chunk files is left out: the sweep has resumed it without a scheduler.
        """
        stops = {}
        for trial in self.plan.trials:
            folder = trial.folder(self.root)
            if not (folder / STOPPED).is_file():
                continue
            try:
                at = int(json.loads((folder / STOPPED).read_text(encoding="utf-8"))["batches"])
            except atomic.DAMAGE:
                # The file exists, so the trial was stopped; its newest chunk file says when.
                newest = chunk_files.newest(folder)
                if newest is None or not newest.finished:
                    stops[trial.key] = 0 if newest is None else newest.batches
            else:
                if chunk_files.newest_step(folder) <= at:
                    stops[trial.key] = at
        return stops

    def finished(self, quarantined: list[str] | None = None) -> set[str]:
        """Keys of the plan's trials that have reached the end of the stream and have an intact `learner.pt`.

        Args:
            quarantined: for the holder of the lock, while no trial runs: the newest chunk file of every trial is read,
                damaged ones are quarantined, and a line for each is appended.

        Raises:
            NotLoadedError: there is too little memory for a file.
        """
        from learners import checkpoint  # imports torch

        keys = set()
        for trial in self.plan.trials:
            folder = trial.folder(self.root)
            learner = folder / chunk_files.LEARNER_FILE
            if quarantined is not None or learner.exists():
                newest = chunk_files.newest(folder, quarantined=quarantined)
                if newest is None or not newest.finished:
                    continue
                try:
                    intact = checkpoint.is_intact(learner)
                except MemoryError as error:
                    raise chunk_files.not_loaded(learner, error) from error
                if intact:
                    keys.add(trial.key)
        return keys


def _stacks(root: Path, entries: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[tuple[int, ...]]]:
    """Configuration's hash → its stacks of seeds, those first of which most is learned.

    A seed may be in several stacks, after it was planned with more seeds or with fewer.
    """

    def still_to_learn(entry: Mapping[str, Any]) -> int:
        folder = root / entry["key"]
        if (folder / chunk_files.LEARNER_FILE).exists():
            return 0
        return 1 if chunk_files.newest_step(folder) else 2

    return {
        configuration: [
            tuple(entry["seeds"]) for entry in (sorted(each, key=still_to_learn) if len(each) > 1 else each)
        ]
        for configuration, each in entries.items()
    }


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise DiskFullError(disk_full_line(root)) from error
        rule = f"must be a folder that can be written ({error.strerror})"
        raise ConfigError(fault(str(root), "", rule)) from error


def given_before(root: Path, name: str, option: str = "--resume") -> tuple[dict[str, Any], str | None]:
    """The configuration of the sweep in this folder as it was given, and the folder of the user's own learners.

    Args:
        option: the argument that named the sweep, for the message.

    Raises:
        ConfigError: the folder holds no sweep.
    """
    earlier = _read(root)
    if earlier is None:
        rule = f"must be a sweep that was started in {root.parent}"
        names = ", ".join(sweep_names(root.parent)) or "none"
        raise ConfigError(fault(option, "", rule, name, f"existing sweeps: {names}"))
    return earlier["given"], earlier.get("folder")


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep as its folder records it.

    Attributes:
        root: the folder.
        resolved: the configuration with every default.
        trials: the keys of the present plan's trials; of all trials ever planned, in the journal of an earlier version.
        planned: the number of the present plan's trials, with those that a search has yet to draw; None in the journal
            of an earlier version.
    """

    root: Path
    resolved: dict[str, Any]
    trials: tuple[str, ...]
    planned: int | None

    @property
    def size(self) -> int:
        """The number of trials, with those that a search has yet to draw."""
        return max(len(self.trials), _size_by_samples(self.resolved)) if self.planned is None else self.planned


def recorded_sweeps(storage: Path) -> list[RecordedSweep]:
    """The sweeps of a storage folder with an intact journal, the one that was started last first.

    Raises:
        ConfigError: the folder may not be read.
    """
    sweeps = []
    for folder in sweep_folders(storage):
        with suppress(ConfigError):
            if (content := _read(folder)) is not None:
                sweeps.append(_recorded_sweep(folder, content))
    return sweeps


def sweep_names(storage: Path) -> list[str]:
    """The names of the sweeps of a storage folder, sorted; those with a damaged journal by their folders."""
    names = {sweep.root: sweep.resolved["name"] for sweep in recorded_sweeps(storage)}
    return sorted(names.get(folder, folder.name) for folder in sweep_folders(storage))


def sweep_folders(storage: Path) -> list[Path]:
    """The folders of a storage folder that hold a journal, or may not be searched, the one that was started last first.

    Raises:
        ConfigError: the storage folder may not be read.
    """
    try:
        times = {folder: _started(folder) for folder in storage.iterdir()}
        if not os.access(storage, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(storage, "folder", error) from error
    return sorted((each for each in times if times[each] > -math.inf), key=lambda folder: times[folder], reverse=True)


def has_journal(root: Path) -> bool:
    """Whether a folder is that of a sweep; true if it may not be searched."""
    return _started(root) > -math.inf


def _started(root: Path) -> float:
    """The time at which a folder's journal was written last; -inf if there is none, inf if access is denied."""
    try:
        return (root / FILE).stat().st_mtime
    except PermissionError:
        return math.inf
    except OSError:
        return -math.inf


def _unreadable(path: Path, kind: str, error: OSError) -> ConfigError:
    rule = f"must be a {kind} that can be read ({error.strerror})"
    return ConfigError(fault(str(path), "", rule, remedy="get access to it and to the folders that it is in"))


def _recorded_sweep(root: Path, content: Mapping[str, Any]) -> RecordedSweep:
    discarded = content.get(_DISCARDED, ())
    keys = [entry["key"] for entry in content["trials"] if _REMOVED not in entry and entry["key"] not in discarded]
    return RecordedSweep(root, content["sweep"], tuple(keys), content.get("size"))


def _size_by_samples(resolved: Mapping[str, Any]) -> int:
    """The size of a sweep of Optuna whose journal does not hold it, or more: a space may have fewer values; else 0."""
    search = resolved["search"]
    if search["algorithm"] != "optuna":
        return 0  # all trials were recorded at the start
    total = 0
    for learner in resolved["learners"]:
        spaces = [value for value in learner.values() if isinstance(value, dict)]
        grids = [len(space["grid"]) for space in spaces if "grid" in space]
        total += math.prod(grids) * (search["samples"] if len(grids) < len(spaces) else 1)
    return total


def recorded(root: Path) -> dict[str, Any]:
    """The configuration with every default of the sweep in this folder.

    Raises:
        ConfigError: the folder holds no sweep, or its journal is damaged.
    """
    if (content := _read(root)) is None:
        raise ConfigError(fault(str(root), "", "must be the folder of a sweep"))
    resolved: dict[str, Any] = content["sweep"]
    return resolved


def is_running(root: Path) -> bool:
    """Whether a command runs the sweep in this folder: a live process that wrote its lock file.

    A command on another machine, whose processes are out of sight, counts as running for ten minutes after it has
    last changed the folder of a trial.
    """
    lock = root / LOCK
    try:
        _, process, _, host = lock.read_text().split()
        if host != socket.gethostname():
            return time.time() - max(path.stat().st_mtime for path in root.iterdir()) < _SILENCE_S
        started = started_at(int(process))
        return started is not None and started <= lock.stat().st_mtime
    except (OSError, ValueError):
        return False


def _read(root: Path) -> dict[str, Any] | None:
    """The journal of a folder, or its copy if the journal is damaged; None if neither exists."""
    content, damaged = _read_both(root)
    if content is None and damaged:
        files = " and ".join(f"{path.name} ({reason})" for path, reason in damaged)
        rule = f"must be the journal of a sweep, which is damaged: {files}"
        remedy = (
            "move these files away and start the sweep with its FILE: finished trials are found by their folders, and "
            "only configurations that a searcher drew are drawn again; or choose another name"
        )
        raise ConfigError(fault(str(root / FILE), "", rule, remedy=remedy))
    return content


def _read_both(root: Path) -> tuple[dict[str, Any] | None, list[tuple[Path, str]]]:
    """The first intact file of journal and copy, and the damaged ones with the reason.

    Raises:
        ConfigError: none is intact, as the access is denied.
    """
    intact: list[dict[str, Any]] = []
    damaged: list[tuple[Path, str]] = []
    refusal = None
    for path in (root / FILE, root / COPY):
        try:
            intact.append(_checked(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except atomic.DAMAGE as error:
            damaged.append((path, atomic.reason(error)))
            if isinstance(error, PermissionError):
                refusal = refusal or _unreadable(path, "file", error)
    if refusal is not None and not intact:
        raise refusal  # nothing is known of the content
    return (intact[0] if intact else None), damaged


def _checked(text: str) -> dict[str, Any]:
    """The content of a journal; raises one of `atomic.DAMAGE` if the text is not a journal."""
    content = atomic.without_digest(text)
    if not all(isinstance(content[key], dict) for key in ("given", "sweep")):
        raise TypeError("not an object")
    for entry in content["trials"]:
        entry["key"], entry["configuration"], entry["seeds"]
    return content
