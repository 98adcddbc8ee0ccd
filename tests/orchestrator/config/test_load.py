"""All faults of a sweep are reported together, each with file, dotted key, rule, value and remedy."""

import datetime
import math
import tracemalloc
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learners import registry
from orchestrator.config.load import check_sweep, default_file, load_sweep
from orchestrator.config.schema import Sweep
from orchestrator.config.strict_yaml import overridden
from orchestrator.errors import ConfigError
from orchestrator.plan.expand import make_plan

GOOD = {
    "name": "mine",
    "stream": {"name": "rainbow_digits", "tasks": 3},
    "learners": [{"name": "foml", "K": {"grid": [1, 5]}}, {"name": "online"}],
    "seeds": 2,
}


def faults(document: object, file: str = "mine.yaml") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_sweep(document, file)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return list(caught.value.faults)


def test_a_valid_sweep_has_its_defaults() -> None:
    sweep = check_sweep(GOOD)
    assert sweep.seeds == [0, 1]
    assert sweep.network == "rainbow"
    assert sweep.document.batch_size == 10
    assert sweep.recipe.options() == {"tasks": 3, "train": 200, "validation": 60, "test": 60}
    assert sweep.learners[0].spaces["K"].values == (1, 5)
    assert sweep.learners[0].fixed["beta1"] == 0.01
    assert sweep.learners[1].fixed == {"alpha1": 0.001, "online_optimizer": "adam"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"stream": {"name": "rainbow_digit"}}, None),
        ({"stream": {"name": "rainbow_digits", "taks": 3}}, "mine.yaml: stream.taks: unknown key (got 3); did you mean tasks?"),
        ({"stream": {"name": "rainbow_digits", "tasks": 57}}, "mine.yaml: stream.tasks: must be less than or equal to 56 (got 57)"),
        ({"stream": {"name": "online_cifar100", "train": 3}}, "mine.yaml: stream.train: must be even, so that half of the pairs can be of one class (got 3)"),
        ({"stream": {"name": "rainbow_digits", "held_back": -1}}, "mine.yaml: stream.held_back: must be a whole number of at least 0 (got -1)"),
        ({"learners": [{"name": "moca", "pretrain_tasks": 2}]}, "mine.yaml: learners[0].pretrain_tasks: must be at most stream.held_back, 0 (got 2)"),
        ({"learners": [{"name": "foml", "bta1": 0.01}]}, "mine.yaml: learners[0].bta1: unknown key (got 0.01); did you mean beta1?"),
        ({"learners": [{"name": "foml", "alpha1": "fast"}]}, "mine.yaml: learners[0].alpha1: must be a number (got fast)"),
        ({"learners": [{"name": "foml", "alpha1": 0}]}, "mine.yaml: learners[0].alpha1: must be greater than 0 (got 0)"),
        ({"learners": [{"name": "foml", "meta_gradient": "second"}]}, "mine.yaml: learners[0].meta_gradient: must be 'exact' or 'first_order' (got second)"),
        ({"learners": [{"name": "online", "preset": "tund"}]}, "mine.yaml: learners[0].preset: must be one of tuned (got tund); did you mean tuned?"),
        ({"learners": [{"name": "ftml", "preset": {"grid": ["finn2019"]}}]}, "mine.yaml: learners[0].preset: must be one of finn2019, tuned (got {'grid': ['finn2019']})"),
        ({"learners": [{"name": "tfs", "preset": "tuned"}]}, "mine.yaml: learners[0].preset: tfs has no presets (got tuned); leave it out"),
        ({"learners": [{"K": 5}]}, None),
        ({"learners": [{"name": "online", "K": {"grid": [1, 5]}}]}, None),
        ({"learners": [{"name": "foml", "K": {"grid": []}}]}, "mine.yaml: learners[0].K.grid: must be a list, and not empty (got [])"),
        ({"learners": [{"name": "foml", "K": {"grid": [1, 0]}}]}, "mine.yaml: learners[0].K.grid[1]: must be greater than or equal to 1 (got 0)"),
        ({"learners": [{"name": "foml", "K": {"uniform": [1, 5]}}]}, "mine.yaml: learners[0].K.uniform: K takes whole numbers (got [1, 5]); use randint or grid"),
        ({"learners": [{"name": "foml", "beta1": {"uniform": [0.2, 0.1]}}]}, "mine.yaml: learners[0].beta1.uniform: low < high must hold (got [0.2, 0.1])"),
        ({"learners": [{"name": "foml", "beta1": {"loguniform": [0, 0.1]}}]}, "mine.yaml: learners[0].beta1.loguniform: low > 0 must hold (got [0, 0.1])"),
        ({"learners": [{"name": "foml", "beta1": {"normal": [0, 1]}}]}, None),
        ({"learners": []}, "mine.yaml: learners: must not be empty (got [])"),
        ({"name": ""}, "mine.yaml: name: must not be empty (got )"),
        ({"name": "x" * 201}, f"mine.yaml: name: must have at most 200 characters (got {'x' * 77}...)"),
        ({"seeds": "many"}, "mine.yaml: seeds: must be a whole number, or a list (got many)"),
        ({"seeds": [0, 1.5]}, "mine.yaml: seeds[1]: must be a whole number (got 1.5)"),
        ({"keep_checkpoints": [1]}, "mine.yaml: keep_checkpoints: must be text, or a whole number (got [1])"),
        ({"learners": [{"name": "foml", "alpha1": math.inf}]}, "mine.yaml: learners[0].alpha1: must be a finite number (got inf)"),
        ({"learners": [{"name": "foml", "beta1": math.nan}]}, "mine.yaml: learners[0].beta1: must be a finite number (got nan)"),
        ({"learners": [{"name": "lwf", "temperature": {"grid": [2.0, math.inf]}}]}, "mine.yaml: learners[0].temperature.grid[1]: must be a finite number (got inf)"),
        ({"learners": [{"name": "foml", "alpha1": {"loguniform": [0.0001, math.inf]}}]}, "mine.yaml: learners[0].alpha1.loguniform[1]: must be a finite number (got inf)"),
        ({"resources": {"cpus": math.inf}}, "mine.yaml: resources.cpus: must be a finite number (got inf)"),
        ({"price": {"cpu_hour": math.inf}}, "mine.yaml: price.cpu_hour: must be a finite number (got inf)"),
        ({"budget": {"hours": math.inf}}, "mine.yaml: budget.hours: must be a finite number (got inf)"),
        ({"search": {"scheduler": {"name": "pbt", "larger": math.inf}}}, "mine.yaml: search.scheduler.larger: must be a finite number (got inf)"),
        ({"stream": {"name": "rainbow_digits", "schedule": {"name": "markov", "hazard": math.nan}}}, "mine.yaml: stream.schedule.hazard: must be a finite number (got nan)"),
        ({"learners": [{"name": "icarl", "memory": 5}]}, "mine.yaml: learners[0].memory: must be at least the stream's 10 classes (got 5)"),
        ({"learners": [{"name": "icarl", "memory": {"grid": [20, 9]}}]}, "mine.yaml: learners[0].memory.grid[1]: must be at least the stream's 10 classes (got 9)"),
        ({"learners": [{"name": "icarl", "memory": {"randint": [3, 50]}}]}, "mine.yaml: learners[0].memory.randint[0]: must be at least the stream's 10 classes (got 3)"),
        ({"learners": [{"name": "moca", "pretrain_tasks": {"grid": [0, 2]}}]}, "mine.yaml: learners[0].pretrain_tasks.grid[1]: must be at most stream.held_back, 0 (got 2)"),
        ({"stream": {"name": "rainbow_digits", "held_back": 2}, "learners": [{"name": "moca", "pretrain_tasks": 2, "meta_every": {"grid": [1, 2]}}]}, "mine.yaml: learners[0].meta_every: has no effect with pretrain_tasks: 2, so that all trials would be the same (got {'grid': [1, 2]}); leave it out"),
        ({"learners": [{"name": "foml", "meta_updates": False, "K": {"grid": [1, 5]}}]}, "mine.yaml: learners[0].K: has no effect with meta_updates: false, so that all trials would be the same (got {'grid': [1, 5]}); leave it out"),
        ({"learners": [{"name": "foml", "online_optimizer": "sgd", "adam_zero": {"choice": ["mask", "exact"]}}]}, "mine.yaml: learners[0].adam_zero: has no effect with online_optimizer: sgd, so that all trials would be the same (got {'choice': ['mask', 'exact']}); leave it out"),
        ({"seeds": 1001}, "mine.yaml: seeds: must be at most 1,000 seeds; the seed 1001 alone is written [1001] (got 1001)"),
        ({"seeds": 10**9}, "mine.yaml: seeds: must be at most 1,000 seeds; the seed 1000000000 alone is written [1000000000] (got 1000000000)"),
        ({"seeds": list(range(1001))}, "mine.yaml: seeds: must have at most 1,000 seeds (got [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21...)"),
        ({"seeds": [2**63]}, "mine.yaml: seeds[0]: must be a whole number between -2^63 and 2^63 (got a number of 64 bits)"),
        ({"search": {"samples": 10**9}}, "mine.yaml: search.samples: must be less than or equal to 100000 (got 1000000000)"),
        ({"batch_size": 10**9}, "mine.yaml: batch_size: must be less than or equal to 100000 (got 1000000000)"),
        ({"batch_size": 10**5000}, "mine.yaml: batch_size: must be a whole number between -2^63 and 2^63 (got a number of 16610 bits)"),
        ({"batch_size": ".5e2"}, "mine.yaml: batch_size: must be a whole number (got '.5e2')"),
        ({"chunk": 10**9}, "mine.yaml: chunk: must be auto, or a whole number from 1 to 1000000 (got 1000000000)"),
        ({"chunk": "often"}, "mine.yaml: chunk: must be auto, or a whole number from 1 to 1000000 (got often)"),
        ({"learners": [{"name": "foml", "K": 10**9}]}, "mine.yaml: learners[0].K: must be less than or equal to 1000 (got 1000000000)"),
        ({"learners": [{"name": "foml", **{key: {"grid": list(range(1, 1001))} for key in ("K", "meta_every", "alpha1", "alpha2")}}]}, "mine.yaml: learners: must be at most 20,000 configurations, grids crossed and times search.samples (got 1,000,000,000,000); use shorter grids, or draw values with search.samples"),
        ({"learners": [{"name": "foml", "beta1": {"uniform": [0.1, 0.2]}}], "search": {"samples": 20_001}}, "mine.yaml: learners: must be at most 20,000 configurations, grids crossed and times search.samples (got 20,001); use shorter grids, or draw values with search.samples"),
        ({1: 2}, "mine.yaml: a key must be text (got 1); write it in quotes"),
        ({"learners": [{"name": "fmol"}]}, "mine.yaml: learners[0].name: must be one of continual_backprop, der, ewc, foml, ftl, ftml, icarl, l2_init, la_maml, lwf, moca, online, replay, shrink_perturb, tfs, toe (got fmol); did you mean foml?"),
        ({"network": "siamese"}, "mine.yaml: network: must be one of rainbow, mlp, resnet18 for a stream of 1 image(s) a datapoint (got siamese); or a mapping with class: module.Class"),
        ({"network": {"name": "mlp", "hiden": 3}}, "mine.yaml: network.hiden: unknown key (got 3); did you mean hidden?"),
        ({"network": {"name": "mlp", "hidden": 0}}, "mine.yaml: network.hidden: must be greater than or equal to 1 (got 0)"),
        ({"network": {"name": "rainbow", "init": "xavier"}}, "mine.yaml: network.init: must be 'default', 'he' or 'glorot' (got xavier)"),
        ({"network": {"class": "nowhere.Net"}}, "mine.yaml: network: class nowhere.Net: nowhere.Net must be a class that can be imported (ModuleNotFoundError: No module named 'nowhere'); it is called with image_shape, classes and the options"),
        ({"network": {"class": "torch.nn.Linear", "size": 3}}, "mine.yaml: network: class torch.nn.Linear: got an unexpected keyword argument 'size'; it is called with image_shape, classes and the options"),
    ],
)  # fmt: skip
def test_one_fault_is_one_line(change: dict[str, object], expected: str | None) -> None:
    lines = faults(GOOD | change)
    assert len(lines) == 1
    assert lines[0].startswith("mine.yaml: ")
    if expected is not None:
        assert lines == [expected]


