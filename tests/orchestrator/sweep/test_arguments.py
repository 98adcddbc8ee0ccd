"""The sweep command's words: which are refused, and that a refusal is one document where one was asked for."""

import json

import pytest

from orchestrator.sweep import __main__
from orchestrator.sweep.arguments import read


def test_words_may_stand_before_and_after_options() -> None:
    found = read(["seeds=3", "--plan", "mine.yaml", "--json", "learners[0].K=5"])
    assert (found.file, found.overrides, found.plan, found.json) == (
        "mine.yaml",
        ["seeds=3", "learners[0].K=5"],
        True,
        True,
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a.yaml", "b.yaml"], "one sweep at a time (got a.yaml, b.yaml)"),
        (["--resume", "a", "--plan"], "--resume takes the sweep from its folder: no FILE, --plan or --rerun beside it"),
        (["--resume"], "argument --resume: expected one argument"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--detach"], "--detach and --attach need --cluster FILE"),
        (["--cluster", "c", "--attach", "x", "seeds=1"], "--attach takes no other arguments"),
    ],
)
@pytest.mark.parametrize("option", ["--json", "--js", None])
def test_a_refusal_of_words_is_one_document_where_one_is_asked_for(
    words: list[str], line: str, option: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        __main__.main([option, *words] if option else words)
    said = capsys.readouterr()
    assert ended.value.code == 2
    prog = "python -m orchestrator.sweep"
    assert said.err == f"{prog}: error: {line}; see {prog} --help\n"
    if option is None:
        assert said.out == ""
    else:
        told = json.loads(said.out)
        assert (told["exit_code"], told["problems"], told["sweep"], told["resume"]) == (2, [line], None, None)
