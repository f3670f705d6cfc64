#!/usr/bin/env bash
# phasor replay as a user meets it.
# Usage: test_replay.sh PHASOR MODEL EXAMPLE_RECORDING
set -u
phasor=$1
model=$2
example=$(realpath "$3")
source "$(dirname "$0")/tools.sh"

"$example" r.bin || exit 1

# ---- reports
expect 0 "as recorded" "$phasor" replay r.bin
silent err "as recorded"
has out "^as recorded" "as recorded"
has out "^time" "as recorded"; has out "critical path" "as recorded"; has out "  attention" "as recorded"
expect 0 "a box by name" "$phasor" replay r.bin --box h200x2
has out "^replay *h200x2: 2 H200" "a box by name"; has out "  nvlink0 " "a box by name"
has out "tokens a second" "a box by name"; has out "^plan *dp2|ep2" "a box by name"
expect 0 "--modelled" "$phasor" replay r.bin --box h200x2 --modelled
has out "^modelled" "--modelled"
expect 0 "--scale" "$phasor" replay r.bin --box h200x2 --scale
has out "decode are not valid" "--scale"; has out "^links .* of the box's" "--scale"
expect 0 "--json" "$phasor" replay r.bin --box h200x2 --json
has out '"label":"replay"' "--json"; has out '"phases":{"prefill":{' "--json"; lines out 1 "--json"
cp out first
expect 0 "again" "$phasor" replay r.bin --box h200x2 --json
cmp -s out first || fail "the same replay says something else"
sed 's/"h200x2"/"mine"/' "$(dirname "$phasor")/share/phasor/boxes/h200x2.json" >mine.json
expect 0 "a box of a file" "$phasor" replay r.bin --box mine.json
has out "^replay *mine:" "a box of a file"
expect 0 "a box of a path" "$phasor" replay r.bin --box ./mine.json

# ---- a part of a run
has first '"partial":false' "a whole run"
"$example" part.bin 3 || exit 1
expect 0 "a part" "$phasor" replay part.bin
has out "^note .*part of a run.* had done 3 of its 4 rows" "a part"
expect 0 "a part, --json" "$phasor" replay part.bin --json
has out '"partial":true,"notes":\["the recording is of a part of a run' "a part, --json"

# ---- what it says of itself, in whatever the reader takes
"$example" nul.bin '{"model": "a\u0000b", "plan": "tp2"}' || exit 1
expect 0 "a NUL" "$phasor" replay nul.bin
has out "^model *a$" "a NUL"; has out "^time *[1-9]" "a NUL"
"$example" deep.bin "{\"a\": $(printf '[%.0s' {1..2047})$(printf ']%.0s' {1..2047})}" || exit 1
expect 1 "as deep as can be" "$phasor" replay deep.bin
has err "answer is not the JSON that it should be: maximum parsing depth" "as deep as can be"; silent out "as deep as can be"

# ---- the trace
expect 0 "--trace" "$phasor" replay r.bin --box h200x2 --trace t.json
has t.json '"program":"phasor replay"' "--trace"; has t.json '"ph":"X"' "--trace"
expect 0 "--trace over an old one" "$phasor" replay r.bin --box h200x2 --modelled --trace t.json
has t.json '"times":"modelled"' "--trace over an old one"
echo mine >notes
expect 2 "--trace over another's file" "$phasor" replay r.bin --trace notes
has notes mine "--trace over another's file"
cp r.bin keep
expect 2 "--trace over the recording" "$phasor" replay r.bin --trace r.bin
cmp -s r.bin keep || fail "the recording was overwritten"
expect 1 "--trace into no folder" "$phasor" replay r.bin --trace no/such/folder/t.json

# ---- mistakes
expect 2 "no recording" "$phasor" replay
has err "RECORDING is missing" "no recording"
expect 1 "a missing file" "$phasor" replay none.bin
has err "none.bin" "a missing file"; silent out "a missing file"
expect 2 "an unknown box" "$phasor" replay r.bin --box a6001x4
has err 'there is no "a6001x4"; known are a100x4, a100x8, .* and v100x8' "an unknown box"
lines err 2 "an unknown box"
expect 1 "a missing box file" "$phasor" replay r.bin --box none.json
has err "none.json" "a missing box file"
echo '{"format": "phasor box"}' >torn.json
expect 1 "a box file that is none" "$phasor" replay r.bin --box torn.json
has err "torn.json" "a box file that is none"
expect 2 "another number of ranks" "$phasor" replay r.bin --box a6000x4
has err "2" "another number of ranks"; has err "4" "another number of ranks"
for length in 0 7 100 300; do
    head -c $length r.bin >torn.bin
    expect 1 "a recording of $length bytes" "$phasor" replay torn.bin
    has err "torn.bin" "a recording of $length bytes"
done
head -c -1 r.bin >torn.bin
expect 1 "a recording that lacks a byte" "$phasor" replay torn.bin
{ head -c 120 r.bin; printf 'X'; tail -c +122 r.bin; } >bent.bin
expect 1 "a recording with another byte" "$phasor" replay bent.bin
has err "bent.bin" "a recording with another byte"
expect 1 "a file that is no recording" "$phasor" replay mine.json
expect 2 "--modelled without a box" "$phasor" replay r.bin --modelled
has err "needs a --box" "--modelled without a box"
expect 2 "--scale without a box" "$phasor" replay r.bin --scale
expect 2 "--without-host alone" "$phasor" replay r.bin --box h200x2 --without-host
has err "goes with --modelled" "--without-host alone"
expect 0 "--without-host" "$phasor" replay r.bin --box h200x2 --modelled --without-host
has out "what the host did takes no time" "--without-host"
expect 2 "--scale with --modelled" "$phasor" replay r.bin --box h200x2 --scale --modelled
expect 2 "two recordings" "$phasor" replay r.bin r.bin

exit $((failures > 0))
