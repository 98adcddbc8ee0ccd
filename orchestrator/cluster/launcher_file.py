"""Cluster files checked before anything is started: what Ray's own validator says, and what it lets pass.

Ray takes an unknown key of `provider` or `node_config`, a mount whose source is missing, a forgotten token or a default
image without a word, and tells later, in the middle of a start that costs money, or never.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.cluster.kubernetes import check_kubernetes
from orchestrator.cluster.providers import PROVIDERS, check_node_config, check_provider
from orchestrator.cluster.rules import TO_FILL_IN, did_you_mean, pinned, unknown, walk
from orchestrator.config.strict_yaml import StrictLoader
from orchestrator.errors import ConfigError, fault

TOKEN = "~/.ray/auth_token"
_COMMANDS = ("head_start_ray_commands", "worker_start_ray_commands")
_SECRET_KEY = re.compile(r"password|secret|access_key|auth_token|api_key", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY|(?:TOKEN|PASSWORD|SECRET[A-Z_]*)=(?!\$)[^\s\"']{6,}"
)


def is_cluster_file(path: Path) -> bool:
    """Whether a YAML file is a cluster rather than a sweep, as far as it can be read."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    found = [document for document in documents if isinstance(document, dict)]
    return any("provider" in one or "cluster_name" in one or "kind" in one for one in found)


def check_cluster_file(path: Path, name: str | None = None) -> list[str]:
    """One line for everything that is wrong with a file for `ray up` or for KubeRay; sources are looked for here."""
    file = str(path) if name is None else name
    try:
        documents = _documents(path)
    except (OSError, UnicodeDecodeError) as error:
        return [fault(file, "", f"must be a readable file ({getattr(error, 'strerror', 'not UTF-8 text')})")]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return [
            fault(file, f"line {mark.line + 1}" if mark else "", f"must be YAML: {getattr(error, 'problem', error)}")
        ]
    if not documents or not all(isinstance(document, dict) for document in documents):
        return [fault(file, "", "must hold keys and values")]
    faults = _to_fill_in(documents, file) + _secrets(documents, file)
    if any("kind" in document for document in documents):
        faults += check_kubernetes(documents, file)
    else:
        faults += _check_launcher_file(documents[0], file)
    return list(dict.fromkeys(faults))


def read_cluster_file(path: Path) -> dict[str, Any]:
    """A file for `ray up` that has no faults.

    Raises:
        ConfigError: one line for each fault.
    """
    faults = check_cluster_file(path)
    if faults:
        raise ConfigError(*faults)
    return _documents(path)[0]


def _documents(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]


def expected_nodes(document: Mapping[str, Any]) -> list[str]:
    """Addresses of the nodes that the file promises, head first; empty where the autoscaler decides."""
    provider = document.get("provider", {})
    return [provider["head_ip"], *provider["worker_ips"]] if provider.get("type") == "local" else []


_REMEDIES = {
    "image": "the image's id or name; how to find it is in the file",
    "sourceImage": "the image's whole name; the command that lists them is in the file",
    "head_ip": "the address of the head",
    "worker_ips": "the addresses of the workers",
    "ssh_user": "the user to log in as",
    "project_id": "your project",
    "storageClassName": "a class of volumes that several nodes may write",
}


def _to_fill_in(documents: list[dict[str, Any]], file: str) -> list[str]:
    """Where a value of one's own has to go; one that others refer to is told once."""
    lines: dict[str, str] = {}
    for document in documents:
        for key, value in walk(document):
            if value == TO_FILL_IN:
                last = re.sub(r"\[\d+\]$", "", key).rpartition(".")[2]
                meant = "image" if last == "ImageId" else last
                lines.setdefault(meant, fault(file, key, "must be filled in", value, _REMEDIES.get(meant, "")))
    return list(lines.values())


