#!/usr/bin/env bash
# On the head: run a sweep independently of the ssh session. FOML_SHARED/jobs holds JOB.log (its standard error),
# JOB.out (its standard output), JOB.pid and JOB.code (the exit code).
#
#   job.sh start JOB WORDS…      start `foml.sh sweep WORDS`, unless JOB is running
#   job.sh follow JOB            print `job.sh: following`, the log until the job ends, its standard output and `exit code N`
#   job.sh follow JOB OPTION…    the same for a job started with --json or --quiet, without its standard output
#                                (either prints `job.sh: refused: REASON` if there is no such job)
#   job.sh stop JOB              stop as Ctrl-C does: chunks in flight are finished
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
jobs=${FOML_SHARED:-/srv/foml}/jobs
command=$1
job=$jobs/$2
shift 2
# After a restart of the head another process may have the number in JOB.pid: the job's has JOB.code among its words.
runs() { [ -f "$job.pid" ] && [ ! -f "$job.code" ] && grep -qszxF -- "$job.code" "/proc/$(cat "$job.pid")/cmdline"; }

case $command in
start)
    mkdir -p "$jobs"
    exec 9>"$job.lock"
    flock 9 # of two simultaneous calls the second one finds the job running
    if runs; then
        echo "runs already"
        exit 0
    fi
    rm -f "$job.code"
    : >"$job.log"
    : >"$job.out"
    echo "$*" >"$job.words"
    # A session of its own: neither the end of this one nor Ctrl-C in it reaches the job.
    # shellcheck disable=SC2016
    setsid nohup bash -c 'set +e; log=$1; out=$2; code=$3; shift 3; bash "$@" >"$out" 2>"$log" </dev/null; echo $? >"$code.new"; mv "$code.new" "$code"' \
        job "$job.log" "$job.out" "$job.code" "$here/foml.sh" sweep "$@" >/dev/null 2>&1 </dev/null 9>&- &
    echo $! >"$job.pid"
    for _ in {1..100}; do # until the process has its words, so that no other call takes it for another one
        if runs || [ -f "$job.code" ]; then break; fi
        sleep 0.05
    done
    echo "started"
    ;;
follow)
    if [ ! -f "$job.pid" ]; then
        known=$(find "$jobs" -name '*.pid' -printf '%f ' 2>/dev/null || true)
        echo "job.sh: refused: no such job; there are: ${known//.pid/}"
        exit 1
    fi
    for option in "$@"; do
        case " $(cat "$job.words" 2>/dev/null || true) " in
        *" $option "*) ;;
        *)
            echo "job.sh: refused: the job was started without $option: leave this option out"
            exit 1
            ;;
        esac
    done
    echo "job.sh: following"
    if runs; then tail -n +1 -f --pid="$(cat "$job.pid")" -s 0.5 "$job.log" || true; else cat "$job.log"; fi
    for _ in 1 2 3 4 5 6 7 8 9 10; do [ -f "$job.code" ] && break; sleep 0.3; done
    [ $# -gt 0 ] || cat "$job.out" 2>/dev/null || true
    echo "exit code $(cat "$job.code" 2>/dev/null || echo unknown)"
    ;;
stop)
    if runs; then pkill -INT -s "$(ps -o sid= -p "$(cat "$job.pid")" | tr -d ' ')" -f orchestrator.sweep; fi
    ;;
*)
    echo "start, follow or stop" >&2
    exit 2
    ;;
esac
