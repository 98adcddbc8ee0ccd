"""The lineages of populations in the report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.schedulers import PbtOptions
from orchestrator.config.search_space import Space
from orchestrator.plan.plan import Plan, Population, Trial
from orchestrator.report.lineage import Ancestor, Lineage, MemberHistory, explanation, read
from orchestrator.report.write import write_report
from orchestrator.search.population.decisions import Copy
from orchestrator.tracking import writer as tracking
from orchestrator.tracking.reader import ConfigurationRuns, find_sweep
from streams.store.canonical_json import digest
from tests.orchestrator.synthetic_sweep import START_MS, SyntheticSweep, configuration, curves_of, new_database

VALUES = {"a": {"beta1": 0.1}, "b": {"beta1": 0.2}, "c": {"beta1": 0.3}}


def lineage() -> Lineage:
    """After batch 4, c copies a; after batch 8, a copies c, and b, which diverged, copies c."""
    copies = [
        [Copy("c", "a", {"beta1": 0.3}, {"beta1": 0.08})],
        [Copy("a", "c", {"beta1": 0.1}, {"beta1": 0.1}), Copy("b", "c", {"beta1": 0.2}, {"beta1": 0.064})],
    ]
    fitness = [{"a": 0.5, "b": 0.6, "c": 0.7}, {"a": 0.4, "b": None, "c": 0.3}]
    return Lineage(
        {
            "label": "foml K=5",
            "batch_size": 10,
            "members": [
                {"key": key, "configuration": f"hash {key}", "label": f"member {key}", "values": values}
                for key, values in VALUES.items()
            ],
            "rounds": [
                {"at": at, "fitness": errors, "copies": [copy.to_json() for copy in of_round], "failed": {}}
                for at, errors, of_round in zip((4, 8), fitness, copies, strict=True)
            ],
        }
    )


def test_the_table_has_a_row_for_every_copy() -> None:
    assert lineage().table() == [
        ("after datapoints", "member", "its error", "copied", "the error of that", "beta1"),
        ("40", "member c", "0.7000", "member a", "0.5000", "0.3 → 0.08"),
        ("80", "member a", "0.4000", "member c", "0.3000", "0.1 → 0.1"),
        ("80", "member b", "diverged", "member c", "0.3000", "0.2 → 0.064"),
    ]


def test_the_ancestors_of_a_state() -> None:
    """The final state of b was learned first by a, then by c, then by b itself."""
    first, second = Ancestor(0, "member a", {"beta1": 0.1}), Ancestor(40, "member c", {"beta1": 0.08})
    assert lineage().ancestors("hash b") == [first, second, Ancestor(80, "member b", {"beta1": 0.064})]
    assert lineage().ancestors("hash a") == [first, second, Ancestor(80, "member a", {"beta1": 0.1})]
    assert lineage().ancestors("hash c") == [first, second]  # with the same values to the end: one stage
    assert lineage().ancestors("hash of another") is None


def test_the_history_of_each_member() -> None:
    first, second, third = lineage().histories({"hash a": 12, "hash b": 8, "hash c": 6})
    assert first == MemberHistory("member a", "hash a", (0, 8), ({"beta1": 0.1}, {"beta1": 0.1}), ("", "member c"), 12)
    assert second == MemberHistory(
        "member b", "hash b", (0, 8), ({"beta1": 0.2}, {"beta1": 0.064}), ("", "member c"), 8
    )
    assert third == MemberHistory("member c", "hash c", (0, 4), ({"beta1": 0.3}, {"beta1": 0.08}), ("", "member a"), 6)
    assert lineage().histories({})[2].stop == 8  # as recorded in the lineage


def member(key: str, label: str) -> ConfigurationRuns:
    return ConfigurationRuns("run", key, label, "foml", False, True, (0,), {}, {}, ())


def test_the_lineage_of_the_best_configuration_is_explained() -> None:
    assert explanation([lineage()], member("hash b", "member b")).splitlines() == [
        "member b is not a constant configuration: its values changed during training. Its learner is the result of:",
        "  from datapoint 0: member a, beta1=0.1",
        "  from datapoint 40: member c, beta1=0.08",
        "  from datapoint 80: member b, beta1=0.064",
        "  (its curve is its own throughout: before a copy, that of the state which it gave up)",
    ]
    assert explanation([lineage()], member("hash of another", "online")) == ""


def test_a_member_without_copies_is_a_constant_configuration() -> None:
    content = lineage().content
    alone = Lineage({**content, "rounds": [{**round_, "copies": round_["copies"][:1]} for round_ in content["rounds"]]})
    assert alone.ancestors("hash b") == [Ancestor(0, "member b", {"beta1": 0.2})]
    text = "member b is a population member that copied no other: its values were beta1=0.2 throughout"
    assert explanation([alone], member("hash b", "member b")) == text


def test_the_report_shows_the_schedule(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    uri = new_database(tmp_path)
    configurations = [configuration("foml", beta1=values["beta1"]) for values in VALUES.values()]
    members = tuple(
        Trial(
            replace(each, label=f"foml member {number}", population="abc", mutated=("beta1",)),
            (0, 1),
        )
        for number, each in enumerate(configurations, 1)
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
    text = json.dumps(lineage().content)
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
    tracked_sweep = find_sweep("pop", uri)
    assert [each.content for each in read(tracked_sweep)] == [content]
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
    assert report.explanation.startswith(f"{report.best} is not a constant configuration")
    assert report.table.count("member of a population") == 3
    assert {runs.parameters["beta1_at_first"] for runs in tracked_sweep.configurations} == {0.1, 0.2, 0.3}

    # The digest in the file reveals a changed number.
    (file,) = (tmp_path / "store").rglob("population-abc.json")
    for damaged in (text.replace("0.08", "0.09"), text[:99]):
        caplog.clear()
        file.write_text(damaged)
        assert read(tracked_sweep) == []
        (line,) = (record.getMessage() for record in caplog.records)
        assert line.startswith(f"population-abc.json of the sweep (run {tracked_sweep.run_id}): damaged (")
        assert line.endswith(
            "; the lineage is left out of the report; python -m orchestrator.sweep --resume pop writes it again"
        )
