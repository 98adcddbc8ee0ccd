#!/usr/bin/env bash
# Set up one node of a cluster: a virtual environment in ~/foml-venv with the wheel beside this script and the versions
# of constraints.txt. Idempotent.
#
#   node.sh                    every node
#   node.sh --head [--share]   the head: also MLflow on PostgreSQL; --share: export FOML_SHARED to the workers by NFS
#   node.sh --mount HEAD       a worker: mount FOML_SHARED from the head
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
