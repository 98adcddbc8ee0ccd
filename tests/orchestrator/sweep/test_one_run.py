"""`run_one`: the protocol's curves, refusals in one line, and results as notebooks show them."""

import inspect
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from learners import checkpoint, registry
from orchestrator import run_one
from orchestrator.errors import ConfigError
from orchestrator.protocol import metrics, online
from orchestrator.protocol.curves import Curves
from orchestrator.sweep import one_run
from orchestrator.sweep.api import checked_sweep
from orchestrator.sweep.result import SweepResult
from streams.store.task_store import TaskStore

OPTIONS = {"name": "rainbow_digits", "tasks": 3, "train": 25, "validation": 12, "test": 12}


def stream(store: TaskStore) -> dict[str, object]:
    return OPTIONS | {"store": str(store.path)}


def test_the_result_is_that_of_the_protocol(store: TaskStore) -> None:
    calls: list[tuple[str, int, int]] = []
    result = run_one(
        "online", alpha1=0.01, stream=stream(store), seeds=[2, 0], progress=lambda *call: calls.append(call)
    )
    bare = online.assemble(store, "online", {"alpha1": 0.01}, [2, 0])
    bare.advance(1_000)
    assert result.seeds == [2, 0]
    for name, curve in bare.curves.by_batch.items():
        assert np.array_equal(result.measured.by_batch[name], curve, equal_nan=True)
    expected = metrics.cumulative(metrics.held_out(bare.curves))[:, -1]
    assert result.values.tolist() == expected.tolist()
    rows = result.curves[(result.curves["metric"] == "cumulative_error") & (result.curves["step"] == 2)]
    assert dict(zip(rows["seed"], rows["value"], strict=True)) == dict(zip([2, 0], expected, strict=True))
    assert (result.configuration.label, result.configuration.options["alpha1"]) == ("online alpha1=0.01", 0.01)
    learning = [call for call in calls if call[0].startswith("online")]
    assert learning == [("online, seeds [2, 0]", done, 8) for done in range(1, 9)]


def test_the_summary_and_what_a_notebook_shows(store: TaskStore) -> None:
    result = run_one("online", stream=stream(store), seeds=2, objective="online_error", progress=False)
    summary = result.summary.set_index("metric")
    assert summary.index.tolist() == ["online_error", "cumulative_error", "validation_error"]
    assert summary.loc["online_error", "mean"] == result.measured.by_batch["online_error"].mean()
    assert summary["n"].tolist() == [2, 2, 2]
    shown = result._repr_html_()
    assert "online on rainbow_digits, 2 seeds" in shown and "<table" in shown
    assert f"<td>{summary.loc['cumulative_error', 'mean']:.4f}</td>" in shown
    assert (
        repr(result) == f"<RunResult online on rainbow_digits, 2 seeds: online_error {metrics.interval(result.values)}>"
    )


def test_past_tasks_are_in_the_summary_and_the_curves(store: TaskStore) -> None:
    result = run_one(
        "online", stream=stream(store), seeds=2, evaluate_past="end", objective="average_accuracy", progress=False
    )
    by_name = metrics.past_curves(result.measured)
    assert result.values.tolist() == by_name["average_accuracy"][:, 2].tolist()
    summary = result.summary.set_index("metric")
    assert summary.loc["forgetting", "mean"] == by_name["forgetting"][:, 2].mean()
    assert summary.loc["backward_transfer", "mean"] == -summary.loc["forgetting", "mean"]
    rows = result.curves[result.curves["metric"] == "forgetting"]
    assert (rows["step"].tolist(), rows["value"].tolist()) == ([2, 2], by_name["forgetting"][:, 2].tolist())
    assert set(result.curves[result.curves["metric"] == "objective"]["value"]) == set(result.values)


def test_the_last_value_of_each_seed_is_in_the_summary_and_none_of_a_diverged_one(store: TaskStore) -> None:
    result = run_one("online", stream=stream(store), seeds=3, progress=False)
    nan = np.nan
    row, task = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 0, 1, 0, 1])  # seed 1 has two tasks, as on `markov`
    error = np.array([0.5, 0.5, 0.5, 0.25, 0.25, 0.0, 0.0])
    past = {"seed": [0, 0, 1, 2], "after": [2, 2, 1, 1], "task": [0, 1, 0, 0], "error": [1.0, 0.5, 0.5, 0.0]}
    measured = Curves(
        result.seeds,
        0,
        {"online_error": np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, nan]])},
        {"seed": row, "task": task, "batch": task, "error": error},
        diverged=[-1, -1, 2],
        past={name: np.array(column) for name, column in past.items()},
    )
    summary = replace(result, measured=measured).summary.set_index("metric")
    assert summary.n.drop("cumulative_error").eq(2).all(), "the objective is that of `result.values`"
    assert summary.loc["average_accuracy", "mean"] == pytest.approx((1 / 3 + 0.625) / 2)
    assert summary.loc["backward_transfer", "mean"] == (-0.25 - 0.25) / 2
    assert summary.loc["forgetting", "mean"] == 0.25


