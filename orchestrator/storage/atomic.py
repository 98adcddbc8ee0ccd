"""Files that are complete or as they were before, JSON with a digest, and quarantine of damaged files."""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from streams.store.canonical_json import digest

QUARANTINED = "damaged-"
"""The prefix of a quarantined file's name. Such a file is kept and never read."""
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged JSON file raises."""
_DIGEST = "digest"


def write(path: Path, content: str | bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file, which has the new content afterwards, or the previous content after a crash or an error.

    A temporary file in the same folder is synchronized to disk and renamed.

    Args:
        content: text (encoded as UTF-8), bytes, or a function that writes to the open binary file. If the function
            raises, the file stays unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # several processes may write the same file
    try:
        with temporary.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def quarantine(path: Path) -> str:
    """Rename a damaged file to `damaged-NAME`, and return the end of the line that reports it.

    A file of that name from an earlier damage is replaced.
    """
    path.replace(path.with_name(QUARANTINED + path.name))
    return f"quarantined as {QUARANTINED}{path.name}"


def reason(error: BaseException) -> str:
    """The message of an exception on one line, or its type if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


def with_digest(content: Mapping[str, Any]) -> str:
    """JSON of an object, with the SHA-256 of its canonical spelling under `digest`."""
    return json.dumps({_DIGEST: digest(content), **content}, indent=2)


def without_digest(text: str) -> dict[str, Any]:
    """The object that `with_digest` wrote; an object without a digest, of an earlier version, is accepted.

    Raises:
        ValueError: the text is not JSON, or its digest does not match.
        TypeError: it is not an object.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise TypeError("not an object")
    recorded = content.pop(_DIGEST, None)
    if recorded is not None and recorded != digest(content):
        raise ValueError("the digest does not match the content")
    return content
