#!/usr/bin/env bash
# Interrupted runs as a user meets them: signals, kill -9, --resume, a second run on one output.
# Usage: test_resume.sh PHASOR MODEL
set -u
phasor=$1
model=$2
source "$(dirname "$0")/tools.sh"
whole() { [ -z "$(tail -c 1 "$1")" ] || fail "$2: the last line of $1 is not whole"; }

# Waits until FILE holds something.
filled() {
    for _ in $(seq 600); do
        [ -s "$1" ] && return
        sleep 0.05
    done
    fail "nothing came to $1"
}

rows() { # rows FIRST LAST TOKENS
    for i in $(seq "$1" "$2"); do
        printf '{"custom_id":"r%d","method":"POST","url":"/v1/completions",' "$i"
        printf '"body":{"prompt":"In the beginning","max_tokens":%d}}\n' "$3"
    done
}

# Every custom_id once, and the same answers as an undisturbed run's, but for when it began.
bodies() { sed 's/"created":[0-9]*/"created":0/' "$@" | sort; }
same() { bodies "$1" | cmp -s - whole.sorted || fail "$2: $1 differs from the undisturbed run"; }

run=("$phasor" run "$model" --deterministic --max-num-seqs 4)
{ rows 1 200 20; echo 'no json'; rows 1 1 5; } >in
expect 3 "undisturbed" "${run[@]}" -i in -o whole
bodies whole >whole.sorted
lines whole.sorted 202 "undisturbed"

# ---- signals
for signal in INT:130 TERM:143; do
    code=${signal#*:} name="SIG${signal%:*}"
    rm -f o o.phasor-run
    # A background job of a script ignores SIGINT, unless it is told not to.
    env --default-signal=INT "${run[@]}" -i in -o o >out 2>err </dev/null &
    pid=$!
    filled o
    kill "-${signal%:*}" $pid
    wait $pid
    [ $? -eq "$code" ] || fail "$name: another exit code"
    whole o "$name"
    has err "resume runs the rest" "$name"
    expect 1 "$name, without --resume" "${run[@]}" -i in -o o
    has err "--resume" "$name, without --resume"
    expect 3 "$name, resumed" "${run[@]}" -i in -o o --resume
    has err "done before" "$name, resumed"
    same o "$name"
    expect 3 "$name, finished" "${run[@]}" -i in -o o --resume
    has err "finished already" "$name, finished"
done

# A second signal does not wait for rows in flight.
rows 1 4 7000 >long
SECONDS=0
"$phasor" run "$model" -i long -o o2 --ignore-eos >out 2>err </dev/null &
pid=$!
sleep 1; kill -TERM $pid
sleep 2.5; kill -TERM $pid
wait $pid 2>/dev/null
[ $? -eq 143 ] || fail "a second signal: another exit code"
[ $SECONDS -lt 9 ] || fail "a second signal: it took $SECONDS s"
has err "another signal stops at once" "a second signal"

# ---- standard input, while nothing comes from it
mkfifo pipe
sleep 60 >pipe & feeder=$!
expect 130 "a signal while input is awaited" timeout --preserve-status -s INT 4 \
    bash -c "exec '$phasor' run '$model' -i - -o o3 <pipe"
has err "stopped before it began" "a signal while input is awaited"
[ ! -e o3 ] || fail "a run that did not begin made an output"
kill $feeder

# ---- kill -9, and a second run
rm -f o o.phasor-run
for n in 1 2 3 4; do
    size=$(stat -c %s o 2>/dev/null || echo 0)
    "${run[@]}" -i in -o o --error-file e --resume >out 2>err </dev/null &
    pid=$!
    for _ in $(seq 600); do
        [ "$(stat -c %s o 2>/dev/null || echo 0)" -gt $((size + 1000)) ] && break
        sleep 0.02
    done
    if [ $n -eq 1 ]; then
        mv out out.1; mv err err.1
        expect 1 "a second run" "${run[@]}" -i in -o o --error-file e --resume
        has err "another run is writing" "a second run"
        expect 1 "a second run that overwrites" "${run[@]}" -i in -o o --error-file e --overwrite
        has err "another run is writing" "a second run that overwrites"
    fi
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    printf '{"id":"batch_req_0123' >>o # the half of a line
done
expect 3 "after kill -9" "${run[@]}" -i in -o o --error-file e --resume
lines o 200 "after kill -9"; lines e 2 "after kill -9"
cat o e >both
same both "after kill -9"

# Input from a pipe can be resumed, too: it must be the same.
expect 3 "a pipe" bash -c "cat in | '$phasor' run '$model' --deterministic -i - -o o4"
head -c 30000 o4 >o5; mv o5 o4
expect 3 "a pipe, resumed" bash -c "cat in | '$phasor' run '$model' --deterministic -i - -o o4 --resume"
same o4 "a pipe, resumed"
expect 1 "another pipe" bash -c "echo | '$phasor' run '$model' --deterministic -i - -o o4 --resume"
has err "the input file" "another pipe"

# ---- mistakes
expect 2 "--resume --overwrite" "${run[@]}" -i in -o o --resume --overwrite
expect 2 "--resume with a prompt" "$phasor" run "$model" -p x --resume
expect 1 "--resume to standard output" "${run[@]}" -i in -o - --resume
has err "standard output" "--resume to standard output"
expect 1 "another seed" "${run[@]}" -i in -o o --error-file e --resume --seed 7
has err "--seed" "another seed"
rm o.phasor-run
expect 1 "no record" "${run[@]}" -i in -o o --error-file e --resume
has err "o.phasor-run" "no record"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