def test_an_objective_without_a_value_is_nan(store: TaskStore) -> None:
    one_task = {"name": "rainbow_digits", "tasks": 1, "train": 20, "validation": 6, "test": 6}
    result = run_one("online", stream=one_task, seeds=1, objective="forward_transfer", progress=False)
    assert np.isnan(result.values).tolist() == [True] and "(n=0)" in repr(result)


def test_a_diverged_seed_is_named_and_not_averaged_away(store: TaskStore) -> None:
    result = run_one("online", alpha1=1e30, stream=stream(store), seeds=1, progress=False)
    assert np.isnan(result.values).all()
    assert "diverged: seeds [0]" in repr(result) and "diverged: seeds [0]" in result._repr_html_()
    assert result.summary["n"].tolist() == [0, 0, 0]


def test_the_saved_learner_predicts_as_the_result_does(store: TaskStore, tmp_path: Path) -> None:
    result = run_one("online", stream=stream(store), seeds=1, progress=False)
    result.save(tmp_path / "learner.pt")
    x = torch.rand(1, 2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(checkpoint.load(tmp_path / "learner.pt").predict(x), result.learner.predict(x))


def test_threads_are_those_of_the_argument_and_then_those_before(store: TaskStore) -> None:
    seen: list[int] = []
    torch.set_num_threads(2)
    run_one("online", stream=stream(store), seeds=1, progress=lambda *call: seen.append(torch.get_num_threads()))
    assert set(seen) == {1} and torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            {"K": {"grid": [1, 5]}},
            "run_one: K: must be one value (got {'grid': [1, 5]}); run_sweep searches over values",
        ),
        ({"bta1": 5}, "run_one: learners[0].bta1: unknown key (got 5); did you mean beta1?"),
        ({"seeds": 0}, "run_one: seeds: must be at least 1, or a list of seeds (got 0)"),
        ({"threads": 0}, "run_one: threads: must be a whole number of at least 1 (got 0)"),
        ({"threads": "2"}, "run_one: threads: must be a whole number of at least 1 (got '2')"),
        (
            {"threads": None, "device": 5},
            "run_one: threads: must be a whole number of at least 1 (got None)\n"
            "run_one: device: must be cpu, cuda or cuda:N (got 5)",
        ),
        ({"seeds": 2.0}, "run_one: seeds: must be a whole number, or a list (got 2.0)"),
        ({"seeds": None}, "run_one: seeds: must be a whole number, or a list (got None)"),
        ({"seeds": "12"}, "run_one: seeds: must be a whole number, or a list (got '12')"),
        ({"K": np.arange(2)}, "run_one: learners[0].K: must be a whole number (got [0, 1])"),
        ({"network": 5}, "run_one: network: must be text, or a mapping (got 5)"),
    ],
)
def test_a_wrong_argument_is_one_line(store: TaskStore, arguments: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_one(**{"stream": stream(store), "seeds": 1, "progress": False} | arguments)  # type: ignore[arg-type]
    assert str(caught.value) == line


def test_values_of_numpy_and_pandas_are_those_of_python(store: TaskStore) -> None:
    options = {key: np.int64(value) if isinstance(value, int) else value for key, value in stream(store).items()}
    given = run_one(
        "foml",
        stream=options | {"store": store.path},
        seeds=np.array([2, 0]),  # type: ignore[arg-type]
        batch_size=np.int64(5),  # type: ignore[arg-type]
        threads=np.int64(1),  # type: ignore[arg-type]
        network={"name": "mlp", "hidden": np.int64(8)},
        progress=False,
        K=pd.Series([2])[0],
        alpha1=np.float32(0.25),
        meta_updates=np.True_,
    )
    network = {"name": "mlp", "hidden": 8}
    expected = run_one(
        "foml", stream=stream(store), seeds=[2, 0], batch_size=5, network=network, progress=False,
        K=2, alpha1=0.25, meta_updates=True,
    )  # fmt: skip
    assert (given.configuration.hash, given.seeds) == (expected.configuration.hash, [2, 0])
    assert given.configuration.label == expected.configuration.label
    cost = ["seconds", "peak_memory_mb"]  # measured, and different in each run
    curves = [result.curves[~result.curves["metric"].isin(cost)] for result in (given, expected)]
    pd.testing.assert_frame_equal(*curves)
    assert run_one("online", stream=stream(store), seeds=pd.Series([1]), progress=False).seeds == [1]


def test_a_learner_that_cannot_be_saved_is_one_line_with_the_file(store: TaskStore, tmp_path: Path) -> None:
    result = run_one("online", stream=stream(store), seeds=1, progress=False)
    with pytest.raises(ConfigError) as caught:
        result.save(tmp_path / "none" / "learner.pt")
    rule = "must be a file that can be written (No such file or directory); choose a file in a folder that exists"
    assert str(caught.value) == f"{tmp_path}/none/learner.pt: {rule}"


def test_arguments_of_run_sweep_are_one_line_and_take_numpys_values() -> None:
    rule = r"run_sweep: overrides: must be a list of key=value texts, such as \['seeds=2'\] \(got seeds=2\)"
    with pytest.raises(ConfigError, match=f"^{rule}; write \\['seeds=2'\\]$"):
        checked_sweep(None, "seeds=2", None)
    with pytest.raises(ConfigError, match=r"^run_sweep: overrides: must be a list .* \(got \[2\]\)$"):
        checked_sweep(None, [2], None)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"^run_sweep: sweep: must be nested mappings, .* \(got 5\)$"):
        checked_sweep(5, [], None)  # type: ignore[arg-type]
    learners = [{"name": "foml", "K": {"grid": np.array([1, 2])}}]
    given = {"name": "x", "stream": {"name": "rainbow_digits"}, "learners": learners, "seeds": np.arange(2)}
    sweep = checked_sweep(given, (), None)
    assert (sweep.seeds, sweep.source["learners"][0]["K"]) == ([0, 1], {"grid": [1, 2]})


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_does_not_exist_is_one_line(store: TaskStore) -> None:
    with pytest.raises(
        ConfigError, match=r"run_one: device: must be cpu, cuda or cuda:N \(torch finds no GPU\) \(got cuda\)"
    ):
        run_one(stream=stream(store), device="cuda", progress=False)