@pytest.mark.parametrize("value", [datetime.date(2024, 1, 31), {1, 2}, int])
def test_an_option_of_a_network_that_no_description_holds_is_refused(value: object) -> None:
    """A date is what YAML reads in 2024-01-31; it ended in a traceback."""
    (line,) = faults(GOOD | {"network": {"class": f"{__name__}.OwnNetwork", "since": value}})
    rule = "network.since: must be a number, text, true or false, a list or a mapping"
    assert line == f"mine.yaml: {rule} (got {value!r})"


class OwnNetwork(torch.nn.Module):
    """A network with an option."""

    def __init__(self, image_shape: tuple[int, ...], classes: int, since: object = None) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("", "type object 'L' has no attribute 'options_class'"),
        ("    options_class = dict", "must be called with a dataclass type or instance"),
    ],
)
def test_a_learner_without_a_class_of_options_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, reason: str
) -> None:
    package = tmp_path / f"without_options_{len(options)}"
    package.mkdir()
    (package / "learner.py").write_text(
        "from learners.base import Learner\n\nclass L(Learner):\n    state_fields = ()\n"
        f"{options}\n    def predict(self, x): ...\n    def update(self, batch): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"{package.name}.learner"
    (line,) = faults(GOOD | {"learners": [{"name": name, "alpha": [1, 2]}]})
    rule = "must have an options_class, a dataclass of numbers, text, true or false, and lists of these"
    assert line == f"mine.yaml: learners[0].name: {rule} ({reason}) (got {name})"


def test_a_grid_over_an_unknown_key_is_refused() -> None:
    (line,) = faults(GOOD | {"learners": [{"name": "online", "K": {"grid": [1, 5]}}]})
    assert line.startswith("mine.yaml: learners[0].K: unknown key (got {'grid': [1, 5]})")


def test_grid_search_refuses_a_distribution() -> None:
    wrong = GOOD | {"search": {"algorithm": "grid"}, "learners": [{"name": "foml", "beta1": {"uniform": [0.1, 0.2]}}]}
    (line,) = faults(wrong)
    assert line.startswith("mine.yaml: learners[0].beta1: grid search needs a list of values")


def test_all_faults_are_reported_together() -> None:
    lines = faults(
        {"name": "x", "stream": {"name": "nope"}, "learners": [{"name": "fml"}, {"name": "foml", "K": 0}], "sseeds": 1}
    )
    keys = [line.split(": ")[1] for line in lines]
    assert keys == ["seeds", "sseeds", "stream.name", "learners[0].name", "learners[1].K"]


def test_a_boundary_learner_needs_a_schedule_with_boundaries() -> None:
    wrong = GOOD | {
        "stream": {"name": "rainbow_digits", "schedule": {"name": "gradual", "window": 10}},
        "learners": [{"name": "tfs"}, {"name": "online"}],
    }
    lines = [line for line in faults(wrong) if "learners" in line]
    assert lines == [
        "mine.yaml: learners[0].name: needs task boundaries, which the schedule gradual does not have (got tfs); "
        "use the schedule sequential, or leave it out"
    ]


def test_values_that_contain_themselves_are_one_line() -> None:
    """Only Python can make them."""
    endless: list[object] = []
    endless.append(endless)
    place = "[0]" * 49
    assert faults(GOOD | {"seeds": endless}) == [
        f"mine.yaml: seeds{place}: must have at most 50 lists and mappings inside each other"
    ]


PARTS = [
    r"{",
    r"}",
    r"[",
    r"]",
    r":",
    r"-",
    r"?",
    r"&a",
    r"*a",
    r"<<:*a",
    r"!!int",
    r"!!set",
    r"!!binary",
    r"!!omap",
    r"|",
    r">",
    r"#",
    r",",
    r"'",
    r'"',
    r'"\UFFFFFFFF"',
    r"{{n}}",
    r"010",
    r".5e2",
    r"1:30",
    r".inf",
    r"~",
    r"2020-13-45",
    r"%",
    r"---",
    r"grid",
    r"name:x",
    r"stream:{name:rainbow_digits}",
    r"learners:[{name:foml}]",
    r"seeds:1",
    r"search:{samples:3}",
]
PARTS = [part.replace(":", ": ") for part in PARTS] + [" ", "\n", "\n  ", "9" * 5000]
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=30).map(lambda parts: "".join(parts))


