"""The runs of a synthetic sweep, read back from MLflow and compared with its curves."""

import math
from collections import Counter

import numpy as np
import pytest
from mlflow import MlflowClient

from orchestrator.tracking.writer import Writer
from tests.orchestrator import synthetic_sweep as synthetic


class TrackedRuns:
    """The runs of one experiment, read by MLflow's client."""

    def __init__(self, uri: str, experiment: str = "experiment") -> None:
        self.client = MlflowClient(tracking_uri=uri)
        tracked = self.client.get_experiment_by_name(experiment)
        self.location = tracked.artifact_location
        self.runs = list(self.client.search_runs([tracked.experiment_id], max_results=1000))

    def of(self, kind: str) -> list:
        return [run for run in self.runs if run.data.tags["foml.kind"] == kind]

    def one(self, kind: str, configuration: str | None = None, seed: int | None = None):
        (run,) = [
            run
            for run in self.of(kind)
            if configuration in (None, run.data.tags.get("foml_internal.configuration"))
            and (seed is None or run.data.tags.get("foml.seed") == str(seed))
        ]
        return run

    def statuses(self) -> Counter:
        return Counter(run.info.status for run in self.runs)

    def points(self, run) -> dict:
        """Metric → step → (value, time); asserts that no step exists twice."""
        out = {}
        for name in run.data.metrics:
            history = self.client.get_metric_history(run.info.run_id, name)
            out[name] = {point.step: (point.value, point.timestamp) for point in history}
            assert len(out[name]) == len(history), f"{name}: a step twice"
        return out


def in_blocks(curve, block, time_of) -> dict:
    """Last batch of each block → (mean of its finite values, time of its chunk)."""
    starts = range(0, len(curve), block)
    blocks = {min(start + block, len(curve)) - 1: curve[start : start + block] for start in starts}
    return {
        end: (float(np.nanmean(values)) if block == 1 else pytest.approx(np.nanmean(values)), time_of(end))
        for end, values in blocks.items()
        if np.isfinite(values).any()
    }


def assert_seed_runs_hold(uri, sweep, trial, experiment="experiment"):
    """Assert that MLflow has each block of the trial's curves, with the time of its chunk, and nothing else."""
    seen, whole = TrackedRuns(uri, experiment), sweep.whole[trial.key]
    ends, times = whole.chunks["batches"], whole.chunks["time_ms"]

    def time_of(batch):
        return next(int(t) for end, t in zip(ends, times, strict=True) if batch < end)

    for row, seed in enumerate(trial.seeds):
        points = seen.points(seen.one("seed", trial.configuration.hash, seed))
        for name, curve in whole.by_batch.items():
            block = math.ceil(whole.batches / synthetic.POINTS)
            expected = in_blocks(
                curve[row], block * (synthetic.DIAGNOSTICS_EVERY if name == "distance" else 1), time_of
            )
            assert points["diagnostics/distance" if name == "distance" else name] == expected
        mine = whole.evaluations["seed"] == row
        errors, batches = whole.evaluations["error"][mine], whole.evaluations["batch"][mine]
        assert points["validation_error"] == {
            t: (e, time_of(j)) for t, (e, j) in enumerate(zip(errors, batches, strict=True))
        }
        cumulative = {t: (pytest.approx(np.mean(errors[: t + 1])), time_of(j)) for t, j in enumerate(batches)}
        assert points["cumulative_error"] == cumulative
        gradients = whole.chunks["gradient_evaluations"].sum() / (whole.batches * 10)
        assert points["gradient_evaluations_per_datapoint"] == {0: (gradients, times[-1])}
        assert points["seconds"] == {0: (whole.chunks["seconds"].sum(), times[-1])}
        within = whole.by_batch["online_error"][row].reshape(len(batches), -1).mean(axis=0)
        assert points["adaptation"] == {10 * k: (pytest.approx(v), times[-1]) for k, v in enumerate(within)}
        assert set(points) == {
            "online_error", "online_loss", "diagnostics/distance", "validation_error", "cumulative_error", "adaptation", "gradient_evaluations_per_datapoint",
            "seconds",
        }  # fmt: skip


def writer_of(uri, sweep, experiment="experiment") -> Writer:
    writer = Writer(uri, experiment, sweep.plan, sweep.root, {"foml.git_commit": "abc"}, 1_699_999_999_000)
    writer.start()
    return writer