def test_no_option_of_a_learner_has_the_name_of_an_argument() -> None:
    arguments = set(inspect.signature(run_one).parameters) - {"options"}
    for name in registry.names():
        assert not arguments & {item.name for item in fields(registry.learner_class(name).options_class)}


def test_neither_ray_nor_mlflow_nor_torchs_compiler_is_loaded(store: TaskStore) -> None:
    """torch's compiler and SymPy would take more than a second and 100 MB, in each learner actor too."""
    script = (
        "import sys; from orchestrator import run_one\n"
        f"run_one('foml', K=2, stream={stream(store)!r}, seeds=1, progress=False)\n"
        "print({'ray', 'mlflow', 'optuna', 'matplotlib', 'torch._dynamo', 'sympy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("set()\n", 0), done.stderr


def test_the_bar_shows_each_part_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    bar = one_run._ProgressBar()
    for what, done, total in (("writing", 1, 2), ("writing", 2, 2), ("learning", 3, 4), ("learning", 4, 4)):
        bar(what, done, total)
    shown = capsys.readouterr().err
    assert "writing: 100%" in shown and "2/2" in shown and "learning: 100%" in shown and "4/4" in shown
    assert bar._bar is None


def test_a_sweeps_result_in_a_notebook() -> None:
    import pandas as pd

    summary = pd.DataFrame(
        {"label": ["foml K=<5>", "online"], "objective_mean": [0.25, 0.5], "objective_low": [0.2, None], "n": [3, 1]}
    )
    folder = Path("results/mine")
    result = SweepResult("mine", summary, "foml K=<5>", folder, folder / "report", "", ("a & b",), 1, "{}")
    shown = result._repr_html_()
    assert "<b>mine: best: foml K=&lt;5&gt;; exit code 1; report: results/mine/report</b>" in shown
    assert "<td>foml K=&lt;5&gt;</td>" in shown and "<td>0.25</td>" in shown and "<td>–</td>" in shown
    assert "<li>a &amp; b</li>" in shown
    empty = SweepResult("mine", pd.DataFrame(), None, folder, folder / "report", "", (), 3, "{}")
    assert empty._repr_html_() == "<div><b>mine: none is usable; exit code 3; report: results/mine/report</b></div>"
