#!/usr/bin/env bash
# On the head: run a command of the orchestrator with this cluster's MLflow and shared folder.
#
#   foml.sh sweep mine.yaml seeds=3     foml.sh sweep --resume NAME     foml.sh doctor     foml.sh report NAME
set -euo pipefail
shared=${FOML_SHARED:-/srv/foml}
set -a
# shellcheck disable=SC1090,SC1091
. "${FOML_MLFLOW:-$HOME/mlflow}/env"
set +a
export RAY_ADDRESS=auto RAY_AUTH_MODE=token
# MLflow is on this machine: a proxy of the environment does not reach it.
no_proxy=127.0.0.1${no_proxy:+,$no_proxy}${NO_PROXY:+,$NO_PROXY}
export no_proxy NO_PROXY=$no_proxy
command=$1
shift
case $command in
sweep | doctor)
    case ${1:-} in
    jobs/*) ;;                                    # from `--cluster`: its file names the storage, which may hold keys
    *) set -- "storage=$shared/results" "$@" ;; # storage=s3://… wins
    esac
    set -- "$@" "tracking.uri=$MLFLOW_TRACKING_URI"
    ;;
report) set -- "$@" --tracking-uri "$MLFLOW_TRACKING_URI" ;;
esac
cd "$shared"
exec "$HOME/foml-venv/bin/python" -m "orchestrator.$command" "$@"
