#!/usr/bin/env bash
# phasor calibrate as a user meets it: what is refused, signals, kill -9 and going on. No calibration is
# run to its end: that takes minutes, and tests/engine has small ones.
# Usage: test_calibrate.sh PHASOR MODEL
set -u
phasor=$1
model=$2
source "$(dirname "$0")/tools.sh"

# ---- what is refused
expect 1 "in the cache" "$phasor" calibrate --devices cpu:2 --memory 1MiB
has err "--memory: expected at least [0-9]* MiB to measure 2 devices, found 1024 KiB; raise it" "in the cache"
mkdir -p "$PHASOR_CACHE"
expect 1 "nowhere" env -u PHASOR_CACHE -u XDG_CACHE_HOME -u HOME "$phasor" calibrate
has err "no place for the profile" "nowhere"
expect 2 "an operand" "$phasor" calibrate "$model" -o box.json
expect 1 "no such devices" "$phasor" calibrate --devices cpu:0 -o box.json
has err "expected cpu, cpu:N" "no such devices"
expect 1 "GPUs that are not there" "$phasor" calibrate --devices cuda:999 -o box.json
has err "cuda:999" "GPUs that are not there"
expect 1 "no such folder" "$phasor" calibrate -o none/box.json
has err "none/box.json" "no such folder"
echo "a letter" >letter
expect 1 "no profile" "$phasor" calibrate -o letter --overwrite
has err "letter is there and is no profile" "no profile"
[ "$(cat letter)" = "a letter" ] || fail "a file that is no profile was changed"
echo '{"phasor_profile":1}' >old.json
expect 1 "a profile that is there" "$phasor" calibrate -o old.json
has err "old.json; --overwrite measures it anew" "a profile that is there"
expect 1 "too little memory" "$phasor" calibrate --devices cpu:2 -o box.json --memory 1MiB
has err "--memory: expected at least [0-9]* MiB to measure 2 devices, found 1024 KiB" "too little memory"
[ ! -e box.json ] && [ ! -e box.json.partial ] || fail "a refused calibration left a file"

# points FILE: how many it has
points() { { grep -o '\[[0-9]' "$1" 2>/dev/null || true; } | wc -l; }

# ---- stopped and gone on with; killed and gone on with
# stopped SIGNAL CODE COUNT: once more than COUNT points are kept
more_points() { [ "$(points box.json.partial)" -gt "$1" ]; }
stopped() {
    # A background job of a script ignores SIGINT, unless it is told not to.
    env --default-signal=INT "$phasor" calibrate --devices cpu:2 -o box.json --memory 512MiB >out 2>err </dev/null &
    local pid=$! code
    until_ready $pid more_points "$3"
    kill "-$1" $pid
    wait $pid 2>/dev/null
    code=$?
    [ "$code" -eq "$2" ] || fail "$1: exit code $code, expected $2"
    [ "$(points box.json.partial)" -gt "$3" ] || fail "$1: no more than $3 points were kept"
    [ ! -e box.json ] || fail "$1: a profile was written"
    [ ! -e box.json.partial-read ] || fail "$1: the file that is read was left"
}
stopped INT 130 2
has err "the same command goes on with what box.json.partial has" "SIGINT"
first=$(points box.json.partial)
stopped KILL 137 "$first"
second=$(points box.json.partial)
stopped TERM 143 "$second"

# ---- how long it takes, on a terminal
python3 -c "$on_terminal" drawn "$phasor" calibrate --devices cpu:2 -o drawn.json --memory 512MiB >out 2>err &
pid=$!
until_ready $pid grep -q "calibrate: .*\[[0-9:]*<[0-9:?]*\] " drawn || fail "on a terminal: no time that is left is told"
kill -TERM $pid
wait $pid
[ $? = 143 ] || fail "on a terminal: exit code"

# ---- another box
"$phasor" calibrate --devices cpu:3 -o box.json --memory 640MiB >out 2>err </dev/null &
pid=$!
until_ready $pid grep -q "not gone on with" err
kill -TERM $pid
wait $pid
has err "warning: box.json.partial is not gone on with: .*2 ranks, here there are 3" "another box"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
