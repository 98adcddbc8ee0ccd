"""The sweep's folder on disk: what the sweep is, so that no other takes its name, and which trials are finished."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, DiskFullError, disk_full_line, fault, is_disk_full
from orchestrator.plan import identity
from orchestrator.plan.plan import Plan, Trial, short_hash
from orchestrator.storage.lease import claimed
from orchestrator.storage.mirror import Mirror

if TYPE_CHECKING:
    from orchestrator.storage import trial_files

FILE = "sweep.json"
COPY = "sweep-copy.json"
DAMAGED = "damaged-"
"""Stands before the name of a file that was set aside: it is kept, and read no more."""
STOPPED = "stopped.json"


@dataclass(frozen=True)
class Journal:
    """The folder `root` of one sweep, and the plan that is being run in it.

    `sweep.json` holds the sweep as it was given and with every default, and all stacks of seeds that were ever planned
    under this name. It is written anew and renamed, so it is whole or as it was; and then so is its copy,
    `sweep-copy.json`, which is read where the first is damaged. A digest in them tells. With a `mirror`, `root` is its
    copy, and what is written is put at its address too.
    """

    root: Path
    plan: Plan
    mirror: Mirror | None = None

    @classmethod
    def look(cls, root: Path, plan: Plan, mirror: Mirror | None = None) -> Journal:
        """The folder as it is, and the plan grown from what was run in it; nothing is changed.

        Raises:
            ConfigError: the folder holds another sweep of the same name; every difference is told.
        """
        earlier = _read(root)
        if earlier is None:
            return cls(root, plan, mirror)
        remedy = "choose another name; or another storage, and another tracking.experiment with it"
        if faults := identity.differences(str(root / FILE), earlier["sweep"], plan.resolved, remedy):
            raise ConfigError(*faults)
        stacks: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        studies = {study.key: study for study in plan.studies}
        for entry in earlier["trials"]:
            stacks[entry["configuration"]].append(tuple(entry["seeds"]))
            study = studies.get(entry.get("drawn_by"))
            if study is not None:
                plan.add(study.trial(entry["draws"]))
        return cls(root, plan.grown(stacks), mirror)

    @contextmanager
    def locked(self, tell: Callable[[str], None] = print) -> Iterator[None]:
        """Nobody else runs this sweep inside this block; the lock goes with the process, however it ends. That is on
        this machine; other machines are kept off an address by a claim, and `tell` is given a line if one that may be
        gone has to be waited for.

        Raises:
            ConfigError: another process runs it, or the folder or the address cannot be written.
        """
        with _writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / "running").open("a+")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                rule = "one command at a time runs a sweep"
                remedy = "wait for it, or stop it"
                raise ConfigError(fault(str(self.root), "", rule, file.read().strip(), remedy)) from None
            file.truncate(0)
            with suppress(OSError):  # a note for whoever is refused; a full disk is told of elsewhere
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
                file.flush()
            with nullcontext() if self.mirror is None else claimed(self.mirror.address, self.root, tell):
                yield

    def take(self, rerun: bool = False, tell: Callable[[str], None] = print) -> None:
        """Write the plan into the folder; with `rerun`, forget what the plan's trials left there.

        Of two journals that are damaged, one is enough: `tell` is given a line about the other, which is set aside.

        Raises:
            ConfigError: the folder cannot be written.
        """
        with _writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            _, damaged = _read_both(self.root)
            for path, reason in damaged:
                path.replace(path.with_name(DAMAGED + path.name))
                other = COPY if path.name == FILE else FILE
                tell(
                    f"{path}: damaged ({reason}); {other} beside it says the same, this is kept as {DAMAGED}{path.name}"
                )
            if rerun:
                with nullcontext() if self.mirror is None else self.mirror.alone():
                    self._forget()
        self._write()

    def _forget(self) -> None:
        for trial in self.plan.trials:
            shutil.rmtree(trial.folder(self.root), ignore_errors=True)
            if self.mirror is not None:
                self.mirror.forget(trial.key)
        for population in self.plan.populations:
            population.file(self.root).unlink(missing_ok=True)
            if self.mirror is not None:
                self.mirror.remove(population.file(self.root))

    def draw(self, trial: Trial) -> None:
        """Note a trial that a searcher has drawn, before it is started."""
        self.plan.add(trial)
        self._write()

    def _write(self) -> None:
        earlier = _read(self.root)
        listed = {entry["key"]: entry for entry in earlier["trials"]} if earlier else {}
        studies = {study.key: study for study in self.plan.studies}
        for trial in self.plan.trials:
            entry = listed[trial.key] = {
                "key": trial.key,
                "configuration": trial.configuration.hash,
                "label": trial.configuration.label,
                "seeds": list(trial.seeds),
            }
            if trial.drawn_by in studies:
                entry |= {"drawn_by": trial.drawn_by, "draws": studies[trial.drawn_by].draws(trial)}
        content = {"given": self.plan.given, "sweep": self.plan.resolved, "trials": list(listed.values())}
        text = json.dumps({"digest": short_hash(content, 64), **content}, indent=2)
        with _writing(self.root):
            for name in (FILE, COPY):
                self.keep(self.root / name, text)

    def stop(self, trial: Trial, batches: int, value: float) -> None:
        """Note that the scheduler found a trial not worth going on with after so many batches."""
        with _writing(self.root):
            trial.folder(self.root).mkdir(parents=True, exist_ok=True)
            self.keep(trial.folder(self.root) / STOPPED, json.dumps({"batches": batches, "objective": value}))

    def keep(self, path: Path, text: str) -> None:
        """Write a file of the sweep's folder, whole or not at all."""
        if self.mirror is None:
            return write_whole(path, text)
        with self.mirror.alone():
            write_whole(path, text)
            self.mirror.push(path)

    def stopped(self) -> dict[str, int]:
        """Key → batches, of the plan's trials that the scheduler has stopped; not of those that went on since.

        They do where the sweep is given again without a scheduler, and have later chunks then.
        """
        found = {}
        for trial in self.plan.trials:
            folder = trial.folder(self.root)
            if not (folder / STOPPED).is_file():
                continue
            try:
                at = int(json.loads((folder / STOPPED).read_text(encoding="utf-8"))["batches"])
            except (OSError, ValueError, KeyError, TypeError):
                # That it is there says enough: when, its newest chunk says.
                newest = _newest(folder)
                if newest is None or not newest.finished:
                    found[trial.key] = 0 if newest is None else newest.batches
            else:
                if _reached(folder) <= at:
                    found[trial.key] = at
        return found

    def finished(self, aside: list[str] | None = None) -> set[str]:
        """Keys of the plan's trials whose newest chunk says that the stream is over, and whose learner is there.

        With `aside`, for one who holds the lock while nothing runs, every trial's newest chunk is looked at, and those
        that are damaged are set aside; see `chunks.newest`.
        """
        done = set()
        for trial in self.plan.trials:
            folder = trial.folder(self.root)
            learner = folder / "learner.pt"
            if aside is not None or learner.exists():
                newest = _newest(folder, aside)
                if newest is not None and newest.finished and _is_whole(learner):
                    done.add(trial.key)
        return done


