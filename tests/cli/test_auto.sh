#!/usr/bin/env bash
# phasor run --plan auto as a user meets it: profiles that fit, are missing, foreign, stale or broken; and
# resumed runs. The profiles are examples whose rates say which plan is the fastest.
# Usage: test_auto.sh PHASOR MODEL EXAMPLE_PROFILE
set -u
phasor=$1
model=$2
example=$(realpath "$3")
source "$(dirname "$0")/tools.sh"

rows() { # rows COUNT
    for i in $(seq "$1"); do
        printf '{"custom_id":"r%d","method":"POST","url":"/v1/completions",' "$i"
        printf '"body":{"prompt":"In the beginning was the word %d","max_tokens":%d}}\n' "$i" $((10 + i))
    done
}
rows 12 >in
run=("$phasor" run "$model" --devices cpu:2 --memory 512MiB -i in)
plan_of() { jq -r .plan "$1"; }
answers() { jq -cS '[.custom_id, .response.body.choices]' "$1" | sort; }

# ---- what no profile says
expect 0 "no profile" "${run[@]}" -o none --summary-file none.json
has err "^note: plan: static tensor parallelism, .*phasor calibrate --devices cpu:2, once" "no profile"
[ "$(grep -c '^note' err)" -eq 1 ] || fail "no profile: not one note"
[ "$(plan_of none.json)" = "tp2|tp2" ] || fail "no profile: another plan than static TP"
jq -e 'has("predicted_prefill_s") | not' none.json >/dev/null || fail "no profile: a prediction"
expect 0 "no profile, threads" "${run[@]}" -o threads --threads 3
has err "calibrate --devices cpu:2 --threads 3, once" "no profile, threads"
expect 0 "one rank" "$phasor" run "$model" -i in -o one
! grep -q "plan" err || fail "one rank: a word of plans"
answers none >answers

# ---- how often experts were chosen
expect 0 "counted" "${run[@]}" -o counted --routing-counts counts.json
jq -e '.tokens > 100 and (.layers | length) > 0' counts.json >/dev/null || fail "counted: no counts"
answers counted | cmp -s - answers || fail "counted: other answers"
jq -c '.tokens = 100000' counts.json >many.json
jq -c '.tokens = 10' counts.json >few.json
expect 0 "counts, no profile" "${run[@]}" -o o.counts --routing many.json
has err "^warning: --routing many.json is not used" "counts, no profile"
expect 2 "few counts" "${run[@]}" -o few --routing few.json
has err "few.json was counted over 10 tokens" "few counts"
expect 1 "no counts" "${run[@]}" -o none.counts --routing absent.json
has err "absent.json" "no counts"
expect 2 "counts in and out" "${run[@]}" -o o.both --routing many.json --routing-counts ./many.json
has err "--routing-counts would replace" "counts in and out"
expect 2 "counts of a plan that is named" "${run[@]}" -o o.named --plan static --routing many.json

# ---- one that fits
"$example" gathers.json 2 gather=1e6 # what gathers is slow
"$example" exchanges.json 2 exchange=1e5
"$example" cache 2 gather=1e6
expect 0 "in the cache" "${run[@]}" -o auto -v --summary-file auto.json
has err "^note: plan: .*: predicted prefill [0-9.e-]* s, decode [0-9.e-]* s.* times as fast as static" "in the cache"
has err "^predicted prefill .* s (measured .* s, .*x), decode .* (measured .* s, .*x)" "in the cache"
first=$(plan_of auto.json)
[ "$first" != "tp2|tp2" ] || fail "in the cache: slow gathers, and still static TP"
jq -e '.predicted_prefill_s > 0 and .predicted_decode_s > 0 and .predicted_between_s >= 0' auto.json >/dev/null ||
    fail "in the cache: no prediction in the summary"
[ "$(plan_of auto.phasor-run)" = "$first" ] || fail "in the cache: another plan in the record"
answers auto | cmp -s - answers || fail "in the cache: other answers"

