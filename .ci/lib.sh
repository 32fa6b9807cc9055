# Helpers of the CI scripts, to be sourced. Each process that is started here is ended by its own process id.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
gateway_pid=
background_pids=()
declare -A pids # of background, by name
trap finish EXIT
# a kill reaches the EXIT trap as well
trap 'exit 130' INT TERM

finish() {
  local status=$?
  stop_gateway
  stop_background
  rm -rf "$work"
  exit "$status"
}

# step NAME SECONDS COMMAND...: runs a part within its time limit and says how long it took.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  echo "== $name"
  timeout --kill-after=10 "$limit" "$@" </dev/null || status=$?
  if ((status == 124)); then
    echo "!! $name: not done after $limit s" >&2
  elif ((status != 0)); then
    echo "!! $name: failed with status $status" >&2
  fi
  echo "-- $name: $((SECONDS - begin)) s"
  return "$status"
}

# busy PORT: succeeds if something listens there on the loopback address.
busy() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port() {
  local p
  for _ in {1..50}; do
    p=$((20000 + RANDOM % 12000)) # below the range that the kernel uses for outgoing connections
    if ! busy "$p"; then
      echo "$p"
      return
    fi
  done
  echo "!! no free port found" >&2
  return 1
}

# start_gateway URL COMMAND...: starts a gateway in its own process group and waits until URL/readyz succeeds.
start_gateway() {
  local url=$1
  shift
  timeout --kill-after=10 900 "$@" </dev/null >"$work/gateway.log" 2>&1 &
  gateway_pid=$!
  for _ in {1..480}; do
    if curl -fsS -m 2 -o /dev/null "$url/readyz" 2>/dev/null; then
      return 0
    fi
    kill -0 "$gateway_pid" 2>/dev/null || break
    sleep 0.25
  done
  echo "!! the gateway did not become ready at $url; its log:" >&2
  tail -50 "$work/gateway.log" >&2
  return 1
}

# stop_gateway ends what start_gateway started: timeout passes the signal to the group of its command.
stop_gateway() {
  [[ -n $gateway_pid ]] || return 0
  kill -TERM "$gateway_pid" 2>/dev/null || true
  wait "$gateway_pid" 2>/dev/null || true
  gateway_pid=
}

# background NAME COMMAND...: runs a command until the script ends; output in $work/NAME.log, id in ${pids[NAME]}.
background() {
  timeout --kill-after=10 900 "${@:2}" </dev/null >"$work/$1.log" 2>&1 &
  background_pids+=($!)
  pids[$1]=$!
}

# stop_background ends what background started, the latest first.
stop_background() {
  local i
  for ((i = ${#background_pids[@]} - 1; i >= 0; i--)); do
    kill -TERM "${background_pids[i]}" 2>/dev/null || true
    wait "${background_pids[i]}" 2>/dev/null || true
  done
  background_pids=()
}

# own_ports: gateways started after this use free ports and leave nothing in the tree. Sets $url.
own_ports() {
  local http admin nats
  http=$(free_port) admin=$(free_port) nats=$(free_port)
  url=http://127.0.0.1:$http
  export SHALLOT_HTTP__ADDR=127.0.0.1:$http SHALLOT_HTTP__ADMIN=127.0.0.1:$admin
  export SHALLOT_NATS__EMBEDDED__PORT=$nats SHALLOT_NATS__EMBEDDED__DATA=$work/data
}

# have TOOL...: prints the first of the tools that is installed; status 1 if none is.
have() {
  local t
  for t in "$@"; do
    if command -v "$t"; then
      return 0
    fi
  done
  return 1
}

# missing WHAT: says loudly that a part did not run. It is not a failure: the gate needs nothing but Go.
missing() {
  echo "**********************************************************************" >&2
  echo "** NOT RUN: $1" >&2
  echo "**********************************************************************" >&2
  if [[ -n ${SHALLOT_CI_SUMMARY:-} ]]; then
    echo "$1" >>"$SHALLOT_CI_SUMMARY"
  fi
}
