"""Check the results of the quickstart in a folder: all runs finished, all curves complete, plausible numbers."""

import math
import sys
from pathlib import Path

import torch
from mlflow.tracking import MlflowClient

from learners import checkpoint
from orchestrator.tracking.reader import load_curves

folder = Path(sys.argv[1])
uri = f"sqlite:///{folder / 'mlflow.db'}"
client = MlflowClient(uri)
(experiment,) = client.search_experiments(filter_string="name = 'quickstart'")
runs = client.search_runs([experiment.experiment_id], max_results=1000)
kinds = [run.data.tags["foml.kind"] for run in runs]
assert (kinds.count("sweep"), kinds.count("configuration"), kinds.count("seed")) == (1, 5, 15), kinds
assert {run.info.status for run in runs} == {"FINISHED"}

frame = load_curves("quickstart", uri)
seeds = frame[frame["seed"].notna()]
for metric, steps in (("online_error", 1120), ("validation_error", 56), ("cumulative_error", 56)):
    counts = seeds[seeds["metric"] == metric].groupby(["configuration", "seed"])["step"].agg(["count", "nunique"])
    assert len(counts) == 15, counts
    assert (counts == steps).all(axis=None), counts
last = seeds[(seeds["metric"] == "cumulative_error") & (seeds["step"] == 55)].groupby("label")["value"].mean()
print(last.to_string())
assert all(math.isfinite(error) and 0 < error < 1 for error in last)
# A learner that keeps its weights beats one that restarts with each task, and guessing (0.9).
assert last["foml K=5"] < last["tfs"] - 0.05
assert last["foml K=5"] < 0.8

for run in runs:
    if run.data.tags["foml.kind"] == "configuration":
        learner = checkpoint.load(client.download_artifacts(run.info.run_id, "checkpoint/learner.pt"))
        assert learner.predict(torch.rand(3, 2, 3, 28, 28)).shape == (3, 2, 10)
report = folder / "results/quickstart/report"
assert (report / "learning_curves.png").read_bytes()[:4] == b"\x89PNG"
assert len((report / "curves.csv").read_text().splitlines()) > 10_000
print("the result of the quickstart is complete")
