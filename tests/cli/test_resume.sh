#!/usr/bin/env bash
# Interrupted runs as a user meets them: signals, kill -9, --resume, a second run on one output.
# Usage: test_resume.sh PHASOR MODEL
set -u
phasor=$1
model=$2
source "$(dirname "$0")/tools.sh"
whole() { [ -z "$(tail -c 1 "$1")" ] || fail "$2: the last line of $1 is not whole"; }

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

# ---- signals. Where the machine is busy a run may be over before its signal comes: then it is begun
# anew.
for signal in INT:130 TERM:143; do
    code=${signal#*:} name="SIG${signal%:*}"
    for _ in $(seq 20); do
        rm -f o o.phasor-run
        # A background job of a script ignores SIGINT, unless it is told not to.
        env --default-signal=INT "${run[@]}" -i in -o o >out 2>err </dev/null &
        pid=$!
        until_ready $pid [ -s o ]
        kill "-${signal%:*}" $pid
        wait $pid
        ended=$?
        [ $ended -eq 3 ] || break
    done
    [ $ended -eq "$code" ] || fail "$name: exit code $ended"
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

# A second signal does not wait for rows in flight; behind the first they have ten seconds, so that it
# may come too late.
rows 1 4 7000 >long
for _ in $(seq 20); do
    "$phasor" run "$model" -i long -o o2 --ignore-eos --overwrite >out 2>err </dev/null &
    pid=$!
    until_ready $pid [ -e o2 ]
    kill -TERM $pid
    until_ready $pid grep -q "another signal stops at once" err
    sleep 1.1; kill -TERM $pid
    wait $pid 2>/dev/null
    code=$?
    grep -q "not run" err || break
done
[ $code -eq 143 ] || fail "a second signal: exit code $code"
has err "another signal stops at once" "a second signal"
grep -q "not run" err && fail "a second signal: it waited for rows in flight"

# ---- standard input, while nothing comes from it
mkfifo pipe
sleep 1000 >pipe & feeder=$!
env --default-signal=INT "$phasor" run "$model" -i - -o o3 <pipe >out 2>err &
pid=$!
until_ready $pid catches $pid 2
kill -INT $pid
wait $pid
code=$?
[ $code -eq 130 ] || fail "a signal while input is awaited: exit code $code"
has err "stopped before it began" "a signal while input is awaited"
[ ! -e o3 ] || fail "a run that did not begin made an output"
kill $feeder

# ---- kill -9, and a second run while the first is there, stopped. Here, too, a run may be over first.
rm -f o o.phasor-run
size_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
grown() { [ "$(size_of o)" -gt "$1" ]; }
kills=0
for _ in $(seq 20); do
    size=$(size_of o)
    "${run[@]}" -i in -o o --error-file e --resume >out 2>err </dev/null &
    pid=$!
    until_ready $pid grown $((size + 1000))
    kill -STOP $pid 2>/dev/null
    if [ "$(wc -l <o)" -eq 200 ]; then
        kill -KILL $pid 2>/dev/null
        wait $pid 2>/dev/null
        [ $kills -eq 0 ] || break
        rm -f o e o.phasor-run
        continue
    fi
    if [ $kills -eq 0 ]; then
        mv out out.1; mv err err.1
        expect 1 "a second run" "${run[@]}" -i in -o o --error-file e --resume
        has err "another run is writing" "a second run"
        expect 1 "a second run that overwrites" "${run[@]}" -i in -o o --error-file e --overwrite
        has err "another run is writing" "a second run that overwrites"
    fi
    kill -KILL $pid
    wait $pid 2>/dev/null
    printf '{"id":"batch_req_0123' >>o # the half of a line
    kills=$((kills + 1))
    [ $kills -lt 4 ] || break
done
[ $kills -gt 0 ] || fail "nothing was killed"
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
head -c 30000 o4 >o5; mv o5 o4
{ echo "no row"; cat in; } >longer
expect 3 "what is left of a file, resumed" bash -c \
    "{ read -r _; '$phasor' run '$model' --deterministic -i - -o o4 --resume; } <longer"
same o4 "what is left of a file, resumed"

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
