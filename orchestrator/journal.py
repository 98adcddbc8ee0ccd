"""The sweep's folder on disk: what the sweep is, so that no other takes its name, and which trials are finished."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, fault
from orchestrator.plan import Plan, Trial, canonical

FILE = "sweep.json"
STOPPED = "stopped.json"
_IDENTITY = ("name", "stream", "network", "batch_size", "objective")
"""What two runs under one name must share. Learners, grids, samples and seeds may grow."""


@dataclass(frozen=True)
class Journal:
    """The folder `root` of one sweep, and the plan that is being run in it.

    `sweep.json` holds the sweep as it was given and with every default, and all stacks of seeds that were ever planned
    under this name. It is written anew and renamed, so it is whole or as it was.
    """

    root: Path
    plan: Plan

    @classmethod
    def look(cls, root: Path, plan: Plan) -> Journal:
        """The folder as it is, and the plan grown from what was run in it; nothing is changed.

        Raises:
            ConfigError: the folder holds another sweep of the same name; every difference is told.
        """
        earlier = _read(root)
        if earlier is None:
            return cls(root, plan)
        faults = [
            fault(
                str(root / FILE),
                key,
                f"another sweep has this name, with {canonical(earlier['sweep'].get(key))}",
                canonical(plan.resolved[key]),
                "choose another name, or another storage",
            )
            for key in _IDENTITY
            if canonical(earlier["sweep"].get(key)) != canonical(plan.resolved[key])
        ]
        if faults:
            raise ConfigError(*faults)
        stacks: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        studies = {study.key: study for study in plan.studies}
        for entry in earlier["trials"]:
            stacks[entry["configuration"]].append(tuple(entry["seeds"]))
            study = studies.get(entry.get("drawn_by"))
            if study is not None:
                plan.add(study.trial(entry["draws"]))
        return cls(root, plan.grown(stacks))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else runs this sweep inside this block; the lock goes with the process, however it ends.

        Raises:
            ConfigError: another process runs it, or the folder cannot be written.
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
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield

    def take(self, rerun: bool = False) -> None:
        """Write the plan into the folder; with `rerun`, forget what the plan's trials left there.

        Raises:
            ConfigError: the folder cannot be written.
        """
        with _writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            if rerun:
                for trial in self.plan.trials:
                    shutil.rmtree(trial.folder(self.root), ignore_errors=True)
        self._write()

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
        with _writing(self.root):
            write_whole(self.root / FILE, json.dumps(content, indent=2))

    def stop(self, trial: Trial, batches: int, value: float) -> None:
        """Note that the scheduler found a trial not worth going on with after so many batches."""
        with _writing(self.root):
            trial.folder(self.root).mkdir(parents=True, exist_ok=True)
            write_whole(trial.folder(self.root) / STOPPED, json.dumps({"batches": batches, "objective": value}))

    def stopped(self) -> dict[str, int]:
        """Key → batches, of the plan's trials that the scheduler has stopped."""
        found = {}
        for trial in self.plan.trials:
            with suppress(OSError, ValueError, KeyError):
                found[trial.key] = int(json.loads((trial.folder(self.root) / STOPPED).read_text())["batches"])
        return found

    def finished(self) -> set[str]:
        """Keys of the plan's trials whose newest chunk says that the stream is over."""
        from orchestrator import chunks  # torch comes with it

        done = set()
        for trial in self.plan.trials:
            folder = trial.folder(self.root)
            if (folder / chunks.LEARNER_FILE).exists():
                newest = chunks.newest(folder)
                if newest is not None and newest.finished:
                    done.add(trial.key)
        return done


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is whole or as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        rule = f"must be a folder that can be written ({error.strerror})"
        raise ConfigError(fault(str(root), "", rule)) from error


def given_before(root: Path, name: str) -> dict[str, Any]:
    """The sweep in this folder as it was given, to be resumed.

    Raises:
        ConfigError: there is none.
    """
    earlier = _read(root)
    if earlier is None:
        there = sorted(path.parent.name for path in root.parent.glob(f"*/{FILE}"))
        rule = f"must be a sweep that was begun in {root.parent}"
        raise ConfigError(fault("--resume", "", rule, name, f"there are: {', '.join(there) or 'none'}"))
    given: dict[str, Any] = earlier["given"]
    return given


def _read(root: Path) -> dict[str, Any] | None:
    """The journal in a folder, None if there is none."""
    try:
        content: dict[str, Any] = json.loads((root / FILE).read_text(encoding="utf-8"))
        if not isinstance(content["given"], dict) or not isinstance(content["sweep"], dict):
            raise TypeError("not an object")
        for entry in content["trials"]:
            entry["key"], entry["configuration"], entry["seeds"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        rule = "must be a sweep's journal"
        remedy = "choose another name, or remove this file: the trials' own folders are not touched by that"
        raise ConfigError(fault(str(root / FILE), "", rule, error, remedy)) from error
    return content
