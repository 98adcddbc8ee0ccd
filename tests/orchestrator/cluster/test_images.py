"""`doctor --fill`: ids of AWS's images are written into a cluster file, which otherwise stays as it is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster import images
from orchestrator.cluster.images import PARAMETER, fill_images
from orchestrator.doctor import __main__ as doctor
from orchestrator.errors import ConfigError

botocore = pytest.importorskip("botocore.session", reason="AWS's client: pip install boto3")
ROOT = Path(__file__).resolve().parents[3]
IMAGE = "ami-0123456789abcdef0"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """AWS's clients with prepared answers; requests are checked against the models of AWS's services."""
    from botocore.stub import Stubber

    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "tests")
    stubs: dict[str, Any] = {}

    def stub(service: str) -> Any:
        if service not in stubs:
            stubs[service] = Stubber(botocore.get_session().create_client(service, region_name="us-west-2"))
            stubs[service].activate()
        return stubs[service]

    def client(service: str, region: str) -> Any:
        assert region == "us-west-2"
        return stub(service).client

    monkeypatch.setattr(images, "_client", client)
    yield stub
    for entry in stubs.values():
        entry.assert_no_pending_responses()


def copied(folder: Path, image: str | None = None) -> tuple[Path, str]:
    text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    text = text if image is None else text.replace(f"resolve:ssm:{PARAMETER}", image)
    (folder / "cluster.yaml").write_text(text, encoding="utf-8")
    return folder / "cluster.yaml", text


def test_the_parameters_id_replaces_it_and_nothing_else_changes(tmp_path: Path, aws: Callable[[str], Any]) -> None:
    file, text = copied(tmp_path)
    aws("ssm").add_response("get_parameter", {"Parameter": {"Value": IMAGE}}, {"Name": PARAMETER})
    assert fill_images(file) == [f"{file}: {IMAGE} in us-west-2, written in place of resolve:ssm:{PARAMETER}"]
    assert file.read_text() == text.replace(f"resolve:ssm:{PARAMETER}", IMAGE)
    assert text.count(f"resolve:ssm:{PARAMETER}") == 1
    assert fill_images(file) == []  # and no request


def test_a_placeholder_becomes_the_projects_image(tmp_path: Path, aws: Callable[[str], Any]) -> None:
    file, text = copied(tmp_path, "FILL-IN")
    aws("ssm").add_response("get_parameter", {"Parameter": {"Value": IMAGE}}, {"Name": PARAMETER})
    assert fill_images(file) == [f"{file}: {IMAGE} in us-west-2, written in place of FILL-IN"]
    assert file.read_text() == text.replace("FILL-IN", IMAGE)


def test_without_permission_for_parameters_the_newest_image_of_that_name(
    tmp_path: Path, aws: Callable[[str], Any]
) -> None:
    file, text = copied(tmp_path)
    aws("ssm").add_client_error("get_parameter", "AccessDeniedException", "no", http_status_code=400)
    name = "Deep Learning Base AMI with Single CUDA (Ubuntu 22.04) *"
    filters = [{"Name": "name", "Values": [name]}, {"Name": "state", "Values": ["available"]}]
    found = [("ami-1", "2026-07-24"), ("ami-3", "2026-10-06"), ("ami-2", "2026-09-01")]
    answer = {"Images": [{"ImageId": image, "CreationDate": f"{day}T00:00:00.000Z"} for image, day in found]}
    aws("ec2").add_response("describe_images", answer, {"Owners": ["amazon"], "Filters": filters})
    fill_images(file)
    assert file.read_text() == text.replace(f"resolve:ssm:{PARAMETER}", "ami-3")


def test_a_parameter_of_the_users_own_is_not_replaced_by_another_image(
    tmp_path: Path, aws: Callable[[str], Any]
) -> None:
    file, text = copied(tmp_path, "resolve:ssm:/mine")
    aws("ssm").add_client_error("get_parameter", "AccessDeniedException", "not allowed")
    with pytest.raises(ConfigError) as error:
        fill_images(file)
    (line,) = error.value.faults
    assert line == (
        f"{file}: ImageId: AWS gives no id (An error occurred (AccessDeniedException) when calling the GetParameter "
        "operation: not allowed) (got resolve:ssm:/mine); log in with `aws configure`, or write an id (ami-…)"
    )
    assert file.read_text() == text


def test_a_region_without_the_image(tmp_path: Path, aws: Callable[[str], Any]) -> None:
    file, _ = copied(tmp_path)
    aws("ssm").add_client_error("get_parameter", "AccessDeniedException", "not allowed")
    aws("ec2").add_response("describe_images", {"Images": []})
    with pytest.raises(ConfigError, match="AWS has no image of this name in us-west-2"):
        fill_images(file)


def test_the_doctor_fills_in_and_checks(
    tmp_path: Path, aws: Callable[[str], Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    copied(tmp_path)
    aws("ssm").add_response("get_parameter", {"Parameter": {"Value": IMAGE}}, {"Name": PARAMETER})
    assert doctor.main(["cluster.yaml", "--fill"]) == 1  # nothing was shipped
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok     cluster.yaml: {IMAGE} in us-west-2, written in place of resolve:ssm:{PARAMETER}"
    assert [line.split(": ")[1] for line in lines[1:-1]] == ["file_mounts[~/foml]", "file_mounts[~/.ray/auth_token]"]
    (tmp_path / "gcp.yaml").write_text((ROOT / "deploy/gcp.yaml").read_text())
    assert doctor.main(["gcp.yaml", "--fill"]) == 1
    assert "FAULT  gcp.yaml: provider.type: must be aws for --fill (got gcp)" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        doctor.main(["--fill"])
    assert "--fill needs a cluster file" in capsys.readouterr().err
