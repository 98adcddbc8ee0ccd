#!/usr/bin/env bash
# On the head: a sweep that runs whoever logs out. In FOML_SHARED/jobs are its log (JOB.log, standard error), what it
# said at its end (JOB.out, standard output), its process id and its exit code.
#
#   job.sh start JOB WORDS…      begin `foml.sh sweep WORDS`, unless JOB runs already
#   job.sh follow JOB            its log from the start until it is over, and what it said; last comes `exit code N`
#   job.sh follow JOB OPTION…    the same of a job that was started with these (--json, --quiet), without what it said
#   job.sh stop JOB              as Ctrl-C would: chunks in flight are finished
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
jobs=${FOML_SHARED:-/srv/foml}/jobs
command=$1
job=$jobs/$2
shift 2
runs() { [ -f "$job.pid" ] && [ ! -f "$job.code" ] && kill -0 "$(cat "$job.pid")" 2>/dev/null; }

case $command in
start)
    mkdir -p "$jobs"
    exec 9>"$job.lock"
    flock 9 # of two at once the second finds that it runs
    if runs; then
        echo "runs already"
        exit 0
    fi
    rm -f "$job.code"
    : >"$job.log"
    : >"$job.out"
    echo "$*" >"$job.words"
    # Its own session: it hears neither the end of ours nor our Ctrl-C.
    # shellcheck disable=SC2016
    setsid nohup bash -c 'set +e; log=$1; out=$2; code=$3; shift 3; bash "$@" >"$out" 2>"$log" </dev/null; echo $? >"$code.new"; mv "$code.new" "$code"' \
        job "$job.log" "$job.out" "$job.code" "$here/foml.sh" sweep "$@" >/dev/null 2>&1 </dev/null 9>&- &
    echo $! >"$job.pid"
    echo "started"
    ;;
follow)
    if [ ! -f "$job.pid" ]; then
        known=$(find "$jobs" -name '*.pid' -printf '%f ' 2>/dev/null || true)
        echo "no such job; there are: ${known//.pid/}"
        exit 1
    fi
    for option in "$@"; do
        case " $(cat "$job.words" 2>/dev/null || true) " in
        *" $option "*) ;;
        *)
            echo "it was started without $option: look at it without"
            exit 1
            ;;
        esac
    done
    tail -n +1 -f --pid="$(cat "$job.pid")" -s 0.5 "$job.log" || true
    for _ in 1 2 3 4 5 6 7 8 9 10; do [ -f "$job.code" ] && break; sleep 0.3; done
    [ $# -gt 0 ] || cat "$job.out" 2>/dev/null || true
    echo "exit code $(cat "$job.code" 2>/dev/null || echo unknown)"
    ;;
stop)
    runs && pkill -INT -s "$(ps -o sid= -p "$(cat "$job.pid")" | tr -d ' ')" -f orchestrator.sweep
    ;;
*)
    echo "start, follow or stop" >&2
    exit 2
    ;;
esac