@pytest.fixture(scope="module")
def imported() -> None:
    """The first call imports every learner and stream."""
    load_sweep()


@pytest.mark.usefixtures("imported")
@settings(max_examples=300, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary() | TEXTS.map(lambda text: text.encode(errors="surrogatepass")), part=st.booleans())
def test_any_bytes_are_a_sweep_or_lines(tmp_path: Path, content: bytes, part: bool) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(b"name: x\nseeds: 1\nstream: " * part + content)
    outcome: Sweep | ConfigError
    tracemalloc.start()
    try:
        outcome = load_sweep(path)
    except ConfigError as error:
        outcome = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    if isinstance(outcome, ConfigError):
        assert outcome.exit_code == 2
        assert outcome.faults
        assert not any(unicodedata.category(char) == "Cc" for line in outcome.faults for char in line)
    assert peak < 500e6  # bytes


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, "name: x\nstream: {name: rainbow_digits}\nlearners: [{name: foml, alpha1: 1e-2}]\nseeds: 3\n"
    )
    plain = load_sweep(path)
    assert plain.learners[0].fixed["alpha1"] == 0.01  # YAML 1.1 would have made text of 1e-2
    changed = load_sweep(path, ["seeds=[4]", "learners[0].K={grid: [2, 3]}", "stream.tasks=4", "search.samples=2"])
    assert changed.seeds == [4]
    assert changed.learners[0].spaces["K"].values == (2, 3)
    assert changed.recipe.options()["tasks"] == 4
    assert changed.document.search.samples == 2


