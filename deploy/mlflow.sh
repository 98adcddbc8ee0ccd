#!/usr/bin/env bash
# An MLflow server on PostgreSQL; both listen on 127.0.0.1 only.
#
#   mlflow.sh start     start both unless they run; earlier data are kept
#   mlflow.sh stop
#   mlflow.sh status    exit code 0 if it answers
#
# Data are in FOML_MLFLOW (default ~/mlflow): pg/ the database, artifacts/ the files, env the passwords (mode 600, created
# at the first start; MLflow's is MLFLOW_AUTH_ADMIN_PASSWORD if that is set). To log in from a program on this machine:
# set -a; . ~/mlflow/env; set +a
set -euo pipefail
umask 077
home=${FOML_MLFLOW:-$HOME/mlflow}
port=${FOML_MLFLOW_PORT:-5000}
database_port=${FOML_MLFLOW_DATABASE_PORT:-5433} # not 5432, which a system PostgreSQL may use
venv=${FOML_VENV:-$HOME/foml-venv}
postgres=$(find /usr/lib/postgresql -maxdepth 1 -mindepth 1 2>/dev/null | sort -V | tail -1)/bin

fail() { printf 'mlflow.sh: %s\n' "$*" >&2; exit 1; }
secret() { "$venv/bin/python" -c 'import secrets; print(secrets.token_urlsafe(24))'; }
# PostgreSQL refuses to run as root: use the account of Debian's package instead.
if [ "$(id -u)" = 0 ]; then owner=postgres; as_owner() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
else owner=$(id -un); as_owner() { "$@"; }; fi

answers() { "$venv/bin/python" - "$port" <<'PYTHON'
import sys, urllib.request
try:
    # A proxy of the environment does not reach this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=5)
except OSError:
    sys.exit(1)
PYTHON
}
alive() { [ -f "$1" ] && kill -0 "$(head -1 "$1")" 2>/dev/null; }

make() { # create passwords, database and artifact folder once
    mkdir -p "$home/artifacts"
    if [ ! -f "$home/env" ]; then
        {
            printf 'MLFLOW_TRACKING_URI=http://127.0.0.1:%s\nMLFLOW_TRACKING_USERNAME=admin\n' "$port"
            printf 'MLFLOW_TRACKING_PASSWORD=%s\n' "${MLFLOW_AUTH_ADMIN_PASSWORD:-$(secret)}"
            printf 'FOML_DATABASE_PASSWORD=%s\n' "$(secret)"
        } >"$home/.env.new"
        mv "$home/.env.new" "$home/env"
    fi
    # shellcheck disable=SC1091
    . "$home/env"
    if [ ! -f "$home/pg/PG_VERSION" ]; then
        rm -rf "$home/pg.new"
        chmod 711 "$home"
        install -d -m 700 -o "$owner" "$home/pg.new"
        install -m 600 -o "$owner" /dev/null "$home/.password"
        printf '%s\n' "$FOML_DATABASE_PASSWORD" >"$home/.password"
        as_owner "$postgres/initdb" -D "$home/pg.new" -U mlflow --pwfile="$home/.password" --auth=scram-sha-256 -E UTF8 \
            --locale=C.UTF-8 >"$home/initdb.log" 2>&1 || fail "initdb failed; see $home/initdb.log"
        rm "$home/.password"
        mv "$home/pg.new" "$home/pg"
    fi
}

start() {
    [ -x "$postgres/initdb" ] || fail "PostgreSQL is not installed; run: apt-get install postgresql"
    make
    local database="postgresql+psycopg2://mlflow:$FOML_DATABASE_PASSWORD@127.0.0.1:$database_port"
    if ! as_owner "$postgres/pg_ctl" -D "$home/pg" status >/dev/null 2>&1; then
        as_owner "$postgres/pg_ctl" -D "$home/pg" -w -t 60 -l "$home/pg/server.log" \
            -o "-c listen_addresses=127.0.0.1 -c port=$database_port -c unix_socket_directories=''" start >/dev/null ||
            fail "PostgreSQL does not start; see $home/pg/server.log"
    fi
    for name in mlflow auth; do
        PGPASSWORD=$FOML_DATABASE_PASSWORD "$postgres/psql" -h 127.0.0.1 -p "$database_port" -U mlflow -d postgres -qtA \
            -c "SELECT 1 FROM pg_database WHERE datname='$name'" | grep -q 1 ||
            PGPASSWORD=$FOML_DATABASE_PASSWORD "$postgres/createdb" -h 127.0.0.1 -p "$database_port" -U mlflow "$name"
    done
    if ! alive "$home/server.pid"; then
        # Without its cache MLflow hashes the password for each request, which takes longer than most requests.
        printf '[mlflow]\ndefault_permission = READ\ndatabase_uri = %s/auth\nadmin_username = admin\nauth_cache_ttl_seconds = 60\nauthorization_function = mlflow.server.auth:authenticate_request_basic_auth\n' \
            "$database" >"$home/auth.ini"
        [ -f "$home/flask-key" ] || secret >"$home/flask-key"
        (
            cd "$home"
            export MLFLOW_AUTH_CONFIG_PATH=$home/auth.ini MLFLOW_AUTH_ADMIN_PASSWORD=$MLFLOW_TRACKING_PASSWORD
            MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat "$home/flask-key")
            export MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_BACKEND_STORE_URI=$database/mlflow MLFLOW_DISABLE_TELEMETRY=true
            export MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false # saves six processes of a feature that is not used
            exec setsid nohup "$venv/bin/python" -m mlflow server --app-name basic-auth --host 127.0.0.1 --port "$port" \
                --workers 1 --artifacts-destination "$home/artifacts" >>"$home/server.log" 2>&1 </dev/null
        ) &
        echo $! >"$home/server.pid"
    fi
    for _ in $(seq 180); do
        if answers; then printf 'MLflow: http://127.0.0.1:%s, user admin, password in %s/env\n' "$port" "$home"; return; fi
        alive "$home/server.pid" || fail "MLflow does not start; see $home/server.log"
        sleep 0.5
    done
    fail "MLflow does not answer after 90 s; see $home/server.log"
}

stop() {
    if alive "$home/server.pid"; then
        local group
        group=$(cat "$home/server.pid")
        kill -- "-$group"
        for _ in $(seq 50); do
            kill -0 -- "-$group" 2>/dev/null || break
            sleep 0.2
        done
        kill -KILL -- "-$group" 2>/dev/null || true
    fi
    rm -f "$home/server.pid"
    if [ -d "$home/pg" ]; then as_owner "$postgres/pg_ctl" -D "$home/pg" -m fast stop >/dev/null 2>&1 || true; fi
}

case "${1:-}" in
start) start ;;
stop) stop ;;
status) answers ;;
*) fail "start, stop or status" ;;
esac