# What phasor plan says of the same rows; the note has their means.
read -r sequences output < <(sed -n 's/^note: planned for \([0-9]*\) sequences of [0-9]* prompt and \([0-9]*\) output.*/\1 \2/p' err)
[ "$sequences" = 12 ] && [ "$output" = 17 ] || fail "the load: $sequences sequences, $output output tokens"
for with in gathers exchanges gathers:int4 exchanges:int4; do
    profile=${with%:*} flags=() native=(--policy exact)
    [ $with = $profile ] || flags=(--expert-dtype int4) native=()
    expect 0 "$with" "${run[@]}" -o $with --profile $profile.json --summary-file $profile.s "${flags[@]}"
    expect 0 "$with, phasor plan" "$phasor" plan "$model" --box $profile.json --json \
        -i in --memory 256MiB "${flags[@]}" "${native[@]}"
    jq -e --slurpfile s $profile.s '.plans[.best] as $b | $s[0] |
           .plan == $b.plan and (.transition // "none") == $b.way and
           (.predicted_prefill_s / $b.prefill_s - 1 | fabs) < 1e-9 and
           (.predicted_decode_s / $b.decode_s - 1 | fabs) < 1e-9' out >/dev/null ||
        fail "$with: the run is by another plan than phasor plan tells"
done
[ "$(plan_of gathers.s)" != "$(plan_of exchanges.s)" ] || fail "two profiles, one plan"

# Prompts of rows that begin alike, as a run computes them: once, or each.
for i in $(seq 12); do
    printf '{"custom_id":"r%d","method":"POST","url":"/v1/completions","body":{"max_tokens":9,"prompt":[' "$i"
    seq -s, 2 301
    printf ',%d]}}\n' "$i"
done | sed -z 's/\n,/,/g' >questions
asked=("$phasor" run "$model" --devices cpu:2 --memory 512MiB -i questions --profile gathers.json -v)
for sharing in "" --no-prefix-sharing; do
    expect 0 "questions $sharing" "${asked[@]}" -o questions.out --overwrite --summary-file questions.s $sharing
    expect 0 "questions $sharing, phasor plan" "$phasor" plan "$model" --box gathers.json --json --policy exact \
        -i questions $sharing --memory 256MiB
    jq -e --slurpfile s questions.s '.plans[.best] as $b | $s[0] | .plan == $b.plan and
           (.predicted_prefill_s / $b.prefill_s - 1 | fabs) < 1e-9' out >/dev/null ||
        fail "questions $sharing: the run is by another plan than phasor plan tells"
    [ "$(jq .load.shared_tokens out)" = "$([ -z "$sharing" ] && echo 235 || echo 0)" ] ||
        fail "questions $sharing: $(jq .load.shared_tokens out) tokens are shared"
done

expect 0 "--plan static" "${run[@]}" -o static --plan static --summary-file static.json
[ "$(plan_of static.json)" = "tp2|tp2" ] || fail "--plan static: another plan"
silent out "--plan static"
expect 0 "a way of one's own" "${run[@]}" -o way --transition reshard --profile exchanges.json --summary-file way.json
jq -e '(.transition // "reshard") == "reshard"' way.json >/dev/null || fail "a way of one's own: another"
expect 0 "recorded" "${run[@]}" -o recorded --record run.rec
has err "^note: plan: .*predicted" "recorded"
! grep -q "^predicted" err || fail "recorded: ranks one at a time against a prediction"
expect 0 "a prompt" "$phasor" run "$model" --devices cpu:2 -p "In the beginning" -n 4
has err "^note: plan: .*predicted" "a prompt"
expect 0 "from a pipe" bash -c "cat in | '$phasor' run '$model' --devices cpu:2 -i - -o piped"
answers piped | cmp -s - answers || fail "from a pipe: other answers"
has err "^predicted prefill" "from a pipe"
{ echo "no row"; cat in; } >longer
expect 0 "what is left of a file" bash -c "{ read -r _; '$phasor' run '$model' --devices cpu:2 -i - -o left; } <longer"
answers left | cmp -s - answers || fail "what is left of a file: other answers"
has err "^predicted prefill" "what is left of a file"
echo '{}' >wrong
expect 3 "no row that can be run" "$phasor" run "$model" --devices cpu:2 -i wrong -o wrong.out
! grep -q "predicted" err || fail "no row that can be run: a prediction"

"$example" empty.json 2
jq '.collectives = []' empty.json >none.json
expect 0 "a profile of no collective" "${run[@]}" -o untimed --profile none.json
has err "^warning: the profile has no times for any plan that fits; .*--overwrite.*; static tensor parallelism is tried$" "a profile of no collective"
jq '.work |= map(select(.dtype != "float32" or .kind == "rows"))' empty.json >measured.json # as a calibration does
expect 0 "no times of float32" "${run[@]}" -o single --profile measured.json --dtype float32
has err "^warning: the profile has no times for float32 weights: .*--dtype bfloat16" "no times of float32"
! grep -q "overwrite" err || fail "no times of float32: to calibrate anew would not help"
expect 0 "no times of float32, phasor plan" "$phasor" plan "$model" --box measured.json --dtype float32 --all
has out "^The profile has no times for float32 weights: phasor calibrate measures bfloat16" "no times of float32, phasor plan"
has out "unknown: the box's profile has no times for float32 weights$" "no times of float32, phasor plan"
jq 'del(.rates.host_to_device)' gathers.json >uncopied.json
expect 0 "no rate of copies" "${run[@]}" -o uncopied --profile uncopied.json
has err "^warning: the profile has no times for copies from the host to the devices (host_to_device); .*--overwrite.*; static tensor parallelism is tried$" "no rate of copies"
expect 0 "no rate of copies, phasor plan" "$phasor" plan "$model" --box uncopied.json --all
has out "unknown: the box's profile has no times for copies from the host to the devices (host_to_device)$" "no rate of copies, phasor plan"
! grep -q "^tp2|tp2 .* [0-9.e+]* s" out || fail "no rate of copies, phasor plan: seconds all the same"
jq 'del(.rates.repack, .rates.check)' gathers.json >unpacked.json
expect 0 "no rate of packing" "$phasor" plan "$model" --box unpacked.json --all
has out " reload *unknown: the box's profile has no times for packing what is read of a checkpoint (repack)$" "no rate of packing"
has out " upload *unknown: the box's profile has no times for checking what is read of a backup (check)$" "no rate of packing"
expect 1 "a profile that is not there" "${run[@]}" -o absent --profile absent.json
has err "--profile: .*absent.json.*phasor calibrate --devices .*-o absent.json makes one" "a profile that is not there"

# Where memory is short a plan is not chosen that the run then has no room for.
for mebibytes in 44 48 52 56 64 72 80 88 96; do
    short=("$phasor" run "$model" --devices cpu:2 --memory ${mebibytes}MiB -i in --overwrite -o short)
    "${short[@]}" --plan static 2>err || continue
    for profile in gathers exchanges; do
        "${short[@]}" --profile $profile.json 2>err || fail "$profile in $mebibytes MiB: $(tail -1 err)"
    done
done

# The cures of phasor plan are a run's, too.
tight=("$phasor" run "$model" --devices cpu:2 --memory 64MiB --max-num-seqs 16 -i in --profile exchanges.json
    --overwrite -o tight)
# Passes are what leaves room, where nobody says.
expect 0 "passes that fit" "${tight[@]}"
has err "^note: plan: " "passes that fit"
expect 0 "nothing fits" "${tight[@]}" --max-num-batched-tokens 2048
has err "^warning: nothing fits: .* (.* experts, .* other weights, .* KV cache, .* activations); it would fit with" "nothing fits"
has err "or with --expert-dtype int4, in .*; static tensor parallelism is tried$" "nothing fits"
tokens=$(sed -n 's/^warning: nothing.*--max-num-batched-tokens \([0-9]*\) .*/\1/p' err)
[ "$(plan_of tight.phasor-run)" = "tp2|tp2" ] || fail "nothing fits: $(plan_of tight.phasor-run)"
for cure in "--max-num-batched-tokens $tokens" "--max-num-batched-tokens 2048 --expert-dtype int4"; do
    expect 0 "nothing fits but with $cure" "${tight[@]}" $cure
    has err "^note: plan: " "nothing fits but with $cure"
done
expect 1 "no cache" "${tight[@]}" --max-num-batched-tokens $tokens --kv-memory 64KiB
has err "^warning: --kv-memory 64 KiB holds no sequence of .*; static tensor parallelism is tried$" "no cache"

# ---- INT4: only with a backup, and not against the policy
"$example" int4.json 2 bytes=1e8 # weights are all that takes time
expect 0 "no backup" "${run[@]}" -o int4.1 --profile int4.json --summary-file int4.s
! plan_of int4.s | grep -q int4 || fail "no backup, and decode on INT4"
has err "int4 would be .* times as fast as that, .*phasor quantize" "no backup"
of_rows=("$phasor" plan "$model" --box int4.json --json --rows in --memory 256MiB)
runnable() { "${of_rows[@]}" | jq -r '.plans[.best_runnable].plan'; }
[ "$(runnable)" = "$(plan_of int4.s)" ] || fail "no backup: phasor plan says that $(runnable) is run"
expect 0 "a backup" "$phasor" quantize "$model" -q
expect 0 "with a backup" "${run[@]}" -o int4.2 --profile int4.json --summary-file int4.s
plan_of int4.s | grep -q int4 || fail "a backup, and decode on $(plan_of int4.s)"
[ "$(runnable)" = "$(plan_of int4.s)" ] || fail "with a backup: phasor plan says that $(runnable) is run"
has err "^note: decode runs on the experts of the INT4 backup, .*--policy exact forbids it" "with a backup"
named=("${run[@]}" --plan "dp2|ep2>tp2" --backup "$(ls "$PHASOR_CACHE"/*.backup)" --overwrite -o named)
expect 0 "a backup, auto" "${named[@]}"
! grep -q "without effect" err || fail "a backup, auto: it is without effect"
expect 0 "a backup, auto, deterministic" "${named[@]}" --deterministic
has err "^warning: --backup is without effect: with --deterministic" "a backup, auto, deterministic"
expect 0 "a backup, upload, deterministic" "${named[@]}" --deterministic --transition upload
! grep -q "without effect" err || fail "a backup, upload, deterministic: it is without effect"
expect 0 "a way that no INT4 comes by" "${run[@]}" -o int4.4 --profile int4.json --transition reshard
! grep -q "phasor quantize" err || fail "a way that no INT4 comes by: the cure is not one"

# ---- rows of different lengths
mixed() { # mixed COUNT LONG SHORT: every fourth is long
    for i in $(seq "$1"); do
        printf '{"custom_id":"r%d","method":"POST","url":"/v1/completions","body":{"prompt":[%d,2,3,4],' "$i" "$i"
        printf '"ignore_eos":true,"max_tokens":%d}}\n' $((i % 4 == 0 ? $2 : $3))
    done
}
mixed 32 240 20 >mixed
mixed 32 20 20 >alike
unplanned=("$phasor" run "$model" --devices cpu:2 --memory 512MiB --max-num-seqs 8)
mix=("${unplanned[@]}" --profile int4.json)
first_done() { head -"$2" "$1" | jq -r .custom_id | sort -V | tr '\n' ' '; }
expect 0 "waves" "${mix[@]}" -i mixed -o waves --transition upload
has err "^note: rows of like lengths run together, in 2 classes: predicted [1-9][0-9.]* times as fast" "waves"
[ "$(first_done waves 8)" = "r4 r8 r12 r16 r20 r24 r28 r32 " ] || fail "waves: first done are $(first_done waves 8)"
expect 0 "no waves" "${mix[@]}" -i mixed -o flow --transition keep --policy exact
has err "^note: rows with the longest answers are started first" "no waves"
[ "$(first_done flow 8)" = "r4 r8 r12 r16 r20 r24 r28 r32 " ] || fail "no waves: first done are $(first_done flow 8)"
lines flow 32 "no waves"
expect 0 "the same plan, named" "${unplanned[@]}" -i mixed -o file --plan "$(plan_of flow.phasor-run)"
answers file >file.answers
answers flow | cmp -s - file.answers || fail "no waves: other answers"
[ "$(first_done file 1)" = "r1 " ] || fail "a plan that is named: not in the order of the file"
# What a backup would gain is told with the classes that a run with it has.
aside=$(ls "$PHASOR_CACHE"/*.backup)
mv "$aside" aside.backup
expect 0 "waves, no backup" "${mix[@]}" -i mixed -o unbacked --transition upload
gain=$(sed -n 's/^note: .* would be \([0-9.]* times as fast\) as that, .*phasor quantize.*/\1/p' err)
mv aside.backup "$aside"
expect 0 "waves again" "${mix[@]}" -i mixed -o waves --overwrite --transition upload
has err "^note: plan: .*, ${gain:-none} as static tensor parallelism" "waves, no backup: told $gain"
# A backup that is checked, and a disk that is read, so slowly that a change of layout is worth it for long
# answers alone: the backup itself may be in memory.
"$example" slow.json 2 bytes=1e8 disk=3e6 check=1.5e6
mixed 30 240 20 >seven # whose wave would have room for one of the others
slow=("${unplanned[@]}" --profile slow.json -i seven --transition upload)
expect 0 "some stay" "${slow[@]}" -o stay --summary-file stay.json
has err "^note: rows of like lengths run together, in 2 classes, those of which a change of layout is not worth it decoded in prefill's: predicted" "some stay"
[ "$(first_done stay 7)" = "r4 r8 r12 r16 r20 r24 r28 " ] || fail "some stay: first done are $(first_done stay 7)"
jq -e '.transitions <= 2' stay.json >/dev/null || fail "some stay: $(jq .transitions stay.json) transitions"
answers stay >stay.answers
plan=$(plan_of stay.json)
expect 0 "all stay" "${unplanned[@]}" -i seven -o stayed --plan "${plan%>*}"
expect 0 "all change" "${unplanned[@]}" -i seven -o changed --plan "$plan" --transition upload
for i in $(seq 30); do
    answers $([ $((i % 4)) -eq 0 ] && echo changed || echo stayed) | grep "^\[\"r$i\","
done | sort | cmp -s - stay.answers || fail "some stay: other answers than with the plan of their class"
! answers changed | cmp -s - stay.answers || fail "some stay: what decodes on INT4 answers as what does not"
# A resumed run knows from its record which.
[ "$(jq -r .staying stay.phasor-run)" = "1,0;2" ] || fail "some stay: its record says $(jq -c .staying stay.phasor-run)"
for lines in 3 12; do
    head -$lines stay >part
    cp stay.phasor-run part.phasor-run
    expect 0 "some stay, resumed" "${unplanned[@]}" -i seven -o part --transition upload --resume
    answers part | cmp -s - stay.answers || fail "some stay, resumed behind $lines rows: other answers"
done
head -12 stay >part
expect 1 "some stay, resumed by a plan" "${unplanned[@]}" -i seven -o part --plan "$plan" --transition upload --resume
has err "which rows decode in prefill's layout" "some stay, resumed by a plan"
jq '.staying = "0,0,0,9"' stay.phasor-run >part.phasor-run
expect 1 "some stay, a record that is broken" "${unplanned[@]}" -i seven -o part --transition upload --resume
expect 0 "some stay, deterministic" "${slow[@]}" -o sure --deterministic --summary-file sure.json
! grep -q "decoded in prefill's" err || fail "--deterministic: some stay, and a resumed run knows of none"
(cat mixed; echo '{}') >mixed.wrong
expect 3 "waves, and a wrong row" "${mix[@]}" -i mixed.wrong -o waves.wrong --transition upload
has err "^note: rows of like lengths run together" "waves, and a wrong row"
lines waves.wrong 33 "waves, and a wrong row"
jq -c '.body.max_tokens = 20' mixed >level.ids
jq -c 'if (.custom_id[1:] | tonumber) % 4 == 0 then .body.prompt = [range(1; 200)] else . end' level.ids >level
expect 0 "answers alike" "${mix[@]}" -i level -o level.out --transition keep --policy exact
! grep -q "^note: rows" err || fail "answers alike: a word of their order"
[ "$(first_done level.out 1)" = "r1 " ] || fail "answers alike: first done is $(first_done level.out 1)"
expect 0 "alike" "${mix[@]}" -i alike -o alike.out --transition upload
! grep -q "^note: rows" err || fail "alike: a word of their order"

backup=$(ls "$PHASOR_CACHE"/*.backup)
cp "$backup" whole.backup
truncate -s -5000 "$backup"
expect 0 "a damaged backup" "${run[@]}" -o int4.5 --profile int4.json --summary-file int4.s
has err "^warning: the INT4 backup is left out: " "a damaged backup"
! plan_of int4.s | grep -q int4 || fail "a damaged backup, and decode on it"
cp whole.backup "$backup"
expect 0 "--policy exact" "${run[@]}" -o int4.3 --profile int4.json --summary-file int4.s --policy exact
! plan_of int4.s | grep -q int4 || fail "--policy exact, and decode on INT4"
! grep -q "without effect" err || fail "--policy exact, and a word of its being without effect"

# ---- those that do not fit
"$example" foreign.json 2 processor=Abacus
"$example" kernels.json 2 "kernels=cpu (stone)"
"$example" version.json 2 version=0.0.1
"$example" four.json 4
sed 's/"phasor_profile":1/"phasor_profile":2/; s/"phasor_profile": 1/"phasor_profile": 2/' gathers.json >later.json
static() { # static NAME FILE PATTERN
    expect 0 "$1" "${run[@]}" -o o.static --overwrite --profile "$2" --summary-file o.json
    has err "^warning: the profile $2 is $3.*static tensor parallelism, and phasor calibrate --devices cpu:2 -o $2 --overwrite" "$1"
    [ "$(plan_of o.json)" = "tp2|tp2" ] || fail "$1: another plan than static TP"
}
static "foreign" foreign.json 'foreign: .*processor "Abacus"'
static "other ranks" four.json 'foreign: .*4 ranks, here there are 2'
static "other kernels" kernels.json 'stale: .*kernels "cpu (stone)"'
static "another version" version.json 'stale: .*version of phasor "0.0.1"'
static "another format" later.json 'stale: .*format 2'
"$example" cache 2 version=0.0.1
expect 0 "stale in the cache" "${run[@]}" -o stale
has err "^warning: the profile .* is stale: .*phasor calibrate --devices cpu:2 --overwrite" "stale in the cache"
expect 0 "phasor plan by a foreign one" "$phasor" plan "$model" --box foreign.json
has err "^warning: the profile foreign.json is foreign: .*Abacus" "phasor plan by a foreign one"

# ---- those that are none
head -c 300 gathers.json >torn.json
expect 1 "torn" "${run[@]}" -o torn --profile torn.json
has err "torn.json.*it is no profile of phasor calibrate: give --profile what a calibration has finished" "torn"
lines err 1 "torn"
[ ! -e torn ] || fail "torn: a run was begun"
expect 1 "a box" "${run[@]}" -o torn --profile "$model/config.json"
expect 1 "missing" "${run[@]}" -o torn --profile missing.json
has err "missing.json" "missing"
"$example" cache 2
for file in "$PHASOR_CACHE"/profile-*.json; do echo '{"phasor_profile":1}' >"$file"; done
expect 1 "broken in the cache" "${run[@]}" -o torn
has err "$PHASOR_CACHE/profile-cpu2-.*--plan static" "broken in the cache"
expect 2 "--profile with a plan" "${run[@]}" -o torn --profile gathers.json --plan "tp2|tp2"
has err "profile is for --plan auto" "--profile with a plan"
rm -r "$PHASOR_CACHE"

# ---- rows with plans of their own: long answers want the one attention, long prompts the other
"$example" torn.json 2 gather=1e7 exchange=1e9 flops=1e8 bytes=1e7 call=1e-4
awk 'BEGIN { for (i = 0; i < 16; i++) {
    printf "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[%d", i, 100 + i
    for (t = 1; t < (i % 2 ? 400 : 4); t++) printf ",%d", 100 + (i * 31 + t * 7) % 900
    printf "],\"ignore_eos\":true,\"max_tokens\":%d}}\n", i % 2 ? 4 : 60 } }' >torn
parted=("$phasor" run "$model" --devices cpu:2 --max-num-seqs 8 -i torn --profile torn.json --policy exact)
expect 0 "in parts" "${parted[@]}" -o torn.out --summary-file torn.s --trace torn.trace --metrics-file torn.prom
has err "^note: plan: rows run in 2 parts, each under its own, .*: 8 of 4 prompt and 60 output tokens under tp2|tp2 in .* s, then 8 of 400 prompt and 4 output tokens under dp2|tp2 in .* s$" "in parts"
has err "^note: the next rows run under dp2|tp2: weights are loaded for it$" "in parts"
has err "^1 change of plan: [0-9.]* s in which weights were loaded anew$" "in parts"
has err "^predicted prefill .*, weights loaded between plans .* s (measured .* s)$" "in parts"
[ "$(plan_of torn.s)" = "tp2|tp2, then dp2|tp2" ] || fail "in parts: its summary says $(plan_of torn.s)"
has torn.prom 'plan="tp2|tp2, then dp2|tp2"' "in parts"
jq -e '.traceEvents | length > 100' torn.trace >/dev/null || fail "in parts: a trace of $(jq '.traceEvents | length' torn.trace) events"
answers torn.out >torn.answers
[ "$(wc -l <torn.answers)" -eq 16 ] || fail "in parts: $(wc -l <torn.answers) rows"
[ "$(head -8 torn.out | jq -r '.custom_id[1:] | tonumber % 2' | sort -u)" = 0 ] || fail "in parts: rows are mixed"
expect 0 "in parts, from a pipe" bash -c "cat torn | ${parted[*]@Q} -i - -o torn.piped"
answers torn.piped | cmp -s - torn.answers || fail "in parts, from a pipe: other answers"
for lines in 3 8 10; do # in either part, and between them, whatever the profile says by then
    head -$lines torn.out >part
    cp torn.out.phasor-run part.phasor-run
    expect 0 "in parts, resumed" "${parted[@]}" --profile gathers.json -o part --resume
    has err "^note: plan: tp2|tp2, then dp2|tp2, with which the run was begun$" "in parts, resumed"
    answers part | cmp -s - torn.answers || fail "in parts, resumed behind $lines rows: other answers"
done
head -10 torn.out >part
expect 1 "in parts, resumed by a plan" "${parted[@]:0:${#parted[@]}-4}" --plan "tp2|tp2" -o part --resume
has err "which rows run under which plan" "in parts, resumed by a plan"
jq '.parts.of[1].plan = "dp2"' torn.out.phasor-run >part.phasor-run
expect 1 "in parts, a record that is broken" "${parted[@]}" -o part --resume
has err "which rows run under which plan" "in parts, a record that is broken"
(cat torn; echo '{}') >torn.wrong
expect 3 "in parts, and a wrong row" "${parted[@]}" -i torn.wrong -o torn.some --error-file torn.errors
answers torn.some | cmp -s - torn.answers || fail "in parts, and a wrong row: other answers"
expect 0 "in parts, by phasor plan" "$phasor" plan "$model" --box torn.json -i torn --max-num-seqs 8 --policy exact
tr '\n' ' ' <out >flat
has flat "A run would be done 1\.[0-9]* times as fast as under .* for all rows, with plans for parts of them, one after another: 8 of 4 prompt and 60 output tokens under tp2|tp2 in .* s, then 8 of 400 prompt and 4 output tokens under dp2|tp2 in .* s; together .* s, .* s of that to load all weights in between\." "in parts, by phasor plan"
expect 0 "in parts, the page" "$phasor" plan "$model" --box torn.json -i torn --max-num-seqs 8 --policy exact --report torn.html
has torn.html "with plans for parts of them" "in parts, the page"
expect 0 "in parts, a queue" "$phasor" plan "$model" --box torn.json -i torn --max-num-seqs 8 --queue
! grep -q "for parts of them" out || fail "in parts, a queue: parts"
expect 0 "in parts, as JSON" "$phasor" plan "$model" --box torn.json -i torn --max-num-seqs 8 --policy exact --json
jq -e '.load | ([.parts[].total_s, .parts[].load_s] | add) / .in_parts_s - 1 | fabs < 1e-9' out >/dev/null ||
    fail "in parts, as JSON: $(jq -c '.load.parts, .load.in_parts_s' out)"
expect 0 "in parts, deterministic" "${parted[@]}" -o torn.sure --deterministic --summary-file torn.sure.s
plan_of torn.sure.s | grep -q then && fail "in parts, deterministic: $(plan_of torn.sure.s)"

# ---- resumed: the plan of then, whatever the profile says now
rows 40 >in
for way in "" --deterministic; do
    rm -f o o.phasor-run
    expect 0 "begun $way" "${run[@]}" -o o --profile exchanges.json $way
    cp o whole
    begun=$(plan_of o.phasor-run)
    for profile in gathers.json foreign.json missing.json; do
        head -n 7 whole >o
        expect 0 "resumed with $profile $way" "${run[@]}" -o o --resume --profile $profile --summary-file o.json $way
        has err "^note: plan: $begun.*, with which the run was begun" "resumed with $profile $way"
        has err "^warning: --profile $profile is not used: the plan stands in the record" "resumed with $profile $way"
        [ "$(plan_of o.json)" = "$begun" ] || fail "resumed with $profile $way: $(plan_of o.json), not $begun"
        jq -e 'has("predicted_prefill_s") | not' o.json >/dev/null || fail "resumed with $profile: a prediction of all rows"
        answers o | cmp -s - <(answers whole) || fail "resumed with $profile $way: other answers"
    done
done
# Passes are what was chosen then, too, and none is chosen where it is named.
head -n 7 whole >o
jq -c '.pass_tokens = 3000' o.phasor-run >record && mv record o.phasor-run
expect 0 "resumed in its passes" "${run[@]}" -o o --resume --deterministic --verbose
has err "^note: passes of 3000 tokens" "resumed in its passes"
# And so is the cache that the plan was priced with, where half of what is free is less, and both are less than
# 4096 sequences could use.
free=$(awk '/^MemAvailable/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
jq -e '.planned_cache_bytes > 0' o.phasor-run >/dev/null || fail "resumed in its cache: none is in the record"
for share in 0.1 0.7; do
    head -n 7 whole >o
    jq -c --argjson free "$free" ".planned_cache_bytes = (\$free * $share | floor)" o.phasor-run >record && mv record o.phasor-run
    expect 0 "resumed in its cache" "$phasor" run "$model" --devices cpu:2 -i in -o o --resume --deterministic --max-num-seqs 4096 --max-num-batched-tokens 4096 --summary-file "cache.$share"
done
more=$(jq -s '.[1].kv_cache_bytes / .[0].kv_cache_bytes > 1.2' cache.0.1 cache.0.7)
[ "$more" = true ] || [ "$free" -gt 100000000000 ] || fail "resumed in its cache: it is no larger"
head -n 7 whole >o
expect 0 "resumed in passes that are named" "${run[@]}" -o o --resume --deterministic --verbose --max-num-batched-tokens 1000
has err "^note: passes of 1000 tokens" "resumed in passes that are named"
head -n 7 whole >o
expect 0 "resumed with counts" "${run[@]}" -o o --resume --deterministic --routing many.json
has err "^warning: --routing many.json is not used: the plan stands in the record" "resumed with counts"
for counts in few.json:2 in:1 absent.json:1; do
    head -n 7 whole >o
    expect "${counts#*:}" "resumed with ${counts%:*}" "${run[@]}" -o o --resume --deterministic --routing "${counts%:*}"
    has err "${counts%:*}" "resumed with ${counts%:*}"
    lines o 7 "resumed with ${counts%:*}"
done
: >o # nothing is left of it: it begins anew
expect 0 "begun anew" "${run[@]}" -o o --resume --profile gathers.json --deterministic
[ "$(plan_of o.phasor-run)" != "$begun" ] || fail "begun anew: by the plan of then"
head -n 7 o >o.part; mv o.part o
echo '{"phasor_run":1,"plan":"tp9|tp9"}' >o.phasor-run
expect 1 "a record that is not the run's" "${run[@]}" -o o --resume --profile gathers.json
echo 'no record' >o.phasor-run
expect 1 "no record" "${run[@]}" -o o --resume --profile gathers.json
has err "o.phasor-run" "no record"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
