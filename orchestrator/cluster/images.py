"""Machine images of AWS in a cluster file: the id that an SSM parameter has now, written into the file."""

import re
from pathlib import Path
from typing import Any

import yaml

from orchestrator.cluster.rules import PLACEHOLDER
from orchestrator.errors import ConfigError, fault
from orchestrator.storage import atomic

PARAMETER = "/aws/service/deeplearning/ami/x86_64/base-with-single-cuda-ubuntu-22.04/latest/ami-id"
"""The public parameter in the project's `cluster.yaml`."""
RESOLVED = "resolve:ssm:"
"""The prefix of an `ImageId` that EC2 looks up in SSM's parameters."""
_IMAGE_NAME = "Deep Learning Base AMI with Single CUDA (Ubuntu 22.04) *"
_VALUE = re.compile(
    rf"^(?P<key>[^#\n]*\b(?:image|ImageId):\s*(?:&\w+\s+)?)(?P<value>{RESOLVED}[\w/.:-]+|{PLACEHOLDER})", re.MULTILINE
)


def fill_images(path: Path) -> list[str]:
    """Write an image's id in place of each SSM parameter or placeholder of a file for AWS; one line for each value.

    Raises:
        ConfigError: the file is not for AWS, or AWS gives no id.
    """
    text = path.read_text(encoding="utf-8")
    try:
        provider = yaml.safe_load(text)["provider"]
        kind, region = str(provider["type"]), str(provider["region"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(fault(str(path), "provider", "must have a type and a region for --fill")) from error
    if kind != "aws":
        raise ConfigError(fault(str(path), "provider.type", "must be aws for --fill", kind))
    values = sorted({match["value"] for match in _VALUE.finditer(text)})
    ids = {value: _image_id(str(path), value, region) for value in values}
    if ids:
        atomic.write(path, _VALUE.sub(lambda match: match["key"] + ids[match["value"]], text))
    return [f"{path}: {ids[value]} in {region}, written in place of {value}" for value in values]


def _image_id(file: str, value: str, region: str) -> str:
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        remedy = "run: pip install 'foml-orchestrator[cluster]'"
        raise ConfigError(fault(file, "ImageId", "--fill needs AWS's client", remedy=remedy)) from None
    parameter = PARAMETER if value == PLACEHOLDER else value.removeprefix(RESOLVED)
    try:
        try:
            answer = _client("ssm", region).get_parameter(Name=parameter)
            return str(answer["Parameter"]["Value"])
        except ClientError as error:
            if parameter != PARAMETER or "AccessDenied" not in error.response["Error"]["Code"]:
                raise
        # Everyone who may start instances may list images.
        names = [{"Name": "name", "Values": [_IMAGE_NAME]}, {"Name": "state", "Values": ["available"]}]
        images = _client("ec2", region).describe_images(Owners=["amazon"], Filters=names)["Images"]
        if not images:
            raise ConfigError(fault(file, "ImageId", f"AWS has no image of this name in {region}", _IMAGE_NAME))
        return str(max(images, key=lambda image: str(image["CreationDate"]))["ImageId"])
    except (BotoCoreError, ClientError) as error:
        rule = f"AWS gives no id ({' '.join(str(error).split())})"
        remedy = "log in with `aws configure`, or write an id (ami-…)"
        raise ConfigError(fault(file, "ImageId", rule, value, remedy)) from error


def _client(service: str, region: str) -> Any:
    import botocore.session

    return botocore.session.get_session().create_client(service, region_name=region)