def _reached(folder: Path) -> int:
    if not any(folder.glob("chunk-*")):
        return 0
    from orchestrator.storage import trial_files  # as below

    return trial_files.reached(folder)


def _newest(folder: Path, aside: list[str] | None = None) -> trial_files.Chunk | None:
    if not any(folder.glob("chunk-*")):
        return None
    from orchestrator.storage import trial_files  # torch comes with it: not where there is nothing to read

    return trial_files.newest(folder, aside=aside)


def _is_whole(path: Path) -> bool:
    from learners import checkpoint

    return checkpoint.is_whole(path)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is whole or as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise DiskFullError(disk_full_line(root)) from error
        rule = f"must be a folder that can be written ({error.strerror})"
        raise ConfigError(fault(str(root), "", rule)) from error


def given_before(root: Path, name: str, asked: str = "--resume") -> dict[str, Any]:
    """The sweep in this folder as it was given, to be resumed; `asked`: what a fault calls the words that named it.

    Raises:
        ConfigError: there is none.
    """
    earlier = _read(root)
    if earlier is None:
        there = sorted(path.parent.name for path in root.parent.glob(f"*/{FILE}"))
        rule = f"must be a sweep that was begun in {root.parent}"
        raise ConfigError(fault(asked, "", rule, name, f"there are: {', '.join(there) or 'none'}"))
    given: dict[str, Any] = earlier["given"]
    return given


def _read(root: Path) -> dict[str, Any] | None:
    """The journal in a folder, or its copy if the journal is damaged; None if there is none."""
    content, damaged = _read_both(root)
    if content is None and damaged:
        told = " and ".join(f"{path.name} ({reason})" for path, reason in damaged)
        rule = f"must be a sweep's journal, which is damaged: {told}"
        remedy = (
            "move these files away and start the sweep with its FILE: trials are found again by their own folders, "
            "only those that a searcher drew are drawn anew; or choose another name"
        )
        raise ConfigError(fault(str(root / FILE), "", rule, remedy=remedy))
    return content


def _read_both(root: Path) -> tuple[dict[str, Any] | None, list[tuple[Path, str]]]:
    """The first of journal and copy that is whole, and which are damaged, and why."""
    whole: list[dict[str, Any]] = []
    damaged = []
    for path in (root / FILE, root / COPY):
        try:
            whole.append(_checked(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            damaged.append((path, " ".join(str(error).split()) or type(error).__name__))
    return (whole[0] if whole else None), damaged


def _checked(text: str) -> dict[str, Any]:
    """A journal's content; raises ValueError, KeyError or TypeError if it is none."""
    content: dict[str, Any] = json.loads(text)
    if not isinstance(content, dict) or not all(isinstance(content[key], dict) for key in ("given", "sweep")):
        raise TypeError("not an object")
    for entry in content["trials"]:
        entry["key"], entry["configuration"], entry["seeds"]
    digest = content.pop("digest", None)  # journals of earlier versions have none
    if digest is not None and digest != short_hash(content, 64):
        raise ValueError("its digest is that of another content")
    return content
