"""Checks of cluster files before anything is started: Ray's schema and validator, and mistakes that both accept.

Ray accepts a mount whose source is missing, a start without token and a nightly default image, and reports them in the
middle of a start that costs money, or never.
"""

import contextlib
import copy
import io
import json
import logging
import re
import socket
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from orchestrator.cluster.images import RESOLVED
from orchestrator.cluster.kubernetes import check_kubernetes
from orchestrator.cluster.rules import PLACEHOLDER, check_values
from orchestrator.errors import ConfigError, fault
from streams.yaml_values import StrictLoader

TOKEN = "~/.ray/auth_token"
SSH_TIMEOUT_S = 2.0
"""Seconds in which a host must accept a connection."""
_START_COMMANDS = ("head_start_ray_commands", "worker_start_ray_commands")


def is_cluster_file(path: Path) -> bool:
    """Whether a file is readable YAML and describes a cluster, not a sweep."""
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return False
    mappings = [document for document in documents if isinstance(document, dict)]
    return any({"provider", "cluster_name", "kind"} & set(document) for document in mappings)


def check_cluster_file(path: Path, name: str | None = None) -> list[str]:
    """One line for each fault of a file for `ray up` or KubeRay; relative paths are those of the working directory."""
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
    faults = check_values(documents, file)
    if any("kind" in document for document in documents):
        return faults + check_kubernetes(documents, file)
    (document,) = documents[:1]
    faults += _schema(document, file)
    if not faults or all("must be filled in" in line for line in faults):
        faults += _validator(document, file)
    return faults + _paths(document, file) + _commands(document, file) + _aws_requests(document, file)


def read_cluster_file(path: Path) -> dict[str, Any]:
    """The document in a file for `ray up`.

    Raises:
        ConfigError: one line for each fault.
    """
    faults = check_cluster_file(path)
    if faults:
        raise ConfigError(*faults)
    return _documents(path)[0]


def unreachable_hosts(path: Path) -> list[str]:
    """One line for each of the user's own hosts, as a file for `ray up` names them, that does not answer ssh."""
    try:
        (document, *_) = _documents(path)
        provider, auth = document["provider"], document.get("auth") or {}
    except (OSError, ValueError, yaml.YAMLError, KeyError, AttributeError, TypeError):
        return []  # a fault of the file, which `check_cluster_file` reports
    if not isinstance(provider, dict) or not isinstance(auth, dict) or "ssh_proxy_command" in auth:
        return []
    workers = provider.get("worker_ips")
    hosts = [("provider.head_ip", provider.get("head_ip"))]
    hosts += [
        (f"provider.worker_ips[{n}]", host) for n, host in enumerate(workers if isinstance(workers, list) else ())
    ]
    named = [(key, str(host)) for key, host in hosts if host not in (None, "", PLACEHOLDER)]
    with ThreadPoolExecutor(max(1, len(named))) as pool:
        problems = list(pool.map(_ssh_problem, (host for _, host in named)))
    remedy = "start the host, or correct its address; --offline leaves this check out"
    return [
        fault(str(path), key, f"must answer ssh within {SSH_TIMEOUT_S:g} s ({problem})", host, remedy)
        for (key, host), problem in zip(named, problems, strict=True)
        if problem
    ]


def _ssh_problem(host: str) -> str:
    """Why the ssh port of a host cannot be reached; empty if it can, or if ssh reaches it through another host."""
    settings = {"hostname": host, "port": "22"}
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # what the user's ~/.ssh/config says of it
        done = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, timeout=10, check=True)
        settings |= dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    if {"proxyjump", "proxycommand"} & set(settings):
        return ""
    try:
        socket.create_connection((settings["hostname"], int(settings["port"])), timeout=SSH_TIMEOUT_S).close()
    except OSError as error:
        return f"port {settings['port']}: {error.strerror or error}"
    return ""


def _documents(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]


def _schema(document: dict[str, Any], file: str) -> list[str]:
    import jsonschema
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    return [
        fault(file, error.json_path.removeprefix("$").lstrip("."), f"Ray's schema: {_shortened(error.message)}")
        for error in jsonschema.Draft7Validator(schema).iter_errors(document)
    ]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) < 160 else f"{line[:157]}..."


