#!/usr/bin/env bash
# Set up one node of a cluster: a virtual environment in ~/foml-venv with the wheel beside this script and the versions
# of constraints.txt. Idempotent.
#
#   node.sh                    every node
#   node.sh --head [--share]   the head: also MLflow on PostgreSQL; --share: export FOML_SHARED to the workers by NFS
#   node.sh --mount HEAD       a worker: mount FOML_SHARED from the head
#   node.sh --spot             a worker on AWS: when AWS announces that it takes the machine, end its chunks in order
#   node.sh --image            the head on AWS: write ~/autoscaling.yaml, in which workers have the image of the head
#
# FOML_SHARED (default /srv/foml): the folder that all nodes share, for results and checkpoints.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
shared=${FOML_SHARED:-/srv/foml}
venv=$HOME/foml-venv
python=3.11       # Ray refuses nodes with another version
uv=uv==0.13.9

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
packages() { # install Debian packages unless all are present
    if ! dpkg -s "$@" >/dev/null 2>&1; then
        as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    fi
}

install_python() {
    [ -x "$venv/bin/python" ] && return
    if command -v "python$python" >/dev/null && "python$python" -c 'import ensurepip'; then
        "python$python" -m venv "$venv"
    else # uv installs Python where the system has another version
        [ -x "$HOME/.foml-uv/bin/uv" ] || { python3 -m venv "$HOME/.foml-uv" && "$HOME/.foml-uv/bin/pip" -q install "$uv"; }
        "$HOME/.foml-uv/bin/uv" -q venv --seed --python "$python" "$venv"
    fi
}

install_project() {
    local wheel=("$here"/foml_orchestrator-*.whl)
    [ -f "${wheel[0]}" ] || { say "no wheel beside this script; run: python -m orchestrator.ship"; exit 1; }
    cmp -s "${wheel[0]}" "$venv/installed.whl" && return
    "$venv/bin/python" -m pip -q install --no-input -c "$here/constraints.txt" "${wheel[0]}[cluster]"
    if [ -f "$venv/installed.whl" ]; then # changed code under the same version number
        "$venv/bin/python" -m pip -q install --no-input --no-deps --force-reinstall "${wheel[0]}"
    fi
    cp "${wheel[0]}" "$venv/installed.whl"
}

find_commands() { # `ray down` and `ray exec` find `ray` in a login shell's path
    # shellcheck disable=SC2016
    local line='export PATH="$HOME/foml-venv/bin:$PATH"'
    grep -qxF "$line" "$HOME/.bashrc" 2>/dev/null || printf '%s\n' "$line" >>"$HOME/.bashrc"
}

share_folder() {
    packages nfs-kernel-server
    local line="$shared 10.0.0.0/8(rw,sync,no_subtree_check) 172.16.0.0/12(rw,sync,no_subtree_check) 192.168.0.0/16(rw,sync,no_subtree_check)"
    printf '%s\n' "$line" | as_root tee /etc/exports.d/foml.exports >/dev/null
    as_root exportfs -ra
}

mount_folder() {
    mountpoint -q "$shared" && return
    packages nfs-common
    as_root mount -t nfs -o hard,noatime,actimeo=1 "$1:$shared" "$shared"
}

metadata() { # a value of EC2's metadata service, version 2
    local imds=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest token
    token=$(curl -sS -f -m 10 --noproxy '*' -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$imds/api/token") &&
        curl -sS -f -m 10 --noproxy '*' -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"
}

# AWS announces an interruption two minutes before. Ray then starts nothing more here, and the learner actors, which see
# ~/foml-leaving, end after their chunks in flight and continue on another node.
watch_spot() {
    rm -f "$HOME/foml-leaving"
    until metadata spot/instance-action >/dev/null 2>&1 &&
        RAY_AUTH_MODE=token "$venv/bin/ray" drain-node --reason DRAIN_NODE_REASON_PREEMPTION \
            --reason-message 'spot interruption' --deadline-remaining-seconds 110; do
        sleep "${FOML_SPOT_INTERVAL_S:-5}"
    done
    touch "$HOME/foml-leaving"
}

# Ray gives the head a role that may start instances but not read SSM's parameters, so the autoscaler needs an id.
fix_image() {
    local image
    image=$(metadata ami-id)
    "$venv/bin/python" - "$image" <<'PYTHON'
import json, pathlib, sys
home = pathlib.Path.home()
document = json.loads((home / "ray_bootstrap_config.yaml").read_text())
nodes = {name: entry["node_config"] for name, entry in document["available_node_types"].items()}
parameter = nodes[document["head_node_type"]].get("ImageId")
for node in nodes.values():
    if node.get("ImageId") == parameter:
        node["ImageId"] = sys.argv[1]
(home / "autoscaling.yaml").write_text(json.dumps(document))
PYTHON
}

make_folder() {
    [ -d "$shared" ] || as_root mkdir -p "$shared"
    [ -w "$shared" ] || mountpoint -q "$shared" || as_root chown "$(id -u):$(id -g)" "$shared"
}

case "${1:-}" in
--mount)
    make_folder
    mount_folder "$2"
    exit
    ;;
--spot) # independent of the ssh session
    setsid nohup bash "$here/node.sh" --watch-spot >>"$HOME/spot.log" 2>&1 </dev/null &
    exit
    ;;
--watch-spot)
    exec 9>"$HOME/.foml-spot.lock"
    if flock -n 9; then watch_spot; fi # at most one on each node
    exit
    ;;
--image)
    fix_image
    exit
    ;;
--head)
    packages postgresql rsync
    make_folder
    if [ "${2:-}" = --share ]; then share_folder; fi
    ;;
esac
install_python
install_project
find_commands
if [ "${1:-}" = --head ]; then bash "$here/mlflow.sh" start; fi