def _secrets(documents: list[dict[str, Any]], file: str) -> list[str]:
    lines = []
    for document in documents:
        for key, value in walk(document):
            last = key.rpartition(".")[2]
            named = _SECRET_KEY.search(last) and not key.startswith(("file_mounts", "provider.aws_credentials_file"))
            literal = isinstance(value, str) and value and not value.startswith(("$", "~", "/"))
            points = "secretKeyRef" in key or "secretName" in key
            if (named and literal and not points) or (isinstance(value, str) and _SECRET_VALUE.search(value)):
                rule = "a secret must not stand in this file"
                lines.append(fault(file, key, rule, remedy="keep it in a file of your own, or in the environment"))
    return lines


def _check_launcher_file(document: dict[str, Any], file: str) -> list[str]:
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    known = sorted(set(schema["properties"]) - {"no_restart"})
    faults = unknown(document, known, file, "")
    if document.get("cluster_name", "default") == "default":
        rule = "must be a name of its own: two clusters called default are one to Ray"
        faults.append(fault(file, "cluster_name", rule, document.get("cluster_name", "nothing")))
    provider = document.get("provider")
    kind = provider.get("type") if isinstance(provider, dict) else None
    if not isinstance(provider, dict) or kind not in PROVIDERS:
        rule = f"must be one of {', '.join(PROVIDERS)}"
        faults.append(fault(file, "provider.type", rule, kind, did_you_mean(kind, PROVIDERS)))
        return faults
    faults += check_provider(provider, file)
    faults += _auth(document, kind, file)
    faults += _mounts(document, file)
    faults += _commands(document, kind, file)
    faults += _images(document, file)
    faults += _node_types(document, kind, file)
    if not faults:
        faults += _rays_own(document, schema, file)
    else:
        told = [line for line in _schema(document, schema, file) if not any(_same_place(line, one) for one in faults)]
        faults += told
    return faults


def _same_place(line: str, other: str) -> bool:
    return line.split(": ")[:2] == other.split(": ")[:2]


def _auth(document: dict[str, Any], kind: str, file: str) -> list[str]:
    auth = document.get("auth") or {}
    faults = []
    if not auth.get("ssh_user"):
        faults.append(fault(file, "auth.ssh_user", "must be given"))
    key = auth.get("ssh_private_key")
    if key is None:
        if kind == "local":
            faults.append(fault(file, "auth.ssh_private_key", "must be given: Ray makes no key for hosts of yours"))
    elif not Path(key).expanduser().is_file():
        faults.append(fault(file, "auth.ssh_private_key", "must be a file", key, "make one: ssh-keygen -t ed25519"))
    return faults


def _mounts(document: dict[str, Any], file: str) -> list[str]:
    mounts = document.get("file_mounts") or {}
    faults = []
    if not isinstance(mounts, dict):
        return [fault(file, "file_mounts", "must map places on the nodes to files here", mounts)]
    for target, source in mounts.items():
        where, path = f"file_mounts[{target}]", Path(str(source)).expanduser()
        if not path.exists():
            ours = path.name in ("ship", "auth_token")
            remedy = "make it: python -m orchestrator.ship" if ours else "paths are seen from where you are now"
            faults.append(fault(file, where, "must be there", source, remedy))
        elif target == TOKEN and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            faults.append(fault(file, where, "others may read the token", source, f"run: chmod 600 {source}"))
    if TOKEN not in mounts and "RAY_AUTH_TOKEN_PATH" not in json.dumps(document):
        remedy = f"add {TOKEN}: ~/.foml/auth_token, which python -m orchestrator.ship makes"
        faults.append(fault(file, "file_mounts", "the cluster's token must be on every node", remedy=remedy))
    return faults


