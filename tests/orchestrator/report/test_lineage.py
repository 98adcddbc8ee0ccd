"""Who copied whom, as the report tells it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.search_space import Space
from orchestrator.plan.plan import Plan, Population, Trial
from orchestrator.report.lineage import Descent, Part, Way, explained, read
from orchestrator.report.write import write_report
from orchestrator.search.population.decisions import Copy
from orchestrator.tracking import writer as tracking
from orchestrator.tracking.reader import find_sweep
from streams.store.canonical_json import digest
from tests.orchestrator.synthetic_sweep import START_MS, SyntheticSweep, configuration, curves_of, new_database

VALUES = {"a": {"beta1": 0.1}, "b": {"beta1": 0.2}, "c": {"beta1": 0.3}}


def descent() -> Descent:
    """After batch 4, c copies a; after batch 8, a copies c, and b, which diverged, copies c."""
    copies = [
        [Copy("c", "a", {"beta1": 0.3}, {"beta1": 0.08})],
        [Copy("a", "c", {"beta1": 0.1}, {"beta1": 0.1}), Copy("b", "c", {"beta1": 0.2}, {"beta1": 0.064})],
    ]
    fitness = [{"a": 0.5, "b": 0.6, "c": 0.7}, {"a": 0.4, "b": None, "c": 0.3}]
    return Descent(
        {
            "label": "foml K=5",
            "batch_size": 10,
            "members": [
                {"key": key, "configuration": f"hash {key}", "label": f"member {key}", "values": values}
                for key, values in VALUES.items()
            ],
            "rounds": [
                {"at": at, "fitness": errors, "copies": [vars(copy) for copy in made], "failed": {}}
                for at, errors, made in zip((4, 8), fitness, copies, strict=True)
            ],
        }
    )


def test_the_table_has_a_row_for_every_copy() -> None:
    assert descent().table() == [
        ("after datapoints", "member", "its error", "copied", "the error of that", "beta1"),
        ("40", "member c", "0.7000", "member a", "0.5000", "0.3 → 0.08"),
        ("80", "member a", "0.4000", "member c", "0.3000", "0.1 → 0.1"),
        ("80", "member b", "diverged", "member c", "0.3000", "0.2 → 0.064"),
    ]


def test_where_a_state_came_from() -> None:
    """b ends with what a learned first, c after that, and itself at last."""
    first, second = Part(0, "member a", {"beta1": 0.1}), Part(40, "member c", {"beta1": 0.08})
    assert descent().of("hash b") == [first, second, Part(80, "member b", {"beta1": 0.064})]
    assert descent().of("hash a") == [first, second, Part(80, "member a", {"beta1": 0.1})]
    assert descent().of("hash c") == [first, second]  # with the same values on to the end: one part
    assert descent().of("hash of another") is None


def test_the_way_of_each_member() -> None:
    first, second, third = descent().ways({"hash a": 12, "hash b": 8, "hash c": 6})
    assert first == Way("member a", "hash a", (0, 8), ({"beta1": 0.1}, {"beta1": 0.1}), ("", "member c"), 12)
    assert second == Way("member b", "hash b", (0, 8), ({"beta1": 0.2}, {"beta1": 0.064}), ("", "member c"), 8)
    assert third == Way("member c", "hash c", (0, 4), ({"beta1": 0.3}, {"beta1": 0.08}), ("", "member a"), 6)
    assert descent().ways({})[2].stop == 8  # as far as the schedule knows


def test_the_best_one_is_explained() -> None:
    assert explained([descent()], "hash b", "member b").splitlines() == [
        "member b is no constant configuration: its values changed on the way. Its learner came to be like this:",
        "  from datapoint 0: member a, beta1=0.1",
        "  from datapoint 40: member c, beta1=0.08",
        "  from datapoint 80: member b, beta1=0.064",
        "  (its curve is its own throughout: before a copy, that of the state which it gave up)",
    ]
    assert explained([descent()], "hash of another", "online") == ""


def test_a_member_that_copied_nobody_is_a_constant_configuration() -> None:
    content = descent().content
    alone = Descent({**content, "rounds": [{**round_, "copies": round_["copies"][:1]} for round_ in content["rounds"]]})
    assert alone.of("hash b") == [Part(0, "member b", {"beta1": 0.2})]
    told = "member b is a member of a population that copied nobody: its values were beta1=0.2 all along"
    assert explained([alone], "hash b", "member b") == told


def test_the_report_shows_the_schedule(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    uri = new_database(tmp_path_factory, tmp_path)
    made = [configuration("foml", beta1=values["beta1"]) for values in VALUES.values()]
    members = tuple(
        Trial(
            replace(each, label=f"foml member {number}", population="abc", mutated=("beta1",)),
            (0, 1),
        )
        for number, each in enumerate(made, 1)
    )
    space = {"beta1": Space("uniform", (0.0, 1.0))}
    plan = Plan(
        "pop",
        members,
        {"name": "pop", "objective": {"metric": "cumulative_error", "mode": "min"}, "seeds": [0, 1]},
        populations=(Population("abc", "foml", PbtOptions(), space, 0, members),),
    )
    sweep = SyntheticSweep(tmp_path / "root", plan, {member.key: curves_of(member) for member in members})
    sweep.root.mkdir()
    keys = dict(zip("abc", members, strict=True))
    text = json.dumps(descent().content)
    for name, member in keys.items():
        text = text.replace(f'"hash {name}"', f'"{member.configuration.hash}"').replace(f'"{name}"', f'"{member.key}"')
        text = text.replace(f'"member {name}"', f'"{member.configuration.label}"')
    content = json.loads(text)
    text = json.dumps({"digest": digest(content), **content})
    plan.populations[0].file(sweep.root).write_text(text)
    writer = tracking.Writer(uri, "experiment", plan, sweep.root, {}, START_MS)
    writer.start()
    for member in members:
        sweep.write_chunk(member)
        writer.finished(member.key)
    assert writer.drain() == []
    writer.close("FINISHED")
    found = find_sweep("pop", uri)
    assert [each.content for each in read(found)] == [content]
    out = tmp_path / "report"
    report = write_report("pop", uri, out)
    assert (out / "copies.csv").read_text(encoding="utf-8").splitlines()[:2] == [
        "population,after datapoints,member,its error,copied,the error of that,beta1",
        "foml K=5,40,foml member 3,0.7000,foml member 1,0.5000,0.3 → 0.08",
    ]
    assert {path.name for path in report.paths} >= {"schedule.png", "schedule.svg"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert '<div class="panels" id="schedule">' in page and "foml member 3 copied foml member 1" in page
    assert "<h2>Who copied whom</h2>" in page and "<td>0.3 → 0.08</td>" in page
    assert report.explained.startswith(f"{report.best} is no constant configuration")
    assert report.table.count("member of a population") == 3
    assert {of.parameters["beta1_at_first"] for of in found.configurations} == {0.1, 0.2, 0.3}

    # A changed number is no other schedule, but damage: there is a digest in the file.
    (kept,) = (tmp_path / "store").rglob("population-abc.json")
    for spoilt in (text.replace("0.08", "0.09"), text[:99]):
        caplog.clear()
        kept.write_text(spoilt)
        assert read(found) == []
        (line,) = (record.getMessage() for record in caplog.records)
        assert line.startswith(f"population-abc.json of the sweep (run {found.run_id}): damaged (")
        assert line.endswith("; who copied whom is left out; python -m orchestrator.sweep --resume pop writes it again")
