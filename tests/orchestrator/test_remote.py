"""`--cluster`: what is refused before anything is sent. A sweep on a real cluster's head is in tests/cluster."""

from pathlib import Path

import pytest

from orchestrator import sweep

ROOT = Path(__file__).resolve().parents[2]


def test_a_cluster_file_with_faults_is_told_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["--cluster", str(ROOT / "cluster.yaml")]) == 2
    told = capsys.readouterr().err
    assert "metadata.image: must be filled in (got FILL-IN)" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--detach"], "--detach and --attach go with --cluster FILE"),
        (["--attach", "x"], "--detach and --attach go with --cluster FILE"),
        (["--cluster", "c.yaml", "--local"], "--cluster goes with FILE, key=value, --rerun, --detach or --attach"),
        (["--cluster", "c.yaml", "--attach", "x", "seeds=1"], "--attach takes no other words"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sweep.main(words)
    assert ended.value.code == 2
    assert line in capsys.readouterr().err
