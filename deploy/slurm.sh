#!/usr/bin/env bash
# A sweep on nodes of SLURM, with a Ray of its own for each job. In the environment that has the project:
#
#   sbatch --nodes=2 --gpus-per-node=4 --time=8:00:00 deploy/slurm.sh mine.yaml resources.gpus=1
#
# The words are those of `foml sweep`. FOML_SHARED (default: the folder of `sbatch`) must be on all nodes: it holds the
# results, MLflow's database mlflow.db, and the sweep's output (foml-JOB.log). Two minutes before its time limit the job stops
# the sweep after its chunks in flight and queues itself again, and then resumes the sweep. `scancel --batch --signal=TERM JOB` stops the
# sweep in the same way and ends the job; the same `sbatch` resumes it later.
#SBATCH --job-name=foml
#SBATCH --output=foml-%j.log
#SBATCH --open-mode=append
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
# --exclusive: `ray symmetric-run` stops every Ray process of the user on its nodes when it ends.
set -euo pipefail
shared=${FOML_SHARED:-$SLURM_SUBMIT_DIR}
state=$shared/.foml-$SLURM_JOB_ID
umask 077
mkdir -p "$state"
trap 'rm -rf "$state"' EXIT
python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$state/token"
rm -f "$state/driver" "$state/code"

export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$state/token RAY_USAGE_STATS_ENABLED=0
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=${RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT:-300}
cpus=${SLURM_CPUS_ON_NODE:-1}
# The first node, where this script and the driver run. An address, since Ray compares it with those of the interfaces.
address=$(getent ahostsv4 "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" | awk 'NR == 1 { print $1 }')
address=$address:$((20000 + SLURM_JOB_ID % 20000))

requeue=
stop() { # SIGTERM to the driver alone: a signal to the step would also reach Ray's processes
    if [ -f "$state/driver" ]; then kill -TERM "$(cat "$state/driver")" 2>/dev/null || true; else kill "$step" 2>/dev/null || true; fi
}
trap 'requeue=yes; stop' USR1
trap stop TERM

# --wait: Ray's processes on the other nodes notice the end only after a minute.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task="$cpus" --wait=5 \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus="$cpus" -- \
    bash -c 'state=$1 shared=$2 address=$3; shift 3
        RAY_ADDRESS=$address python -m orchestrator.sweep "$@" "storage=$shared/results" "tracking.uri=sqlite:///$shared/mlflow.db" &
        echo $! >"$state/driver"
        code=0; wait $! || code=$?
        rm "$state/driver"; echo "$code" >"$state/code"; exit "$code"' foml "$state" "$shared" "$address" "$@" &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done # a signal ends `wait`
code=$(cat "$state/code" 2>/dev/null || echo 1)
if [ -n "$requeue" ] && { [ "$code" = 130 ] || [ ! -f "$state/code" ]; }; then
    echo "time limit: job $SLURM_JOB_ID is queued again"
    rm -rf "$state"
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60 # SLURM ends this script
fi
exit "$code"
