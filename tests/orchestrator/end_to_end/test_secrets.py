"""No secret of an address is in anything that commands print, write or send to MLflow."""

import base64
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import pytest

import orchestrator.report.__main__ as report
import orchestrator.sweep.__main__ as sweep_command
from orchestrator import regret
from orchestrator.config.load import load_sweep
from orchestrator.errors import ExitCode
from orchestrator.execution.outcome import Outcome
from orchestrator.plan import fate
from orchestrator.plan.expand import make_plan
from orchestrator.storage.journal import Journal
from orchestrator.storage.trial_log import TrialLog
from orchestrator.sweep.api import checked_sweep
from orchestrator.sweep.result import report_on, resume_command
from orchestrator.system.signals import StopRequest
from orchestrator.tracking import provenance, writer
from tests.orchestrator import synthetic_sweep as synthetic

WORD = "".join(("ge", "heim"))  # in pieces: a changed tree is sent to MLflow as a patch
PASSWORD = f"{WORD}@1"
YAML = """
name: guarded
stream: {{name: rainbow_digits, tasks: 2, train: 50, validation: 12, test: 12}}
learners: [{{name: online, alpha1: {{grid: [0.01, 0.1]}}}}]
seeds: 2
tracking: {{uri: "{uri}"}}
"""
SERVER = {
    "_MLFLOW_SERVER_FILE_STORE": "sqlite:///{tmp}/mlflow.db",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": "{tmp}/artifacts",
}


@pytest.fixture
def guarded_uri(tmp_path: Path) -> Iterator[str]:
    """The URI, with user and password, of an MLflow server that answers no one else."""
    with patch.dict(os.environ, {key: value.format(tmp=tmp_path) for key, value in SERVER.items()}):
        from mlflow.server import app, handlers
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, *_: object) -> None:
                pass

        expected = f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"

        def guarded(environ, start):  # type: ignore[no-untyped-def]
            if environ.get("HTTP_AUTHORIZATION") != expected:
                start("401 Unauthorized", [])
                return [b"log in"]
            return app(environ, start)

        with patch.multiple(handlers, _tracking_store=None, _artifact_repo=None):
            server = make_server("127.0.0.1", 0, guarded, threaded=True, request_handler=Quiet)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://me:{WORD}%401@127.0.0.1:{server.server_port}"
            server.shutdown()


def end_of(file: Path, folder: Path) -> tuple[int, str, str]:
    """Track the sweep of this file, one of whose trials fails, as the command does after its trials have ended."""
    sweep = load_sweep(file)
    plan = make_plan(sweep, "store")
    journal, uri = Journal(folder / "results" / "guarded", plan), sweep.document.tracking.uri
    journal.take()
    words = ["python", "-m", "orchestrator.sweep", f"tracking.uri={uri}"]
    with patch.object(sys, "orig_argv", words):
        facts = provenance.collect("store", folder, "{}")
    assert facts.tags["foml.command"].split("tracking.uri=")[1].strip("'").startswith("http://***@127.0.0.1:")
    good, bad = plan.trials
    curves = {good.key: synthetic.curves_of(good), bad.key: synthetic.curves_of(bad)}
    outcome, synthetic_sweep = Outcome(plan), synthetic.SyntheticSweep(journal.root, plan, curves)
    tracker = writer.Writer(uri, sweep.experiment, plan, journal.root, facts, synthetic.START_MS)
    tracker.start()
    synthetic_sweep.write_chunk(good)
    tracker.finished(good.key)
    outcome.finish([good.key])
    outcome.fates[bad.key] = fate.failed(f"ValueError: cannot read s3://key:{PASSWORD}@bucket/store")
    (journal.root / bad.key).mkdir()
    TrialLog(journal.root / bad.key, "attempt 1").say(f"cannot open ray://:{PASSWORD}@head:10001")
    tracker.results(bad.key, synthetic_sweep.part(bad, 0, 20))
    tracker.failed(bad.key, outcome.fates[bad.key].reason)
    assert tracker.drain() == []
    tracker.close("FAILED")
    result = report_on(sweep, journal, outcome, [], StopRequest())
    return result.exit_code, result.text, result.json


def test_no_secret_is_left_behind(
    guarded_uri: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("given") / "sweep.yaml"  # the user's own file holds the secret
    file.write_text(YAML.format(uri=guarded_uri))
    port = guarded_uri.rpartition(":")[2]
    shown = f"http://***@127.0.0.1:{port}"
    with chdir(tmp_path):
        code, text, document = end_of(file, tmp_path)
        assert code == ExitCode.SOME_FAILED
        assert f"curves in MLflow: http://127.0.0.1:{port}/#/experiments/1/runs?" in text
        assert "failed: ValueError: cannot read s3://***@bucket/store" in text
        assert '"reason": "ValueError: cannot read s3://***@bucket/store"' in document
        print(text, document)
        assert report.main(["guarded", "--tracking-uri", guarded_uri]) == 0
        assert sweep_command.main(["--resume", "guarded"]) == ExitCode.BAD_INPUT
        assert capsys.readouterr().err == (
            f"results/guarded: tracking.uri: *** stands for user, password or key, which the sweep's folder does not "
            f"hold (got {shown}); give the whole address: tracking.uri=...\n"
        )
        assert regret.main(["guarded"]) == ExitCode.BAD_INPUT
        for wrong in (
            f"tracking.uri=gopher://me:{PASSWORD}@host",
            f"tracking.uri=postgresql://me:{PASSWORD}@127.0.0.1:1/runs",
            f"tracking.uri=http://me:{WORD}/x#{PASSWORD}@127.0.0.1:1",
            f"storage=gopher://key:{PASSWORD}@bucket/results?secret_key={WORD}",
            f"stream.store=gopher://key:{PASSWORD}@bucket/store",
        ):
            assert sweep_command.main(["--json", "--local", str(file), "name=other", wrong]) == ExitCode.BAD_INPUT, (
                wrong
            )
            printed = capsys.readouterr()
            assert "***" in printed.err
            assert WORD not in printed.out + printed.err, wrong
        with pytest.raises(SystemExit):
            sweep_command.main([f"postgresql://me:{PASSWORD}@host", "two.yaml", "--json"])
    printed = capsys.readouterr()
    assert WORD not in printed.out + printed.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"mlflow.db", "sweep.json", "sweep-copy.json", "report.html", "trial.log", "configuration.json"} <= names
    secrets = (WORD.encode(), base64.b64encode(f"me:{PASSWORD}".encode()))
    assert [path for path in files if any(secret in path.read_bytes() for secret in secrets)] == []


def test_a_sweep_resumes_with_its_address(guarded_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(YAML.format(uri=guarded_uri))
    with chdir(tmp_path):
        end_of(file, tmp_path)
        sweep = checked_sweep(None, [f"tracking.uri={guarded_uri}"], "guarded")
    assert sweep.document.tracking.uri == guarded_uri
    address = guarded_uri.replace(f"me:{WORD}%401", "***")
    assert resume_command(sweep) == f"python -m orchestrator.sweep --resume guarded 'tracking.uri={address}'"
    assert make_plan(sweep, "store") == make_plan(load_sweep(file), "store")