@pytest.mark.parametrize(
    ("objective", "resolved"),
    [
        ({}, {"metric": "cumulative_error", "mode": "min"}),
        ("online_error", {"metric": "online_error", "mode": "min"}),
        ({"metric": "forward_transfer"}, {"metric": "forward_transfer", "mode": "max"}),
        ({"metric": "validation_error", "last": 10}, {"metric": "validation_error", "mode": "min", "last": 10}),
        ({"metric": "points_to", "error": 0.3}, {"metric": "points_to", "mode": "min", "error": 0.3}),
        ({"function": "mine.of", "mode": "max"}, {"function": "mine.of", "mode": "max"}),
        ({"function": "mine.of"}, {"function": "mine.of", "mode": "min"}),
    ],
)
def test_objectives_are_resolved_without_what_is_not_given(objective: object, resolved: dict[str, object]) -> None:
    """The objective identifies a sweep, so that keys of a later version must not appear in those of earlier ones."""
    document = {"name": "x", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}
    sweep = check_sweep(document | {"objective": objective})
    assert make_plan(sweep, "store").resolved["objective"] == resolved


@pytest.mark.parametrize(
    ("objective", "line"),
    [
        ({"metric": "cumulative_error", "mode": "max"}, "objective: mode must be min for cumulative_error"),
        ({"metric": "forward_transfer", "mode": "min"}, "objective: mode must be max for forward_transfer"),
        ({"metric": "online_error", "function": "a.b"}, "objective: must have metric or function, not both"),
        ({"metric": "seconds", "last": 3}, "objective: last goes with validation_error and online_error"),
        ({"metric": "points_to"}, "objective: error goes with points_to, and points_to needs it, such as error: 0.3"),
    ],
)
def test_objectives_that_contradict_themselves_are_refused(objective: dict[str, object], line: str) -> None:
    document = {"name": "x", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}
    with pytest.raises(ConfigError) as caught:
        check_sweep(document | {"objective": objective})
    (fault,) = caught.value.faults
    assert fault.startswith(f"configuration: {line}")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"evaluate_past": 0}, "evaluate_past: must be end, or every n tasks: a whole number of at least 1 (got 0)"),
        (
            {"evaluate_past": "all"},
            "evaluate_past: must be end, or every n tasks: a whole number of at least 1 (got all)",
        ),
        ({"objective": "forgetting"}, "objective forgetting needs evaluate_past, such as evaluate_past: end"),
    ],
)
def test_past_tasks_are_evaluated_at_the_end_or_every_n_tasks(change: dict[str, object], line: str) -> None:
    document = {"name": "x", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}
    with pytest.raises(ConfigError) as caught:
        check_sweep(document | change)
    (fault,) = caught.value.faults
    assert fault.startswith(f"configuration: {line}")


