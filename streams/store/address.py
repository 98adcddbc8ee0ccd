"""Addresses such as `s3://bucket/folder`: opening, joining, and printing them without keys."""

import os
from pathlib import PurePosixPath
from urllib.parse import unquote

from pyarrow import fs


def is_address(place: object) -> bool:
    """Whether this is an address rather than a path."""
    return "://" in str(place)


def open_address(address: str) -> tuple[fs.FileSystem, PurePosixPath]:
    """The file system of an address, and the path within it.

    `AWS_ENDPOINT_URL` (or `AWS_ENDPOINT_URL_S3`) names an S3 server other than Amazon's, which pyarrow does not read.

    Raises:
        OSError, pa.ArrowException, ValueError: the address cannot be opened.
    """
    address = address.rstrip("/")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    scheme, _, rest = address.partition("://")
    if scheme == "s3" and endpoint and "?" not in rest and "@" not in rest:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return fs.S3FileSystem(endpoint_override=endpoint, region=region), PurePosixPath(unquote(rest))
    files, root = fs.FileSystem.from_uri(address)
    return files, PurePosixPath(root)


def without_keys(address: str) -> str:
    """The address without the keys that it may contain (`s3://key:secret@bucket/store?endpoint_override=...`)."""
    scheme, _, rest = address.partition("?")[0].rstrip("/").partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def join(address: str, *names: str) -> str:
    """The address of `names` below another address.

    >>> join("s3://bucket/results?region=eu-west-1", "sweep", "trial")
    's3://bucket/results/sweep/trial?region=eu-west-1'
    """
    place, question, options = address.partition("?")
    return "/".join([place.rstrip("/"), *names]) + question + options
