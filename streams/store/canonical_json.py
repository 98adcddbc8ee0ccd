"""One spelling of a JSON value, and its hash: the identity of task stores, configurations, trials and journals."""

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces.

    >>> canonical({"b": 1, "a": [0.5, None]})
    '{"a":[0.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any, length: int = 64) -> str:
    """The first hexadecimal digits of the sha256 of a value's canonical JSON.

    >>> digest({"b": 1, "a": [0.5, None]}, 12)
    'a0e9efb45133'
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]