def test_evaluating_past_tasks_makes_another_configuration_and_none_keeps_the_hash() -> None:
    document = {"name": "x", "stream": {"name": "rainbow_digits"}, "learners": [{"name": "online"}], "seeds": 1}
    trials = [
        make_plan(check_sweep(document | change), "store").trials[0].configuration
        for change in (
            {},
            {"evaluate_past": None},
            {"evaluate_past": "end"},
            {"evaluate_past": 5},
            {"evaluate_past": "end", "objective": "forgetting"},
        )
    ]
    assert trials[0].hash == trials[1].hash and trials[2].hash == trials[4].hash
    assert len({trial.hash for trial in trials}) == 3
    assert trials[3].evaluate_past == 5


def test_population_based_training_needs_an_error_as_objective() -> None:
    learners = [{"name": "online", "alpha1": {"loguniform": [1e-4, 1e-2]}}]
    document = {"name": "x", "stream": {"name": "rainbow_digits"}, "learners": learners, "seeds": 1}
    search = {"samples": 4, "scheduler": "pbt"}
    with pytest.raises(ConfigError) as caught:
        check_sweep(document | {"search": search, "objective": "seconds"})
    assert str(caught.value) == (
        "configuration: objective: must be cumulative_error, validation_error or online_error where the scheduler is pbt "
        "(got {'metric': 'seconds', 'mode': 'min'})"
    )