def _commands(document: dict[str, Any], kind: str, file: str) -> list[str]:
    faults = []
    if not document.get("setup_commands"):
        default = "Ray's default installs a nightly build of Ray" if kind == "aws" else "nothing would be installed"
        faults.append(fault(file, "setup_commands", f"must be given: {default}"))
    for key in _COMMANDS:
        commands = document.get(key)
        head = key.startswith("head")
        if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
            faults.append(fault(file, key, "must be a list of commands: Ray's default starts without a token"))
            continue
        starts = [command for command in commands if re.search(r"\bray start\b", command)]
        if len(starts) != 1:
            faults.append(fault(file, key, "must say `ray start` once", len(starts)))
            continue
        (start,) = starts
        needed = ["--head", "--autoscaling-config="] if head else ["--address=$RAY_HEAD_IP"]
        faults += [fault(file, key, f"`ray start` must have {word}") for word in needed if word not in start]
        if not re.search(r"\bRAY_AUTH_MODE=token\b", start):
            rule = "must set RAY_AUTH_MODE=token: whoever reaches the port could run what he likes"
            faults.append(fault(file, key, rule, remedy="export RAY_AUTH_MODE=token && ray start …"))
        if re.search(r"--dashboard-host[= ]0\.0\.0\.0", start):
            faults.append(fault(file, key, "the dashboard must listen to localhost only", remedy="reach it by ssh"))
        if head and kind == "local" and "RAY_enable_autoscaler_v2=0" not in start:
            rule = "must set RAY_enable_autoscaler_v2=0: the newer autoscaler starts one worker of such a cluster only"
            faults.append(fault(file, key, rule))
    return faults


def _images(document: dict[str, Any], file: str) -> list[str]:
    docker = document.get("docker") or {}
    faults = []
    for key in ("image", "head_image", "worker_image"):
        image = docker.get(key)
        if image is not None and not pinned(str(image)):
            faults.append(
                fault(file, f"docker.{key}", "must be one version of an image", image, "name its tag or digest")
            )
    return faults


def _node_types(document: dict[str, Any], kind: str, file: str) -> list[str]:
    types = document.get("available_node_types")
    if kind == "local":
        given = [key for key in ("available_node_types", "head_node_type") if document.get(key)]
        return [fault(file, key, "must be left out: hosts of one's own are what they are") for key in given]
    if not isinstance(types, dict) or not types:
        return [fault(file, "available_node_types", "must be given: Ray's defaults have no GPU")]
    faults = []
    head = document.get("head_node_type")
    if head not in types:
        rule = f"must be one of available_node_types, {', '.join(types)}"
        faults.append(fault(file, "head_node_type", rule, head))
    for name, entry in types.items():
        where = f"available_node_types.{name}"
        if not isinstance(entry, dict):
            faults.append(fault(file, where, "must be a mapping", entry))
            continue
        low, high = entry.get("min_workers", 0), entry.get("max_workers", document.get("max_workers", 0))
        if isinstance(low, int) and isinstance(high, int) and low > high:
            faults.append(fault(file, f"{where}.min_workers", f"must be at most max_workers, {high}", low))
        if name != head and not entry.get("resources"):
            rule = "must be given: the autoscaler starts no node that it knows nothing of"
            faults.append(fault(file, f"{where}.resources", rule))
        config = entry.get("node_config")
        if isinstance(config, dict):
            faults += check_node_config(kind, document["provider"], config, file, f"{where}.node_config", name == head)
    return faults


def _schema(document: dict[str, Any], schema: dict[str, Any], file: str) -> list[str]:
    """What Ray's schema says of the file as it stands, all of it; unknown keys at the top are told already."""
    import jsonschema

    lines = []
    for error in jsonschema.Draft7Validator(schema).iter_errors(document):
        steps = list(error.absolute_path)
        if error.validator == "required":  # by the name of what is missing, as our own lines are
            steps += [key for key in error.validator_value if key not in error.instance]
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
        if steps and (len(steps) > 1 or error.validator != "additionalProperties"):
            told = error.message if len(error.message) < 160 else f"{error.message[:157]}..."
            lines.append(fault(file, where, f"Ray's schema: {told}"))
    return lines


def _rays_own(document: dict[str, Any], schema: dict[str, Any], file: str) -> list[str]:
    """Ray's own validator, on the file with Ray's defaults filled in."""
    faults = _schema(document, schema, file)
    if faults:
        return faults
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray.autoscaler").setLevel(logging.ERROR)  # it tells what it fills in
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            validate_config(prepare_config(copy.deepcopy(document)))
    except Exception as error:
        told = str(error).strip() or said.getvalue().strip() or type(error).__name__
        return [fault(file, "", f"Ray's validator: {told.splitlines()[0]}")]
    return []