def _validator(document: dict[str, Any], file: str) -> list[str]:
    """Ray's own validator, on the file with Ray's defaults."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray.autoscaler").setLevel(logging.ERROR)  # it logs every default
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            validate_config(prepare_config(copy.deepcopy(document)))
    except Exception as error:
        text = str(error).strip() or output.getvalue().strip() or type(error).__name__
        return [fault(file, "", f"Ray's validator: {text.splitlines()[0]}")]
    return []


def _paths(document: dict[str, Any], file: str) -> list[str]:
    """Files and folders of this machine that the document names, the cluster's token among them."""
    auth, mounts = document.get("auth"), document.get("file_mounts")
    mounts, faults = mounts if isinstance(mounts, dict) else {}, []
    key = auth.get("ssh_private_key") if isinstance(auth, dict) else None
    if key is not None and not Path(str(key)).expanduser().is_file():
        faults.append(fault(file, "auth.ssh_private_key", "must be a file", key, "make one: ssh-keygen -t ed25519"))
    for target, source in mounts.items():
        where, path = f"file_mounts[{target}]", Path(str(source)).expanduser()
        if not path.exists():
            shipped = path.name in ("ship", "auth_token")
            remedy = "make it: python -m orchestrator.ship" if shipped else "paths start at the working directory"
            faults.append(fault(file, where, "must exist", source, remedy))
        elif target == TOKEN and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            faults.append(fault(file, where, "must be readable by you only", source, f"run: chmod 600 {source}"))
    if TOKEN not in mounts and "RAY_AUTH_TOKEN_PATH" not in json.dumps(document, default=str):
        remedy = f"add {TOKEN}: ~/.foml/auth_token, which python -m orchestrator.ship makes"
        faults.append(fault(file, "file_mounts", "must bring the cluster's token to every node", remedy=remedy))
    return faults


def _commands(document: dict[str, Any], file: str) -> list[str]:
    faults = []
    if not document.get("setup_commands"):
        rule = "must be given: Ray's defaults install nothing, or a nightly build of Ray"
        faults.append(fault(file, "setup_commands", rule))
    for key in _START_COMMANDS:
        commands = document.get(key)
        commands = commands if isinstance(commands, list) else []
        starts = [str(command) for command in commands if "ray start" in str(command)]
        if not any(re.search(r"\bRAY_AUTH_MODE=token\b", start) for start in starts):
            rule = (
                "must set RAY_AUTH_MODE=token for `ray start`: anyone who can reach the port could run arbitrary code"
            )
            faults.append(fault(file, key, rule, remedy="export RAY_AUTH_MODE=token && ray start …"))
    return faults


def _aws_requests(document: dict[str, Any], file: str) -> list[str]:
    """What EC2's own model, which AWS's client includes, finds wrong with the requests for machines."""
    if not isinstance(document.get("provider"), dict) or document["provider"].get("type") != "aws":
        return []
    try:
        import botocore.session
        from botocore.validate import ParamValidator
    except ImportError:
        return []
    shape = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    faults = []
    start = json.dumps(document.get("head_start_ray_commands"), default=str)
    types = document.get("available_node_types")
    types = types if isinstance(types, dict) else {}
    for name, entry in types.items():
        config = entry.get("node_config") if isinstance(entry, dict) else None
        if isinstance(config, dict):
            request = {"MinCount": 1, "MaxCount": 1} | {key: config[key] for key in config if key != "SubnetIds"}
            report = ParamValidator().validate(request, shape).generate_report()
            rules = [line.partition(", must be one of")[0] for line in report.splitlines()]
            faults += [fault(file, f"available_node_types.{name}.node_config", f"AWS: {rule}") for rule in rules]
            parameter = name != document.get("head_node_type") and str(config.get("ImageId")).startswith(RESOLVED)
            if (
                parameter
                and "node.sh --image" not in start
                and "IamInstanceProfile" not in json.dumps(types, default=str)
            ):
                key = f"available_node_types.{name}.node_config.ImageId"
                rule = "must be an id: the role that Ray gives the head may not read SSM's parameters"
                remedy = "run doctor with --fill, or add `bash ~/foml/node.sh --image` to head_start_ray_commands"
                faults.append(fault(file, key, rule, config["ImageId"], remedy))
    return faults