def test_values_with_commas_are_a_grid_on_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\nstream: {name: rainbow_digits}\nlearners: [{name: foml}]\nseeds: 3\n")
    sweep = load_sweep(path, ["foml.K=1,5,10", "foml.online_optimizer=adam,sgd", "seeds=4,5"])
    spaces = sweep.learners[0].spaces
    assert {key: (space.kind, space.values) for key, space in spaces.items()} == {
        "K": ("grid", (1, 5, 10)),
        "online_optimizer": ("grid", ("adam", "sgd")),
    }
    assert sweep.seeds == [4, 5]
    # The journal holds the source: a resumed sweep has the same grid.
    assert sweep.source["learners"] == [
        {"name": "foml", "K": {"grid": [1, 5, 10]}, "online_optimizer": {"grid": ["adam", "sgd"]}}
    ]
    with pytest.raises(ConfigError) as caught:
        load_sweep(path, ["foml.K=1,x"])
    assert caught.value.faults == (f"{path}: learners[0].K.grid[1]: must be a whole number (got x)",)


def test_a_grid_of_a_learner_without_a_name_is_a_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        check_sweep(overridden(GOOD | {"learners": [{"K": 5}]}, ["learners.0.K=1,5"]), "mine.yaml")
    names = ", ".join(registry.names())
    assert caught.value.faults == (f"mine.yaml: learners[0].name: must be given; one of {names}",)


