"""Checks for every kind of cluster file: values are filled in, no value is a secret, images have one version."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.errors import fault

PLACEHOLDER = "FILL-IN"
"""Marks a value that the user must set in the project's cluster files."""
_SECRET_KEY = re.compile(r"(?:password|secret|access_key|auth_token|api_key)[^.\[\]]*(?:\]\.value|\])?$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|(?:TOKEN|PASSWORD|SECRET[A-Z_]*)=(?!\$)[^\s\"']{6,}"
)
_CONTAINER_IMAGE = re.compile(r"(?:^|\.)docker\.\w*image$|ontainers\[[^\]]*\]\.image$")


def walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every scalar of a document with its dotted key; items of a list are called by their `name`, if any.

    >>> list(walk({"a": [{"b": 1}, 2, {"name": "c"}]}))
    [('a[0].b', 1), ('a[1]', 2), ('a[c].name', 'c')]
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from walk(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from walk(part, f"{key}[{part.get('name', index) if isinstance(part, Mapping) else index}]")
    else:
        yield key, value


def check_values(documents: list[dict[str, Any]], file: str) -> list[str]:
    """One line for each placeholder, literal secret and image without a version."""
    lines = []
    checked: set[int] = set()
    for document in documents:
        for key, value in walk(document):
            if not isinstance(value, str) or id(value) in checked:
                continue
            checked.add(id(value))  # PyYAML gives every alias of a value the same object: one line for all
            if value == PLACEHOLDER:
                lines.append(fault(file, key, "must be filled in", value, "the comments of the file say how"))
            elif _is_secret(key, value):
                rule = "must not hold a secret"
                lines.append(fault(file, key, rule, remedy="use a separate file, an environment variable or a Secret"))
            elif not _has_version(key, value):
                rule = "must be one version of an image"
                lines.append(fault(file, key, rule, value, "name its id, tag or digest"))
    return lines


def _is_secret(key: str, value: str) -> bool:
    if _SECRET_VALUE.search(value):
        return True
    reference = key.startswith("file_mounts") or key.endswith("secretName") or value.startswith(("$", "~", "/"))
    return bool(value and _SECRET_KEY.search(key)) and not reference


def _has_version(key: str, value: str) -> bool:
    if key.endswith(".ImageId"):  # AWS; EC2 resolves a parameter to one id
        return value.startswith(("ami-", "resolve:ssm:/"))
    if key.endswith(".sourceImage"):  # Google Cloud
        return "/family/" not in value
    return not _CONTAINER_IMAGE.search(key) or pinned(value)


def pinned(image: str) -> bool:
    """Whether the name of a container image includes a version.

    >>> pinned("rayproject/ray:2.60.0-py311"), pinned("host:5000/ray"), pinned("ray:latest-gpu")
    (True, False, False)
    """
    tag = image.rpartition("/")[2].partition(":")[2]
    return "@sha256:" in image or bool(tag and not re.search(r"latest|nightly", tag))
