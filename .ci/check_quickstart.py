"""Check the results of the quickstart in a folder: all runs finished, all curves complete, plausible numbers."""

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
assert (kinds.count("sweep"), kinds.count("configuration"), kinds.count("seed")) == (1, 4, 20), kinds
assert {run.info.status for run in runs} == {"FINISHED"}

frame = load_curves("quickstart", uri)
seeds = frame[frame["seed"].notna()]
for metric, steps in (("online_error", 600), ("validation_error", 10), ("cumulative_error", 10)):
    counts = seeds[seeds["metric"] == metric].groupby(["configuration", "seed"])["step"].agg(["count", "nunique"])
    assert len(counts) == 20, counts
    assert (counts == steps).all(axis=None), counts
by_task = seeds[seeds["metric"] == "validation_error"].groupby(["learner", "step"])["value"].mean().unstack("step")
print(by_task.to_string())
assert sorted(by_task.index) == ["foml", "online", "replay", "tfs"]
assert ((by_task > 0) & (by_task < 1)).all(axis=None)
# Every learner that keeps its weights learns from task to task; one that restarts with each task does not.
late = by_task[[7, 8, 9]].mean(axis=1)
assert (late.drop("tfs") < by_task[0].drop("tfs") - 0.25).all(), by_task
assert late["tfs"] > by_task[0]["tfs"] - 0.25 and late["tfs"] > late.drop("tfs").max() + 0.2, by_task

for run in runs:
    if run.data.tags["foml.kind"] == "configuration":
        learner = checkpoint.load(client.download_artifacts(run.info.run_id, "checkpoint/learner.pt"))
        assert learner.predict(torch.rand(5, 2, 3, 20, 20)).shape == (5, 2, 10)
report = folder / "results/quickstart/report"
assert (report / "learning_curves.png").read_bytes()[:4] == b"\x89PNG"
assert len((report / "curves.csv").read_text().splitlines()) > 10_000
print("the result of the quickstart is complete")
