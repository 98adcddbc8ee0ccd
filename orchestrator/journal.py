"""The sweep's folder on disk: what the sweep is, so that no other takes its name, and which trials are finished."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, fault
from orchestrator.plan import Plan, canonical

FILE = "sweep.json"
_IDENTITY = ("name", "stream", "network", "batch_size", "objective")
"""What two runs under one name must share. Learners, grids, samples and seeds may grow."""


@dataclass(frozen=True)
class Journal:
    """The folder `root` of one sweep, and the plan that is being run in it."""

    root: Path
    plan: Plan

    @classmethod
    def open(cls, root: Path, plan: Plan, rerun: bool = False) -> Journal:
        """Take the folder for this plan; with `rerun`, forget the plan's trials that are in it.

        Raises:
            ConfigError: the folder holds another sweep of the same name; every difference is told.
        """
        cls.refuse_another(root, plan)
        try:
            root.mkdir(parents=True, exist_ok=True)
            if rerun:
                for trial in plan.trials:
                    shutil.rmtree(trial.folder(root), ignore_errors=True)
            temporary = root / f".{FILE}.{os.getpid()}"
            listed = [
                {"key": trial.key, "label": trial.configuration.label, "seeds": list(trial.seeds)}
                for trial in plan.trials
            ]
            temporary.write_text(json.dumps({"sweep": plan.resolved, "trials": listed}, indent=2), encoding="utf-8")
            temporary.replace(root / FILE)
        except OSError as error:
            raise ConfigError(
                fault(str(root), "", f"must be a folder that can be written ({error.strerror})")
            ) from error
        return cls(root, plan)

    @classmethod
    def look(cls, root: Path, plan: Plan) -> set[str]:
        """Keys of the plan's trials that are finished, without taking the folder. Raises as `open` does."""
        cls.refuse_another(root, plan)
        return cls(root, plan).finished()

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

    @staticmethod
    def refuse_another(root: Path, plan: Plan) -> None:
        """Raise ConfigError, as `open` does, if the folder holds another sweep; change nothing."""
        try:
            earlier: dict[str, Any] = json.loads((root / FILE).read_text(encoding="utf-8"))["sweep"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                fault(str(root / FILE), "", "must be a sweep's journal", error, "choose another name")
            ) from error
        faults = [
            fault(
                str(root / FILE),
                key,
                f"another sweep has this name, with {canonical(earlier.get(key))}",
                canonical(plan.resolved[key]),
                "choose another name, or another storage",
            )
            for key in _IDENTITY
            if canonical(earlier.get(key)) != canonical(plan.resolved[key])
        ]
        if faults:
            raise ConfigError(*faults)
