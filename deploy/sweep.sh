#!/usr/bin/env bash
# On the head: a sweep on this cluster, with its MLflow and its shared folder. The words are orchestrator.sweep's.
set -euo pipefail
shared=${FOML_SHARED:-/srv/foml}
set -a
# shellcheck disable=SC1090
. "${FOML_MLFLOW:-$HOME/mlflow}/env"
set +a
export RAY_ADDRESS=auto RAY_AUTH_MODE=token
cd "$shared"
exec "$HOME/foml-venv/bin/python" -m orchestrator.sweep "$@" "tracking.uri=$MLFLOW_TRACKING_URI" "storage=$shared/results"