def write_module(path: Path, options: str) -> None:
    """Write the module of a learner of the user's own with this class of options."""
    path.parent.mkdir()
    path.write_text(
        "from dataclasses import dataclass, field\n"
        "from learners.base import Learner\n"
        f"@dataclass(frozen=True)\n{options}"
        "class Mine(Learner):\n    options_class = Options\n"
        "    def predict(self, x): ...\n    def update(self, batch): ...\n"
    )


def test_an_option_that_takes_a_list_gets_one(tmp_path: Path) -> None:
    write_module(
        tmp_path / "widths_of" / "mine.py", "class Options:\n    widths: list[int] | None = None\n    depth: int = 1\n"
    )
    path = write(tmp_path, "name: x\nstream: {name: rainbow_digits}\nlearners: [{name: widths_of.mine}]\nseeds: 3\n")
    (spec,) = load_sweep(path, ["learners.0.widths=8,16", "learners.0.depth=1,2"]).learners
    assert spec.fixed["widths"] == [8, 16]
    assert (spec.spaces["depth"].kind, spec.spaces["depth"].values) == ("grid", (1, 2))


def test_an_option_without_a_default_is_searched(tmp_path: Path) -> None:
    write_module(
        tmp_path / "rate_of" / "mine.py",
        "class Options:\n    rate: float = field(metadata={'gt': 0})\n    pair: tuple[int, ...] = (1, 2)\n",
    )

    def sweep(*entries: dict[str, object], words: tuple[str, ...] = ()) -> Sweep:
        learners = [{"name": "rate_of.mine", **entry} for entry in entries]
        return check_sweep(overridden(GOOD | {"learners": learners}, words), "mine.yaml", str(tmp_path))

    def faults(*entries: dict[str, object], words: tuple[str, ...] = ()) -> tuple[str, ...]:
        with pytest.raises(ConfigError) as caught:
            sweep(*entries, words=words)
        return caught.value.faults

    (spec,) = sweep({"rate": {"uniform": [0.1, 1]}}).learners
    assert (spec.fixed, spec.spaces["rate"].values) == ({"pair": (1, 2)}, (0.1, 1.0))
    labels = [trial.configuration.label for trial in make_plan(sweep({"rate": 0.1}, {"rate": 0.2}), "store").trials]
    assert labels == ["rate_of.mine rate=0.1", "rate_of.mine rate=0.2"]
    assert faults({}) == ("mine.yaml: learners[0].rate: must be given",)
    wrong = faults({"rate": {"uniform": [1, 0.1]}})
    assert wrong == ("mine.yaml: learners[0].rate.uniform: low < high must hold (got [1, 0.1])",)
    rule = "must be a tuple, which a value in YAML never is; give the option the type list"
    assert faults({"rate": 0.1, "pair": [3, 4]}) == (f"mine.yaml: learners[0].pair: {rule} (got [3, 4])",)
    assert len(faults({"rate": 0.1}, words=("learners.0.pair=3,4",))) == 2  # a grid, whose values are no tuples


@pytest.mark.parametrize("word", ["seeds", "learners[7].K=1", "=3", "name.x=1", "seeds=[1"])
def test_a_bad_word_is_a_fault_of_the_command_line(tmp_path: Path, word: str) -> None:
    path = write(tmp_path, "name: x\nstream: {name: rainbow_digits}\nlearners: [{name: foml}]\nseeds: 3\n")
    with pytest.raises(ConfigError) as caught:
        load_sweep(path, [word])
    (line,) = caught.value.faults
    assert line.startswith(("command line: ", str(path)))


def test_the_line_about_an_unreadable_file_names_the_path_as_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep(tmp_path / "none.yaml")
    (line,) = caught.value.faults
    assert line.startswith(f"{tmp_path / 'none.yaml'}: must be a readable YAML file")


def test_every_ready_sweep_is_valid() -> None:
    folder = default_file().parent
    names = sorted(path.name for path in folder.glob("*.yaml"))
    assert "quickstart.yaml" in names
    benchmarks = sorted((folder.parent / "benchmarks/sweeps").glob("*.yaml"))
    for path in [*(folder / name for name in names), *benchmarks]:
        assert load_sweep(path).learners


def test_a_ready_sweep_is_found_by_its_name_where_no_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pbt_foml").mkdir()  # a folder is no sweep
    sweep = load_sweep("pbt_foml", ["seeds=2"])
    assert (sweep.name, sweep.file, sweep.document.seeds) == ("pbt-foml", "tune_configs/pbt_foml.yaml", 2)
    write(tmp_path, "name: mine\nstream: {name: rainbow_digits}\nlearners: [{name: online}]\nseeds: 1\n").rename(
        "quickstart"
    )
    assert (load_sweep("quickstart").name, load_sweep().name) == ("mine", "quickstart")
    with pytest.raises(ConfigError) as caught:
        load_sweep("quickstat")
    (line,) = caught.value.faults
    assert line.startswith("quickstat: must be a YAML file or a ready sweep (ablation_K, ")
    assert line.endswith("; did you mean quickstart?")


def test_the_network_is_described_by_what_is_not_its_default() -> None:
    def network(entry: object) -> str:
        return check_sweep(GOOD | {"network": entry}).network

    assert [network("mlp"), network({"name": "mlp"}), network({"name": "mlp", "hidden": 256})] == ["mlp"] * 3
    assert network({"name": "mlp", "hidden": 64, "init": "he"}) == '{"hidden": 64, "init": "he", "name": "mlp"}'
    assert network({"name": "rainbow", "init": "default"}) == network(None) == network({}) == "rainbow"
    assert network({"init": "he"}) == network({"name": "rainbow", "init": "he"})
    assert network({"class": "torch.nn.Linear"}) == '{"class": "torch.nn.Linear"}'


def test_options_of_later_versions_are_recorded_only_if_they_are_not_their_defaults() -> None:
    """So that the hash of a configuration of an earlier version stays."""

    def fixed(**options: object) -> set[str]:
        return set(check_sweep(GOOD | {"learners": [options]}).learners[0].fixed)

    assert (
        fixed(name="online", alpha1=0.01) == fixed(name="online", updates_per_batch=1) == {"alpha1", "online_optimizer"}
    )
    assert fixed(name="online", updates_per_batch=2) == {"alpha1", "online_optimizer", "updates_per_batch"}
    assert fixed(name="foml", pull="decoupled") - fixed(name="foml") == {"pull"}


def test_a_preset_gives_the_options_that_the_entry_does_not() -> None:
    entry = {"name": "foml", "preset": "tuned", "alpha1": 0.5, "beta2": {"grid": [0.1, 0.2]}}
    (spec,) = check_sweep(GOOD | {"learners": [entry]}).learners
    given = {"K": 1, "pull": "decoupled", "alpha1": 0.5, "alpha2": 0.002708, "beta1": 0.1088}
    assert given.items() <= spec.fixed.items() and spec.spaces["beta2"].values == (0.1, 0.2)


@pytest.mark.parametrize("name", registry.names())
def test_every_preset_is_valid(name: str) -> None:
    for preset, values in registry.learner_class(name).presets.items():
        (spec,) = check_sweep(GOOD | {"learners": [{"name": name, "preset": preset}]}).learners
        assert values.items() <= spec.fixed.items()
