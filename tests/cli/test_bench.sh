#!/usr/bin/env bash
# phasor bench as a user meets it.
# Usage: test_bench.sh PHASOR MODEL EXAMPLE_PROFILE
set -u
phasor=$1
model=$2
example=$(realpath "$3")
boxes=$(realpath "$(dirname "$0")/../../boxes")
changes=$(realpath "$(dirname "$0")/../../bench/changes.py")
mixtral=$(realpath "$(dirname "$0")/../../bench/hap/mixtral-8x7b/config.json")
control=$(realpath "$(dirname "$0")/../../bench/control.py")
source "$(dirname "$0")/tools.sh"
mkdir temporary
export TMPDIR=$dir/temporary

"$example" two.json 2 bytes=1e8
bench=("$phasor" bench "$model" --devices cpu:2 --box two.json)
small=("${bench[@]}" --scenarios 16/4,24/8 --batch-sizes 2,4 -r 2)

# ---- what is asked
expect 2 "no devices" "$phasor" bench "$model"
has err "devices is missing" "no devices"
expect 1 "no profile" "$phasor" bench "$model" --devices cpu:2
has err "\"phasor calibrate --devices cpu:2\" makes it" "no profile"
for wrong in "--scenarios 16" "--scenarios 16/0" "--scenarios 16/4,16/4" "--scenarios 16/4," \
    "--batch-sizes 0" "--batch-sizes 2,2" "--modes fastest" "--modes hap,hap" "--repeats 0" "-o xml" \
    "--routing a.json,b.json" "--routing a.json," "--routing ,"; do
    # shellcheck disable=SC2086 # two words
    expect 2 "$wrong" "${bench[@]}" $wrong
    flag=${wrong%% *}
    has err "^phasor bench: ${flag/#-o/--output}: " "$wrong"
    silent out "$wrong"
done
expect 1 "a model twice" "${bench[@]}" "$model/" --scenarios 16/4 --batch-sizes 2
has err "is named twice" "a model twice"
expect 1 "a name that is no UTF-8" "$phasor" bench $'m\xff' --devices cpu:2 --box two.json --results never.jsonl
has err "no UTF-8" "a name that is no UTF-8"
[ ! -e never.jsonl ] || fail "a name that is no UTF-8: a file is left"
expect 2 "--resume alone" "${bench[@]}" --resume
expect 1 "no model" "$phasor" bench nowhere --devices cpu:2 --box two.json -q
has err nowhere "no model"
expect 1 "no model, results" "$phasor" bench nowhere --devices cpu:2 --box two.json --results never.jsonl
[ ! -e never.jsonl ] || fail "no model, results: a file is left"
for devices in cpu:4 nonsense cpu; do
    expect 1 "devices $devices" "$phasor" bench "$model" --devices $devices --box two.json --results never.jsonl
    has err "plans run with cpu:2; found $devices" "devices $devices"
    [ ! -e never.jsonl ] || fail "devices $devices: a file is left"
done

# ---- plans
expect 0 "plans" "${small[@]}" --plans-only --results plans.jsonl -o jsonl
silent err "plans"
lines out 36 "plans" # 4 loads, 9 modes
lines plans.jsonl 6 "plans"
"$phasor" report plans.jsonl | grep -q "times static TP" && fail "plans: times of what did not run"
jq -es 'map(.plan != null and .rounds == 0) | all' out >/dev/null || fail "plans: not all have one"
# Of a mode's definition what the planner's own table says.
"$phasor" plan "$model" --box two.json --batch-size 4 --prompt-len 24 --output-len 8 --json >table.json
"$phasor" plan "$model" --box two.json --batch-size 4 --prompt-len 24 --output-len 8 --policy exact --json >exact.json
jq -es --slurpfile t table.json --slurpfile e exact.json '
    $t[0] as $t | $e[0] as $e | [$t.plans[] | select(.verdict == "possible")] as $rows |
    def exact: (.plan | contains(":int4") | not) and .way != "upload";
    def of_hap: (.plan | contains(":int4") or contains(":rep") | not) and .way != "keep" and .way != "reload";
    def alone: .prefill_s + .transition_s + .decode_s;
    {"static-tp": $t.plans[$t.static_tp].total_s, "static-ep": $t.plans[$t.static_ep].total_s,
     "static-ep-dp": ([$rows[] | select(.plan == "dp2|ep2").total_s] | min),
     "best-attention": ([$rows[] | select(.plan == "tp2|tp2" or .plan == "tp2:rep|tp2" or .plan == "dp2|tp2").total_s] | min),
     "best-static": $t.plans[$t.best_static].total_s, "adaptive": $t.plans[$t.best].total_s,
     "adaptive-exact": $e.plans[$e.best].total_s,
     "hap": ([$rows[] | select(of_hap) | alone] | min),
     "static-tp-int4": ([$rows[] | select(.plan == "tp2|tp2>tp2:int4" and .way == "keep").total_s] | min)} as $least |
    [.[] | select(.kind == "cell" and .batch_size == 4 and .prompt_tokens == 24) | .plans[] as $plan |
        $plan.modes[] as $mode |
        ($rows[] | select(.plan == $plan.plan and .way == $plan.way)) as $row |
        ($mode == "static-tp-int4" and $row.plan != "tp2|tp2>tp2:int4" | not) and
        ($mode == "hap" and ($row | of_hap | not) | not) and
        ($mode == "adaptive-exact" and ($row | exact | not) | not) and
        (if $mode == "hap" then $row | alone else $row.total_s end) == $least[$mode]] |
    length == 9 and all' plans.jsonl >/dev/null || fail "plans: a mode has another plan than it should"
expect 0 "too long" "$phasor" bench "$model" --devices cpu:2 --box two.json --scenarios 100000/4 \
    --batch-sizes 2 --plans-only -o json
jq -e 'map(.plan == null and (.why | contains("context"))) | all' out >/dev/null || fail "too long: no reason"

# ---- how often experts were chosen: the planner is told
for excess in 0 0.9; do
    printf '{"format":"phasor-routing","version":1,"experts":8,"top_k":2,"tokens":1000000,"layers":[{},{},{},{},{},{}],
        "fullest_group":[{"groups":2,"excess":%s},{"groups":4,"excess":%s},{"groups":8,"excess":%s}]}' \
        $excess $excess $excess >"$excess.json"
    counted=("${bench[@]}" --scenarios 24/8 --batch-sizes 4 --routing "$excess.json")
    expect 0 "counts $excess" "${counted[@]}" --plans-only --results "counted$excess.jsonl"
    has out "plans [0-9a-f]* by .*, with experts chosen as counted in $excess.json\.$" "counts $excess"
    "$phasor" plan "$model" --box two.json --batch-size 4 --prompt-len 24 --output-len 8 --routing "$excess.json" --json >table.json
    jq -es --slurpfile t table.json '[.[] | select(.kind == "cell") | .plans[] | select(.modes | index("static-ep"))] |
        length == 1 and (.[0] | .predicted_prefill_s + .predicted_between_s + .predicted_decode_s) as $told |
        $t[0].plans[$t[0].static_ep].total_s / $told - 1 | fabs < 1e-9' "counted$excess.jsonl" >/dev/null ||
        fail "counts $excess: other times than phasor plan has"
done
cmp -s <(jq .plans counted0.jsonl) <(jq .plans counted0.9.jsonl) && fail "counts: the planner does not know"
ln -s "$model" other
expect 0 "counts of two models" "$phasor" bench "$model" other --devices cpu:2 --box two.json --scenarios 24/8 --batch-sizes 4 \
    --routing 0.json,0.9.json --plans-only --results counted2.jsonl
cmp -s <(jq '.plans | arrays' counted2.jsonl) <(jq '.plans | arrays' counted0.jsonl counted0.9.jsonl) ||
    fail "counts of two models: not each its own"
sed 's/"experts":8/"experts":60/' 0.json >60.json
expect 1 "counts of another model" "${bench[@]}" --routing 60.json --results never.jsonl
has err "60.json was counted with a model" "counts of another model"
[ ! -e never.jsonl ] || fail "counts of another model: a file is left"
expect 1 "counts, go on with others" "${bench[@]}" --scenarios 24/8 --batch-sizes 4 --routing 0.json --plans-only \
    --results counted0.9.jsonl --resume
expect 0 "counts, go on" "${counted[@]}" --plans-only --results counted0.9.jsonl --resume
expect 0 "counts, the page" "$phasor" report counted0.9.jsonl -o counted.html
has counted.html "--routing 0.9.json --scenarios" "counts, the page"
expect 1 "no counts" "${bench[@]}" --routing absent.json --results never.jsonl
has err "absent.json" "no counts"
[ ! -e never.jsonl ] || fail "no counts: a file is left"

# ---- runs
expect 0 "runs" "${small[@]}" --results runs.jsonl -o json
jq -es 'def runs: map(select(.kind == "run")); def cells: map(select(.kind == "cell"));
    (runs | length) == 2 * (cells | map(.plans | length) | add) and
    (runs | map(.total_s > 0 and .total_input_tokens == .batch_size * .prompt_tokens and
                .total_output_tokens == .batch_size * .output_tokens and .clock == "wall" and
                .collective_bytes > 0 and ([.collectives[]] | add) == .collective_bytes) | all) and
    (runs | group_by([.plan, .way, .prompt_tokens, .batch_size, .round]) | map(length == 1) | all)' \
    runs.jsonl >/dev/null || fail "runs: not every plan of every load in every round"
# The table again, from the runs.
jq -e --slurpfile lines runs.jsonl '
    def near($x): . / $x - 1 | fabs < 1e-6;
    ($lines | map(select(.kind == "run"))) as $runs |
    map(. as $row | [$runs[] | select(.prompt_tokens == $row.prompt_tokens and .batch_size == $row.batch_size)] as $of |
        ($lines[] | select(.kind == "cell" and .prompt_tokens == $row.prompt_tokens and .batch_size == $row.batch_size)
                  | .planning_s) as $planning |
        [$of[] | select(.plan == $row.plan and .way == $row.way) | .total_s] as $own |
        [$of[] | select(.plan == "tp2|tp2") | .total_s] as $tp |
        (if $row.plan != "tp2|tp2" and ($row.mode == "hap" or ($row.mode | startswith("best-")) or
            ($row.mode | startswith("adaptive"))) then $planning else 0 end) as $more |
        ($own | length) == 2 and ($tp | length) == 2 and $row.rounds == 2 and
        (.total_s.median | near(($own | add) / 2 + $more)) and
        (.against_static_tp | near($tp[0] / ($own[0] + $more) * $tp[1] / ($own[1] + $more) | sqrt)) and
        .against_static_tp_low <= .against_static_tp and .against_static_tp <= .against_static_tp_high) |
    length == 36 and all' out >/dev/null || fail "runs: the table is not that of the runs"
[ -z "$(ls -A temporary)" ] || fail "runs: something stays in TMPDIR"
# Memory is counted for each model, also while others are open; with a limit none is.
jq -es 'map(select(.kind == "run")) | group_by(.plan) | map(map(.peak_bytes) | max) | unique | length > 2' \
    runs.jsonl >/dev/null || fail "runs: memory of all plans is the same"
expect 0 "with a limit" "${bench[@]}" --scenarios 16/4 --batch-sizes 2 -r 2 --memory 64MB -o json
jq -e 'map(.rounds == 2 and .failures == 0) | all' out >/dev/null || fail "with a limit: some runs failed"
# Each plan has the room that it was priced with, as if --plan auto had chosen it: here what reads ahead as much as beside
# a cache that is named, more than a layer and not all.
"$example" reads.json 2 bytes=1e8 gather=1e6 exchange=1e7 disk=1e10 check=1e11
reads=("$phasor" bench "$model" --devices cpu:2 --box reads.json --batch-sizes 4 --modes hap -v)
expect 0 "room" "${reads[@]}" --scenarios 24/8 -r 1 --memory 28MiB --results room.jsonl
mv err room.err
jq -r 'select(.kind == "cell").plans[0] | "\(.plan) \(.way) \(.wave) \(.pass_tokens) \(.kv_cache // 0)"' room.jsonl >room
read -r plan way wave pass_tokens kv_cache <room
"$phasor" plan "$model" --box reads.json --batch-size 4 --prompt-len 24 --output-len 8 --memory 28MiB --json >table.json
jq -e --arg plan "$plan" --arg way "$way" --argjson kv "$kv_cache" '.plans[] | select(.plan == $plan and .way == $way) |
    .way == "upload" and .spares > 1 and .spares < 6 and .memory.kv_cache == $kv' table.json >/dev/null ||
    fail "room: $(cat room) is not as it was priced"
printf '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":[5,6,7],"max_tokens":2}}\n' >one
expect 0 "room of a run" "$phasor" run "$model" -i one -o one.out --devices cpu:2 --plan "$plan" --transition "$way" \
    --memory 56MiB --kv-memory $((2 * kv_cache)) --max-num-seqs "$wave" --max-num-batched-tokens "$pass_tokens" -v
ahead() { grep -o "there is room to read the experts of .*" "$1"; }
cmp -s <(ahead err) <(ahead room.err) && ahead err | grep -q " of [2-5] of 6 " ||
    fail "room: $(ahead room.err) for the plan, $(ahead err) for a run"
# Files of before there was a word of the cache are read, and have none.
cat >before.jsonl <<'JSON'
{"kind":"bench","format":1,"phasor":"0.1.0","began":"2026-11-28T05:25:45Z","question":{"models":["m"],"scenarios":["16/4"],"batch_sizes":[2],"modes":["static-tp"],"devices":"cpu:2","box":"h200x2","clock":"modelled","threads":0,"seed":0,"memory":0}}
{"kind":"cell","box":"h200x2: 2 H200 SXM, NVSwitch; PCIe 5.0 x16 each to the host, assumed (file 501862da32c03c5e)","devices":2,"host_step_s":0.00029999999999999997,"planning_s":0.0082888960023410618,"plans":[{"modes":["static-tp"],"plan":"tp2|tp2","way":"none","wave":2,"pass_tokens":32,"predicted_prefill_s":0.00071163423334034092,"predicted_between_s":0.0,"predicted_decode_s":0.0017928416779782158,"memory":6659136}],"model":"m","prompt_tokens":16,"output_tokens":4,"batch_size":2}
{"kind":"plans","hash":"83505b04866a22a5"}
JSON
expect 0 "a file of before" "$phasor" report before.jsonl
sed 's/"memory":6659136/&,"kv_cache":4096/' before.jsonl >after.jsonl
expect 1 "a cache that was put in" "$phasor" report after.jsonl
has err "the plans are not those of the hash" "a cache that was put in"
# Another load of the plan has another room, and is opened for itself, once.
expect 0 "another room" "${reads[@]}" --scenarios 24/8,64/8 -r 2
[ "$(ahead err | wc -l)" -eq 2 ] || fail "another room: opened $(ahead err | wc -l) times, not 2"
expect 1 "results that are there" "${small[@]}" --results runs.jsonl
has err "resume goes on with it" "results that are there"

# ---- going on
cp runs.jsonl whole.jsonl
expect 1 "results that another bench writes" flock runs.jsonl "${small[@]}" --results runs.jsonl --resume
has err "another bench is writing runs.jsonl" "results that another bench writes"
expect 0 "nothing to do" "${small[@]}" --results runs.jsonl --resume
cmp -s runs.jsonl whole.jsonl || fail "nothing to do: the file is another"
has out "^| kjv-moe | 24/8 x 4 | static-tp | tp2\\\\|tp2 | .* | 1, the same plan | [0-9.]* ([^|]*) |$" "nothing to do"
head -c -40 whole.jsonl >runs.jsonl # in the midst of the last run
expect 0 "a torn line" "${small[@]}" --results runs.jsonl --resume
head -n -1 whole.jsonl | cmp -s - <(head -n -1 runs.jsonl) || fail "a torn line: others are not what they were"
lines runs.jsonl "$(wc -l <whole.jsonl)" "a torn line"
head -n 5 whole.jsonl >runs.jsonl # all cells, and not that they are all
expect 0 "a lost hash" "${small[@]}" --results runs.jsonl --resume
cmp -s <(head -n 6 whole.jsonl) <(head -n 6 runs.jsonl) || fail "a lost hash: the plans are others"
expect 0 "a lost hash, nothing to do" "${small[@]}" --results runs.jsonl --resume
head -n 6 whole.jsonl >runs.jsonl
cp two.json two.kept
echo >>two.json
expect 1 "a changed box" "${small[@]}" --results runs.jsonl --resume
has err "were chosen by .* and it is now .*; put that file back" "a changed box"
head -n 3 whole.jsonl >runs.jsonl # not all cells
expect 1 "a changed box, more plans" "${small[@]}" --plans-only --results runs.jsonl --resume
head -n 3 whole.jsonl | cmp -s - runs.jsonl || fail "a changed box, more plans: the file is another"
mv two.kept two.json
sed 's/"wave":[0-9]*/"wave":1/' whole.jsonl >runs.jsonl
expect 1 "other plans" "${small[@]}" --results runs.jsonl --resume
has err "the plans are not those of the hash" "other plans"
cp whole.jsonl runs.jsonl
expect 1 "another question" "${small[@]}" --seed 1 --results runs.jsonl --resume
has err "is of another bench" "another question"
cmp -s runs.jsonl whole.jsonl || fail "another question: the file is another"
tail -1 whole.jsonl >>runs.jsonl
expect 1 "a run twice" "${small[@]}" --results runs.jsonl --resume
has err "runs.jsonl:$(wc -l <runs.jsonl): this run was there before" "a run twice"
# Another version of phasor, or other weights behind the same path: where there is more to run.
head -n -1 whole.jsonl | sed 's/"phasor":"[^"]*"/"phasor":"0.0\\u001b1"/' >runs.jsonl
expect 0 "another version" "${small[@]}" --results runs.jsonl --resume
has err "^warning: the bench was begun with phasor's version 0.0?1 and goes on with [0-9.]*: " "another version"
expect 0 "another version, nothing to do" "${small[@]}" --results runs.jsonl --resume
silent err "another version, nothing to do"
synth() { "$phasor" synth mixtral-8x7b --layers 2 --scale 64 --seed "$1" -o "$2" 2>err >out || fail "synth"; }
synth 1 weights
other=("$phasor" bench weights --devices cpu:2 --box two.json --scenarios 16/4 --batch-sizes 2 --modes static-tp)
expect 0 "weights" "${other[@]}" -r 1 --results weights.jsonl
expect 0 "weights, more rounds" "${other[@]}" -r 2 --results weights.jsonl --resume
silent err "weights, more rounds"
cp weights.jsonl weights.kept
rm -r weights
synth 2 weights
expect 1 "other weights" "${other[@]}" -r 3 --results weights.jsonl --resume
has err "weights.jsonl is of other weights than weights has now; put those back" "other weights"
cmp -s weights.jsonl weights.kept || fail "other weights: the file is another"
expect 0 "other weights, nothing to do" "${other[@]}" -r 2 --results weights.jsonl --resume
sed 's/"checkpoints":\[[^]]*\]/"checkpoints":[null]/' weights.kept >weights.jsonl
expect 0 "weights that are not known" "${other[@]}" -r 3 --results weights.jsonl --resume
for odd in 7 '[]' '["short"]' '[null,null]'; do
    sed 's/"checkpoints":\[[^]]*\]/"checkpoints":'"$odd"'/' weights.kept >weights.jsonl
    expect 1 "checkpoints $odd" "$phasor" report weights.jsonl
    has err "weights.jsonl:1: \"checkpoints\" are not those of the models" "checkpoints $odd"
done
cp whole.jsonl runs.jsonl
for line in '[1]' 'no JSON' '{"kind":"run"}' '{"kind":"bench"}' '{"kind":"cell"}' '{"kind":"plans"}' '{}'; do
    { cat whole.jsonl; echo "$line"; } >runs.jsonl
    expect 1 "a line \"$line\"" "${small[@]}" --results runs.jsonl --resume
    has err "runs.jsonl:$(wc -l <runs.jsonl): " "a line \"$line\""
done
expect 1 "a file of something else" "${small[@]}" --results two.json --resume
has err "two.json:1: " "a file of something else"

# What cannot be begun is not left, and a file that has nothing yet is begun.
(trap '' XFSZ; ulimit -f 0; exec "${small[@]}" --plans-only --results full.jsonl) 2>&1 | cat >err
[ "${PIPESTATUS[0]}" -eq 1 ] || fail "no room for the head: exit code"
has err "full.jsonl: cannot be written: File too large" "no room for the head"
[ ! -e full.jsonl ] || fail "no room for the head: a file is left"
: >empty.jsonl
expect 1 "an empty file" "${small[@]}" --plans-only --results empty.jsonl
expect 0 "an empty file, gone on with" "${small[@]}" --plans-only --results empty.jsonl --resume
cmp -s <(sed 1d plans.jsonl | jq -c 'del(.planning_s, .hash)') <(sed 1d empty.jsonl | jq -c 'del(.planning_s, .hash)') ||
    fail "an empty file, gone on with: other plans"
: >empty.jsonl
expect 1 "an empty file, no model" "$phasor" bench nowhere --devices cpu:2 --box two.json --results empty.jsonl --resume
[ ! -e empty.jsonl ] || fail "an empty file, no model: a file is left"
printf '{"kind":"bench"' >runs.jsonl # nothing whole
expect 1 "a torn head" "${small[@]}" --results runs.jsonl --resume
head -n 2 whole.jsonl >runs.jsonl
tail -n +2 runs.jsonl >>runs.jsonl
expect 1 "a cell twice" "$phasor" report runs.jsonl
has err "runs.jsonl:3: the line is not of the cell that comes next" "a cell twice"
expect 1 "a folder" "$phasor" report .
has err "cannot be read: Is a directory" "a folder"
sed '$!b;s/"total_s":[0-9.e-]*/"total_s":1e308/' whole.jsonl >runs.jsonl
expect 1 "a time that is none" "$phasor" report runs.jsonl
for odd in '{"attention reduction":-5}' '{"attention reduction":"5"}' 7; do
    sed '$!b;s/"collectives":{[^}]*}/"collectives":'"$odd"'/' whole.jsonl >runs.jsonl
    expect 1 "collectives $odd" "$phasor" report runs.jsonl
    has err "runs.jsonl:$(wc -l <runs.jsonl): the line is of no run" "collectives $odd"
done
# Kinds come to what was sent in all, or to less, and not to more: also where their sum is beyond 64 bits.
quarter=4611686018427388000 # of 2^64, and a little: jq has no more digits
for kinds in '{"dispatch": (.collective_bytes + 1)}' '{"dispatch": .collective_bytes, "combine": 1}' \
    "{\"dispatch\": $quarter, \"combine\": $quarter, \"attention gather\": $quarter, \"final rows\": $quarter}"; do
    { head -n -1 whole.jsonl; tail -n 1 whole.jsonl | jq -c ".collectives = $kinds"; } >runs.jsonl
    expect 1 "kinds $kinds" "$phasor" report runs.jsonl
    has err "runs.jsonl:$(wc -l <runs.jsonl): the line is of no run" "kinds $kinds"
done
for kinds in '{"dispatch": .collective_bytes}' '{"dispatch": 1}'; do
    { head -n -1 whole.jsonl; tail -n 1 whole.jsonl | jq -c ".collectives = $kinds"; } >runs.jsonl
    expect 0 "kinds $kinds" "$phasor" report runs.jsonl
done
# A run that took 10^11 times as long as another is a page of some lines all the same.
sed '$!b;s/"total_s":[0-9.e-]*/"total_s":1e10/' whole.jsonl >runs.jsonl
expect 0 "a long time" "$phasor" report runs.jsonl -o long.html
[ "$(wc -c <long.html)" -lt 200000 ] || fail "a long time: a page of $(wc -c <long.html) bytes"
sed 's/"phasor":"[^"]*"/"phasor":"0\\u001b[5m|<script>\\n# x"/' whole.jsonl >runs.jsonl
expect 0 "a version that is markup" "$phasor" report runs.jsonl
has out '^phasor 0?\[5m\\|\\<script>?# x, cpu:2' "a version that is markup"
cp whole.jsonl runs.jsonl
chmod a-w runs.jsonl
[ "$(id -u)" = 0 ] || expect 1 "no right to write" "${small[@]}" --results runs.jsonl --resume
chmod u+w runs.jsonl

# ---- the table's other forms
cp whole.jsonl runs.jsonl
expect 0 "csv" "${small[@]}" --results runs.jsonl --resume -o csv
python3 - out <<'PY' || fail "csv: not 36 rows of as many columns as the head"
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1], newline="")))
assert len(rows) == 36 and all(None not in row and None not in row.values() for row in rows)
assert all(float(row["total_s"]) > 0 and float(row["total_s_spread"]) >= 0 for row in rows)
PY

# ---- what rounds come to: of five, in one of which static TP failed
python3 - whole.jsonl >numbers.jsonl <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
for line in lines:
    if line["kind"] != "run":
        print(json.dumps(line))
first = [line for line in lines if line["kind"] == "run" and line["round"] == 1]
for run in first:
    for round, (tp, own) in enumerate(((10, 8), (12, 10), (11, 5), (30, 13), (7, 9)), 1):
        is_tp = run["plan"] == "tp2|tp2"
        line = dict(run, round=round, total_s=tp if is_tp else own)
        if is_tp and round == 5:
            line = {key: run[key] for key in run if not key.endswith(("_s", "_bytes", "_tokens")) or
                    key in ("prompt_tokens", "output_tokens")} | {"round": 5, "failed": "a test"}
        print(json.dumps(line))
PY
expect 3 "numbers" "${small[@]}" -r 4 --results numbers.jsonl --resume -o json
cp out numbers.json
python3 - numbers.json <<'PY' || fail "numbers: not what they come to"
import json, math, sys
rows = json.load(open(sys.argv[1]))
seen = 0
for row in rows:
    if row["mode"] == "static-tp":
        assert row["rounds"] == 4 and row["failures"] == 1 and row["against_static_tp"] == 1, row
    elif row["mode"] in ("static-ep", "static-tp-int4"):  # without the time of planning
        seen += 1
        # Of 5, 8, 9, 10, 13: quartiles 8 and 10; pairs of the four rounds that both have.
        assert row["total_s"]["median"] == 9 and abs(row["total_s"]["spread"] - 2 / 9) < 1e-12, row
        pairs = [(10, 8), (12, 10), (11, 5), (30, 13)]
        logs = [math.log(a / b) for a, b in pairs]
        mean = sum(logs) / 4
        half = 3.182 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 3 / 4)
        for key, value in (("", mean), ("_low", mean - half), ("_high", mean + half)):
            assert abs(row["against_static_tp" + key] / math.exp(value) - 1) < 1e-9, (key, row)
assert seen == 8
PY

# ---- whether a mode reaches static TP: where its interval does not end below 0.99
short_of() { # END: of adaptive's interval at 24/8 x 4; those of other loads end above 1
    python3 - whole.jsonl "$1" >short.jsonl <<'PY'
import json, math, sys
lines, end = [json.loads(line) for line in open(sys.argv[1])], float(sys.argv[2])
plans = {}
for line in lines:
    load = line.get("prompt_tokens"), line.get("batch_size")
    if line["kind"] == "cell":
        own = next(plan for plan in line["plans"] if "adaptive" in plan["modes"])
        plans[load] = own["plan"], own["way"], line["planning_s"]
        assert "static-tp" not in own["modes"]
    if line["kind"] == "run":
        # Two rounds, 0.1 % around their mean: the interval is 12.706 times as wide.
        ratio = end * math.exp(-12.706e-3) if load == (24, 4) else 1.2
        line["total_s"] = 100.0
        if (line["plan"], line["way"]) == plans[load][:2]:
            line["total_s"] = 100 / ratio * math.exp(1e-3 * (3 - 2 * line["round"])) - plans[load][2]
    print(json.dumps(line))
PY
    expect 0 "short of $1" "$phasor" report short.jsonl
    mv out short.md
    expect 0 "short of $1" "$phasor" report short.jsonl -o short.html
    expect 0 "short of $1" "${small[@]}" --results short.jsonl --resume -o json
}
short_of 0.98
for file in short.md short.html; do
    has $file "adaptive: .* of 4 loads; the interval's upper end is below 0.99 in 1 of 4 that have one, the least upper end 0.980" "short of 0.98"
done
jq -e '[.[] | select(.mode == "adaptive" and (.reaches_static_tp | not)) | [.prompt_tokens, .batch_size]] == [[24, 4]]' \
    out >/dev/null || fail "short of 0.98: not in its row"
jq -e 'map(select(.mode == "static-tp").reaches_static_tp) | all' out >/dev/null || fail "short of 0.98: static TP of itself"
short_of 0.991
has short.md "adaptive: .*; the interval's upper end is below 0.99 in 0 of 4 that have one, the least upper end 0.991" "short of 0.991"

# ---- planning, bytes between ranks and memory stand beside the times
"${small[@]}" --results runs.jsonl --resume -o json >costs.json 2>err
jq -e --slurpfile lines runs.jsonl '
    map(. as $row | [$lines[] | select(.prompt_tokens == $row.prompt_tokens and .batch_size == $row.batch_size)] as $of |
        [$of[] | select(.kind == "run" and .plan == $row.plan and .way == $row.way)] as $runs |
        ($of[] | select(.kind == "cell")) as $cell |
        ($cell.plans[] | select(.modes | index($row.mode))) as $plan |
        ($runs | max_by(.collective_bytes)) as $most |
        .collective_bytes == $most.collective_bytes and .collectives == $most.collectives and
        .peak_bytes == ([$runs[].peak_bytes] | max) and .predicted_memory == $plan.memory and
        .planning_s == (if ($row.mode | startswith("static")) or .is_static_tp then 0 else $cell.planning_s end)) |
    length == 36 and all and any' costs.json >/dev/null || fail "costs: not those of the runs"
jq -e 'map(select(.planning_s > 0)) | length >= 4' costs.json >/dev/null || fail "costs: nobody plans"

# ---- the page
expect 0 "the table of results" "$phasor" report whole.jsonl
mv out table.md
expect 0 "the same as it was printed" "${small[@]}" --results runs.jsonl --resume
cmp -s table.md out || fail "the table of results is another"
expect 0 "a page" "$phasor" report whole.jsonl -o page.html
silent out "a page"
python3 - page.html <<'PY' || fail "a page: not what was measured"
import html, re, sys, xml.dom.minidom
page = open(sys.argv[1], encoding="utf-8").read()
pictures = re.findall(r"<svg.*?</svg>", page, re.S)
assert len(pictures) == 4  # two scenarios, what parts are worth, and the errors
for picture in pictures:
    xml.dom.minidom.parseString(picture)
bars = sum(picture.count('class="tiny"') for picture in pictures)
assert bars == 2 * 2 * 9, bars
assert page.count("<tr>") == 1 + 36 + 1 + 4 + 1 + 1 + 4 and "http" not in page
for mode in ("static-tp-int4", "adaptive-exact"):
    assert mode in page
# The rungs of the ladder: each cell's product is the last against the first.
for row in re.findall(r"<tr>.*?<b>.*?</tr>", page):
    factors = [float(value) for value in re.findall(r">([0-9.]+)</(?:td|b)>", row)]
    assert len(factors) == 5 and abs(factors[0] * factors[1] * factors[2] * factors[3] / factors[4] - 1) < 0.01, row
# Regret: the plan's total over the least of the load's, of all plans or of the exact ones.
def rows_behind(title):
    table = page.split(title)[1].split("</table>")[0]
    return [[re.sub("<[^>]*>", "", value) for value in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)[1:]]
totals = {}
for row in rows_behind("<h2>Plans and numbers</h2>"):
    totals.setdefault((row[0], row[1]), {})[row[2]] = (html.unescape(row[3]), float(row[7]))
regrets = rows_behind("<h2>What the choice cost</h2>")
assert len(regrets) == len(totals) == 4
above = 0
for model, load, *shown in regrets:
    of = totals[model, load]
    for mode, regret, fastest in (("adaptive", *shown[:2]), ("adaptive-exact", *shown[2:])):
        rivals = {}
        for plan, total in of.values():
            if mode == "adaptive" or not (":int4" in plan or plan.endswith("by upload")):
                rivals[plan] = min(total, rivals.get(plan, total))
        least = min(rivals, key=rivals.get)
        assert abs(float(regret) / (of[mode][1] / rivals[least]) - 1) < 2e-3, (load, mode, regret)
        named = of[mode][0] if fastest == "the same plan" else html.unescape(fastest)
        assert rivals[named] / rivals[least] < 1.001, (load, mode, fastest)
        above += float(regret) > 1
assert above > 0, "no choice was beaten: nothing was shown"
# The parts of a bar are in proportion to their seconds, and all bars of a load to one another.
of_load = pictures[0].split("batch of")[0]
scales = [float(height) / float(part) for height, part in re.findall(
    r'height="([0-9.]+)" fill="[^"]*" class="part"><title>[^<]*: ([0-9.e-]+) s of', of_load) if float(height) > 5]
assert len(scales) >= 3 and max(scales) / min(scales) < 1.01, scales
PY
# What each part is worth: the same in the table, its mean, and in the rows of JSON.
"${small[@]}" --results runs.jsonl --resume -o json >parts.json 2>err
python3 - page.html table.md parts.json <<'PY' || fail "parts: not what the totals say"
import json, math, re, sys
page, table = (open(path, encoding="utf-8").read() for path in sys.argv[1:3])
part = page.split("<h2>What each part is worth</h2>")[1].split("</table>")[0]
shown = [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>.*?</td>", row)] for row in part.split("<tr>")[2:]]
lines = [[cell.strip() for cell in line.split("|") if cell.strip()]
         for line in table.split("What each part is worth")[1].splitlines()[4:]]
assert lines == [
    [row[0], *([row[1]] if row[0] != "geometric mean" else []), *row[-5:]] for row in shown], (lines, shown)
assert len(lines) == 5 and lines[-1][0] == "geometric mean"
names = {"best-attention": "data-parallel attention", "best-static": "the experts' layout",
         "adaptive-exact": "another layout in decode", "adaptive": "packed INT4 decode"}
rows = json.load(open(sys.argv[3]))
assert {row["mode"]: row["part"] for row in rows if "part" in row} == names
for line in lines[:-1]:
    of = {row["mode"]: row for row in rows if f"{row['prompt_tokens']}/{row['output_tokens']} x {row['batch_size']}" == line[1]}
    before = of["static-tp"]["total_s"]["median"]
    for mode, worth in zip(names, line[2:]):
        own = of[mode]["total_s"]["median"]
        assert abs(before / own - float(worth)) < 6e-4 and abs(of[mode]["part_worth"] * own / before - 1) < 1e-9, line
        before = own
for column in range(-5, 0):
    mean = math.exp(sum(math.log(float(line[column])) for line in lines[:-1]) / 4)
    assert abs(float(lines[-1][column]) / mean - 1) < 5e-3, (column, lines)
PY
"$phasor" bench "$model" --devices cpu:2 --box two.json --scenarios 16/4 --batch-sizes 2 --modes static-tp,adaptive \
    --plans-only >out 2>err
! grep -q "What each part" out || fail "parts: of modes that were not asked for"
has page.html "phasor report whole.jsonl</code>" "a page"
# Below each heading the clock and the command, which asks the same question.
made() { # PAGE RESULTS LABEL
    python3 - "$1" "$2" "$3" <<'PY' >command || fail "made: $1 does not say by what"
import html, re, sys
page = open(sys.argv[1], encoding="utf-8").read()
made = [(html.unescape(label), html.unescape(command)) for label, command in
        re.findall(r"</h2>\n<p class=\"made\"><b>(.*?)</b>: <code>(.*?)</code></p>", page)]
own = {command for label, command in made if label == sys.argv[3]}
assert len(made) == page.count("<h2>") and len(own) == 1, made
command = own.pop()
assert command.startswith("phasor bench ") and command.endswith(f" --results {sys.argv[2]}"), command
print(command[len("phasor "):-len(sys.argv[2])])
PY
    rm -f asked.jsonl
    eval "$phasor $(sed 's/ DIR / passes /' command) asked.jsonl --plans-only -q" >/dev/null || fail "made: $(cat command)"
    cmp -s <(head -n 1 asked.jsonl | jq -c .question) <(head -n 1 "$2" | jq -c .question) || fail "made: $1 of another question"
}
made page.html whole.jsonl wall
has table.md "| planning (wall, in the total) | .* | bytes between ranks (the largest kinds) | peak memory (all ranks, since loading) |" "a table"
has table.md "| static-tp | .*iB: .*attention reduction [0-9.]* .iB.* | [0-9.]* MiB | 1, the same plan" "a table"
has table.md ", from [-0-9T:Z]*; token ids at random, seed 0; plans" "a table"
has page.html ", from [-0-9T:Z]*; token ids at random, seed 0; plans" "a page"
expect 0 "another seed" "${bench[@]}" --scenarios 16/4 --batch-sizes 2 --modes static-tp --plans-only --seed 18446744073709551615
has out "token ids at random, seed 18446744073709551615; plans" "another seed"
has page.html "planning <br><small>wall, in the total</small>.*peak memory <br><small>all ranks, since loading</small>" "a page"
has command " -r 2 " "a page"
has page.html '<meta name="viewport" content="width=device-width' "a page"

# ---- a table of quality
cat >quality.json <<'JSON'
{"kind": "quality", "model": "a <model>", "commit": "abc", "positions": 6090, "native_nll": 2.5,
 "schemes": [{"scheme": "group 64", "bytes_per_weight": 0.53125, "cosine_min": 0.9955, "cosine_mean": 0.996,
  "nll_ratio": 1.00241, "kl_mean": 0.0072, "same_top_1": 0.9511}]}
JSON
expect 0 "a page with quality" "$phasor" report whole.jsonl -o quality.html --quality quality.json
for words in "a &lt;model&gt;, 6090 positions, native NLL 2.5000" "<td>group 64</td><td class=\"n\">0.5312</td>" \
    "<td class=\"n\">+0.241 %</td>" "<td class=\"n\">95.11 %</td>" "--quality FILE</code>"; do
    has quality.html "$words" "a page with quality"
done
has quality.html "<b>computed</b>: <code>bench_quantize 'a &lt;model&gt;' quality.json</code>" "a page with quality"
grep -q "As decode runs" quality.html && fail "a page with quality: decode, of which the file does not tell"
jq '.decode = {scheme: "group 64", kernels: "cpu (<plain>)", windows: 16, native_nll: 2.6, nll_ratio: 1.00321, kl_mean: 0.0081,
    same_top_1: 0.9509}' quality.json >decode.json
expect 0 "a page with decode's quality" "$phasor" report whole.jsonl -o decode.html --quality decode.json
has decode.html "As decode runs.*group 64.*16 .*cpu (&lt;plain&gt;).*2.6000.*+0.321 %" "a page with decode's quality"
for key in scheme kernels windows native_nll nll_ratio kl_mean same_top_1; do
    jq ".decode.$key = true" decode.json >odd.json
    expect 1 "decode's quality, $key" "$phasor" report whole.jsonl -o odd.html --quality odd.json
    has err "\"$key\" is missing or not what it should be" "decode's quality, $key"
done
expect 2 "quality without a page" "$phasor" report whole.jsonl --quality quality.json
for key in kind model commit positions native_nll schemes scheme nll_ratio same_top_1; do
    sed "s/\"$key\": [^,}]*/\"$key\": true/" quality.json >odd.json
    [ "$key" = schemes ] && echo '{"kind":"quality","model":"m","commit":"c","positions":1,"native_nll":1,"schemes":[]}' >odd.json
    expect 1 "quality, $key" "$phasor" report whole.jsonl -o odd.html --quality odd.json
    has err "\"$key\" is missing or not what it should be" "quality, $key"
done
for file in whole.jsonl /dev/null . absent.json; do
    expect 1 "quality, $file" "$phasor" report whole.jsonl -o odd.html --quality "$file"
done
[ -e odd.html ] && fail "quality: a page of what cannot be read"

# ---- a run from prefill to decode
printf '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":[5,6,7,8,9,10,11,12],"max_tokens":6}}\n' >rows.jsonl
expect 0 "a trace" "$phasor" run "$model" -i rows.jsonl -o answers.jsonl --devices cpu:2 --plan "dp2|ep2>tp2" \
    --transition reshard --trace trace.json --quiet
expect 0 "a page with a trace" "$phasor" report whole.jsonl -o traced.html --trace trace.json
has traced.html "<b>wall</b>: <code>phasor run $model .* --plan 'dp2|ep2&gt;tp2' --trace trace.json</code>" "a page with a trace"
python3 - traced.html trace.json page.html <<'PY' || fail "a page with a trace: not what was run"
import json, re, sys, xml.dom.minidom
page, before = (open(path, encoding="utf-8").read() for path in (sys.argv[1], sys.argv[3]))
events = json.load(open(sys.argv[2]))["traceEvents"]
pictures = re.findall(r"<svg.*?</svg>", page, re.S)
assert len(pictures) == 5 and page.replace(page[page.index("<h2>From prefill"):page.index("<h2>Plans and")], "").replace(" --trace FILE", "") == before
picture = xml.dom.minidom.parseString(pictures[4])
words = {node.firstChild.data for node in picture.getElementsByTagName("text")}
lanes = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
assert {"run", "rank 0 passes", "rank 1 passes"} <= words, words
assert {"run", "passes"} <= lanes
# The pass of prefill is as long as the trace says, to the dots of the picture.
passes = [event for event in events if event.get("name") == "prefill pass"]
first = min(event["ts"] for event in events if event.get("name") == "decode pass" and event["ts"] > passes[-1]["ts"])
titles = [node.firstChild.data for node in picture.getElementsByTagName("title")]
told = [float(title.split(": ")[1].split(" ms")[0]) for title in titles if title.startswith("prefill pass: ")]
assert any(title.startswith("reshard: ") for title in titles)
assert len(told) == 1 and abs(told[0] * 1e3 / passes[-1]["dur"] - 1) < 1e-2, (told, passes[-1])
mark = [line for line in picture.getElementsByTagName("line") if line.getAttribute("class") == "mark"]
bars = {rect.getElementsByTagName("title")[0].firstChild.data: rect for rect in picture.getElementsByTagName("rect")}
width = float(next(bar for name, bar in bars.items() if name.startswith("prefill pass")).getAttribute("width"))
dots = (float(mark[0].getAttribute("x1")) - 150) / (first - passes[-1]["ts"])
assert abs(width - dots * passes[-1]["dur"]) < 1, (width, dots * passes[-1]["dur"])
PY
# ---- pictures as files
expect 0 "plots" "$phasor" report whole.jsonl --plots plots --trace trace.json
silent out "plots"
python3 - plots page.html traced.html <<'PY' || fail "plots: not the pictures of the page"
import html, os, re, sys, xml.etree.ElementTree as tree
folder, (page, traced) = sys.argv[1], (open(path, encoding="utf-8").read() for path in sys.argv[2:])
pictures = re.findall(r"<svg[^>]*>\n(.*?)</svg>", page, re.S)[:4] + [re.findall(r"<svg[^>]*>\n(.*?)</svg>", traced, re.S)[4]]
names = ["times-1-kjv-moe-16-4.svg", "times-1-kjv-moe-24-8.svg", "parts.svg", "errors.svg", "trace.svg"]
assert sorted(os.listdir(folder)) == sorted(names), os.listdir(folder)
command = html.unescape(re.search(r"<code>(phasor bench .*?)</code>", page)[1])
for name, picture in zip(names, pictures):
    text = open(os.path.join(folder, name), encoding="utf-8").read()
    root = tree.fromstring(text.encode())
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root[0].tag.endswith("style") and "var(" in root[0].text
    assert picture in text, name
    # Who draws it may know no variables: no attribute is one, and a rule has what to take instead before it.
    assert not any("var(" in value for node in root.iter() for value in node.attrib.values()), name
    rules = re.findall(r"([-a-z]+):var\(", root[0].text)
    assert len(rules) >= 3 and len(rules) == len(re.findall(r"([-a-z]+):#[0-9a-f]+;\1:var\(", root[0].text)), name
    x, y, width, height = map(float, root.get("viewBox").split())
    for label in root.iter("{http://www.w3.org/2000/svg}text"): # all within it
        if label.get("y"):
            assert y <= float(label.get("y")) < y + height and 0 <= float(label.get("x")) < width, (name, label.text)
    said = root.find("{http://www.w3.org/2000/svg}desc").text
    assert said.startswith("wall: phasor ") and (name == "trace.svg" or said == "wall: " + command), said
    words = [label.text for label in root.iter("{http://www.w3.org/2000/svg}text")]
    told = {"trace.svg": "collectives", "parts.svg": "packed INT4 decode"}.get(name, "prefill (wall)")
    assert "wall" in words and told in words, words
PY
expect 0 "plots again" "$phasor" report whole.jsonl --plots plots -o plotted.html
cmp -s page.html plotted.html || fail "plots again: the page is another"
# Bytes that are no UTF-8 stand as '?', so that neither a page nor a picture is lost by a name: here one alone,
# a surrogate, a form that is too long, no character of XML's, one beyond the last, and one that is cut.
odd=$'a\xff\xc3\xa9\xed\xa0\x80\xc0\xaf\xef\xbf\xbf\xf4\x90\x80\x80\xf0\x9f\x98\x80\xe2\x82.jsonl'
cp whole.jsonl "$odd"
jq --arg plan "$(printf 'a%.0s' {1..79})éé" '.otherData.plan = $plan' trace.json >cut.json
expect 0 "names that are no UTF-8" "$phasor" report "$odd" --plots odd-plots --trace cut.json -o odd-names.html
python3 - odd-plots odd-names.html <<'PY' || fail "names that are no UTF-8: not well-formed, or other names"
import html, os, sys, xml.etree.ElementTree as tree
shown = " --results 'a?é" + 12 * "?" + "😀??.jsonl'"
names = os.listdir(sys.argv[1])
assert len(names) == 5
for name in names:
    root = tree.parse(os.path.join(sys.argv[1], name)).getroot()
    if name == "trace.svg": # its title has 80 bytes of the plan
        assert root.find("{http://www.w3.org/2000/svg}title").text.endswith(" " + 79 * "a" + "?")
    else:
        assert root.find("{http://www.w3.org/2000/svg}desc").text.endswith(shown), name
assert shown in html.unescape(open(sys.argv[2], encoding="utf-8").read())
PY
echo mine >plots/errors.svg
expect 1 "plots over something else" "$phasor" report whole.jsonl --plots plots
has err "errors.svg holds something that phasor did not write" "plots over something else"
expect 1 "plots into a file" "$phasor" report whole.jsonl --plots two.json
[ -e nowhere ] || expect 1 "plots nowhere" "$phasor" report whole.jsonl --plots nowhere/plots
has err "nowhere/plots: cannot be made" "plots nowhere"
expect 2 "a trace without a page" "$phasor" report whole.jsonl --trace trace.json
expect 1 "a trace that is none" "$phasor" report whole.jsonl -o none.html --trace whole.jsonl
expect 1 "a trace of nothing" "$phasor" report whole.jsonl -o none.html --trace /dev/null
printf '{"traceEvents":[{"ph":"X"},7,{"ph":"M","name":"thread_name"},{"ph":"X","ts":1e308,"dur":-1,"name":3}]}' >odd.json
{ printf '{"traceEvents":['; yes '{},' | head -n 4000000 | tr -d '\n'; echo '{}]}'; } >empties.json
expect 1 "a trace of empty objects" "$phasor" report whole.jsonl -o none.html --trace empties.json
has err "so many values that they would take more than 1024 MiB" "a trace of empty objects"
rm empties.json
expect 1 "a trace without a change" "$phasor" report whole.jsonl -o none.html --trace odd.json
has err "no pass of decode behind" "a trace without a change"
[ ! -e none.html ] || fail "a trace that is none: there is a page"
expect 0 "a page again" "$phasor" report whole.jsonl -o page.html
cp "$model/config.json" config.json
expect 1 "a page in place of something else" "$phasor" report whole.jsonl -o config.json
cmp -s config.json "$model/config.json" || fail "a page in place of something else: it was lost"
# A pipe has the page itself, and what standard output is to has it behind what was said.
"$phasor" report whole.jsonl -o /dev/stdout 2>err | cat >piped.html
grep -q "</html>" piped.html || fail "a page to a pipe did not come"
"$phasor" report whole.jsonl -o /dev/stdout >straight.html 2>err
grep -q "</html>" straight.html || fail "a page to standard output's file did not come"

# A page, or a picture, that cannot be written to its end leaves the one that was there, and nothing beside it.
expect 0 "a page to lose" "$phasor" report whole.jsonl -o lose.html --plots lose
mkdir kept-of
cp -r lose.html lose kept-of
for where in "-o lose.html" "--plots lose" "-o never.html" "--plots never"; do
    # shellcheck disable=SC2086 # two words
    (trap '' XFSZ; ulimit -f 1; exec "$phasor" report whole.jsonl $where) 2>&1 | cat >err
    [ "${PIPESTATUS[0]}" -eq 1 ] || fail "no room for $where: exit code"
    has err "cannot be written: File too large" "no room for $where"
    cmp -s lose.html kept-of/lose.html && diff -r lose kept-of/lose || fail "no room for $where: what was there is lost"
done
[ -z "$(find . -name '*phasor-new*')" ] && [ ! -e never.html ] && [ -z "$(ls never)" ] || fail "no room: something is left"
chmod 640 lose.html
ln -s lose.html link.html
expect 0 "a page behind a link" "$phasor" report whole.jsonl -o link.html
[ -L link.html ] && [ "$(stat -c %a lose.html)" = 640 ] || fail "a page behind a link: not the file of then"
expect 0 "a page into a device" "$phasor" report whole.jsonl -o /dev/null
[ -c /dev/null ] || fail "a page into a device: it is a file now"
# What cannot be read may be anything; the right of the super-user to read it all the same is given away.
unread=()
[ "$(id -u)" = 0 ] && unread=(setpriv --bounding-set=-dac_override,-dac_read_search)
cp two.json unread.html
chmod 200 unread.html
if "${unread[@]}" true; then
    expect 1 "a page in place of what cannot be read" "${unread[@]}" "$phasor" report whole.jsonl -o unread.html
    has err "unread.html holds something that phasor did not write there" "a page in place of what cannot be read"
fi
chmod 600 unread.html
cmp -s two.json unread.html || fail "a page in place of what cannot be read: it was lost"
expect 1 "a page of nothing" "$phasor" report nothing.jsonl -o nothing.html
[ ! -e nothing.html ] || fail "a page of nothing: it is there"
head -n 6 whole.jsonl >begun.jsonl # no run yet
expect 0 "a page of plans" "$phasor" report begun.jsonl -o begun.html
has begun.html "</html>" "a page of plans"
cp two.json "it's two<b>.json"
expect 0 "markup in names" "$phasor" bench "$model" --devices cpu:2 --box "./it's two<b>.json" --scenarios 16/4 \
    --batch-sizes 2 --plans-only --results names.jsonl
expect 0 "markup in names" "$phasor" report names.jsonl -o names.html
has names.html 'two&lt;b&gt;.json' "markup in names"
made names.html names.jsonl wall
! grep -q 'two<b>' names.html || fail "markup in names: it is in the page"

# ---- a box that is not here
box=$boxes/h200x2.json
replay=("$phasor" bench "$model" --devices cpu:2 --replay "$box" --recordings passes --batch-sizes 4)
expect 2 "--replay alone" "$phasor" bench "$model" --devices cpu:2 --replay "$box"
expect 2 "--replay and --box" "${replay[@]}" --box two.json
expect 1 "other ranks" "$phasor" bench "$model" --devices cpu:4 --replay "$box" --recordings passes --scenarios 16/4
has err "plans run with cpu:2; found cpu:4" "other ranks"
expect 0 "modelled" "${replay[@]}" --scenarios 16/20,24/1 -r 2 --results modelled.jsonl -o json
[ -n "$(find passes -name '*.step-*')" ] && [ -z "$(find passes -name '*.step-*' ! -name '*.step-4x*.0')" ] || fail "modelled: decode is recorded once for all rounds"
# The same again, from the recordings' own replays: prefill of each round, steps of decode one after another.
python3 - modelled.jsonl "$phasor" "$box" <<'PY' || fail "modelled: not the sum of its passes"
import glob, json, subprocess, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
def replay(path, *how):
    out = subprocess.run([sys.argv[2], "replay", path, "--box", sys.argv[3], "--json", *how],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)
def name(plan):
    return plan.translate(str.maketrans("|:>", "_-+"))
runs = [line for line in lines if line["kind"] == "run"]
host_step = next(line["host_step_s"] for line in lines if line["kind"] == "cell")
assert runs and all(run["clock"] == "modelled" for run in runs) and host_step > 0
for run in runs:
    attention, experts = run["plan"].split("|")
    first, _, last = experts.partition(">")
    packed, last = last.endswith(":int4"), (last or first).replace(":int4", "")
    decode = f"{attention}|{last}" + (f">{last}:int4" if packed else "")
    prompt, output = run["prompt_tokens"], run["output_tokens"]
    tokens = 4 * prompt
    def prefill(layout):
        return glob.glob(f"passes/kjv-moe-*.{name(layout)}.t0.prefill-{tokens}-of-{prompt}-0.{run['round']}")[0]
    # All by the speed that this machine had in static TP's pass: that one is at the box's, and another takes
    # as much longer or shorter as it took here, and as its traffic is.
    scale = replay(prefill("tp2|tp2"), "--scale")["link_scale"]
    own = replay(prefill(attention + "|" + first), "--scale")
    apart = own["link_scale"] / scale
    assert abs(run["prefill_s"] / (own["seconds"] * scale) - 1) < 0.25 + abs(apart - 1), (run, apart)
    if run["plan"].startswith("tp2|tp2"):
        assert abs(run["prefill_s"] / (own["seconds"] * own["link_scale"]) - 1) < 1e-9, run
    known = {}
    for step in range(output - 1):
        for path in glob.glob(f"passes/kjv-moe-*.{name(decode)}.t0.step-4x{prompt + 1 + step}.0"):
            known[step] = replay(path, "--modelled", "--without-host")["seconds"] + host_step
    assert output == 1 or (len(known) == 16 and 0 in known and output - 2 in known), known
    total, places = 0, sorted(known)
    for step in range(output - 1):
        low = max(place for place in places if place <= step)
        high = min(place for place in places if place >= step)
        share = (step - low) / (high - low) if high > low else 0
        total += known[low] + share * (known[high] - known[low])
    assert abs(total - run["decode_s"]) <= 1e-9 * total, (total, run)
    assert abs(run["prefill_s"] + run["between_s"] + run["decode_s"] - run["total_s"]) < 1e-12
    assert abs(run["median_ttft_s"] / run["prefill_s"] - 1) < 1e-9, run  # one pass has all prompts
PY
# Gone on with by the passes of then, and by no others; where nothing is left to do none are looked at.
cp -r passes others
static=$(basename "$(find passes -name '*.tp2_tp2.t0.prefill-96-of-24-0.2')")
cp others/"${static%2}1" others/"$static" # of another round
head -n -1 modelled.jsonl >cut.jsonl
tail -n 1 cut.jsonl | jq -e '.prompt_tokens == 24 and .round == 2' >/dev/null || fail "other passes: not of the last load"
for folder in others empty; do
    cp cut.jsonl resumed.jsonl
    expect 1 "passes in $folder" "${replay[@]/passes/$folder}" --scenarios 16/20,24/1 -r 2 --results resumed.jsonl --resume
    has err "last run that resumed.jsonl holds was of other passes than are in $folder" "passes in $folder"
    cmp -s cut.jsonl resumed.jsonl || fail "passes in $folder: the file is another"
    expect 0 "passes in $folder, nothing to do" "${replay[@]/passes/$folder}" --scenarios 16/20,24/1 -r 2 \
        --results modelled.jsonl --resume
done
[ -z "$(ls empty)" ] || fail "passes in empty: something was recorded"
expect 0 "passes of then" "${replay[@]}" --scenarios 16/20,24/1 -r 2 --results resumed.jsonl --resume
cmp -s modelled.jsonl resumed.jsonl || fail "passes of then: other times"
touch then
expect 0 "modelled again" "${replay[@]}" --scenarios 16/20,24/1 -r 2 --results again.jsonl -o json
[ -z "$(find passes -newer then)" ] || fail "modelled again: something was recorded"
cmp -s <(grep '"run"' modelled.jsonl) <(grep '"run"' again.jsonl) || fail "modelled again: other times"
jq -e 'map(.clock == "modelled" and (has("peak_bytes") | not) and .prefill_clock == "replay" and
    .decode_clock == "modelled" and .total_clock == "modelled") | all' out >/dev/null || fail "modelled again: not said"
# The scale is that of static TP's passes, whoever is asked for: a mode has the seconds alone that it has beside it.
for mode in static-ep static-ep-dp adaptive; do
    expect 0 "modelled, $mode alone" "${replay[@]}" --scenarios 16/20,24/1 -r 2 --modes $mode --results $mode.jsonl
    python3 - modelled.jsonl $mode.jsonl $mode <<'PY' || fail "modelled, $mode alone: other seconds than beside static TP"
import json, sys
beside, alone = ([json.loads(line) for line in open(path)] for path in sys.argv[1:3])
plans = {(line["prompt_tokens"], plan["plan"], plan["way"]) for line in alone if line["kind"] == "cell" for plan in line["plans"]}
assert sys.argv[3] == "adaptive" or not any(plan == "tp2|tp2" for _, plan, _ in plans), plans
def times(lines):
    return {(*key, line["round"]): [line[part + "_s"] for part in ("prefill", "decode", "between", "total")]
            for line in lines if line["kind"] == "run"
            if (key := (line["prompt_tokens"], line["plan"], line["way"])) in plans}
assert len(times(alone)) == 4 and times(alone) == times(beside), (times(alone), times(beside))
PY
done
[ -z "$(find passes -newer then)" ] || fail "modelled, modes alone: something was recorded"
expect 0 "modelled, recorded alone" "${replay[@]/passes/alone}" --scenarios 16/1 -r 1 --modes static-ep
[ "$(find alone -name '*.prefill-*' | wc -l)" -eq 2 ] || fail "modelled, recorded alone: $(ls alone)"
# First tokens come with the pass that ends their prompts: here of two passes, of half the rows each.
expect 0 "modelled, two passes" "${replay[@]/passes/two}" --scenarios 16/1 --batch-sizes 2048 -r 1 \
    --modes static-tp,static-ep-dp --results two.jsonl
jq -se '[.[] | select(.kind == "run")] | length == 2 and (map(.median_ttft_s / .prefill_s - 0.75 | fabs < 1e-9) | all) and
    (map(.p99_ttft_s / .prefill_s - 1 | fabs < 1e-9) | all)' two.jsonl >/dev/null || fail "modelled, two passes: $(cat two.jsonl)"
# What was composed of passes is what a batch sends, but for the last rows of a prompt's pass.
expect 0 "sent by the clock" "${bench[@]}" --scenarios 16/20 --batch-sizes 4 -r 1 --modes static-tp -o json
jq -e --slurpfile lines modelled.jsonl '.[0] as $wall |
    [$lines[] | select(.kind == "run" and .plan == "tp2|tp2" and .prompt_tokens == 16)] |
    length == 2 and (map(([.collectives[]] | add) == .collective_bytes and .peak_bytes == 0 and
        (.collective_bytes / $wall.collective_bytes - 1 | fabs < 0.01) and
        (.collectives | keys) == ($wall.collectives | keys) and
        .collectives["attention reduction"] == $wall.collectives["attention reduction"]) | all)' out >/dev/null ||
    fail "sent by the clock: not what was composed"
expect 0 "modelled, the table" "$phasor" report modelled.jsonl
has out "Z; token ids at random; plans" "modelled, the table"
has out "| planning (left out) | .* | bytes between ranks (of the passes) | memory (predicted, fullest device) |" "modelled, the table"
has out "| prefill (replay) | decode (modelled) | between (predicted) | total (modelled) |" "modelled, the table"
expect 0 "modelled, the page" "$phasor" report modelled.jsonl -o modelled.html
made modelled.html modelled.jsonl "modelled (prefill by replay, decode modelled, changes of layout predicted)"
for words in "prefill (replay)" "decode (modelled)" "between the phases (predicted)" "total<br><small>modelled<"; do
    has modelled.html "$words" "modelled, the page"
done
# Whole batches beside what was composed: the one may take longer than the other here, not ten times.
python3 "$control" modelled.jsonl --phasor "$phasor" --load 16/20x4 --repeats 2 >out 2>err
code=$?
[ $code -eq "$(grep -q ', off$' out && echo 3 || echo 0)" ] || fail "a control: exit code $code"
lines out 4 "a control"
python3 - modelled.jsonl out <<'PY' || fail "a control: not beside what was composed"
import json, re, statistics, sys
runs = [line for line in map(json.loads, open(sys.argv[1])) if line["kind"] == "run" and
        line["plan"] == "tp2|tp2" and line["prompt_tokens"] == 16]
for line, phase in zip(open(sys.argv[2]).read().splitlines()[1:], ("prefill", "decode")):
    found = re.fullmatch(r".*/kjv-moe tp2\|tp2 16/20x4 (\w+): (\S+), (\S+), (\S+) %, ([-+]\S+) %, (within|off|undecided)", line)
    assert found and found[1] == phase, line
    composed, whole, spread, off = (float(found[i]) for i in range(2, 6))
    assert abs(composed / statistics.median(run[phase + "_s"] for run in runs) - 1) < 1e-4, line
    assert abs(100 * (composed / whole - 1) - off) < 0.01 and spread >= 0, line
    assert 0.1 < composed / whole < 10, line
    assert (found[6] == "undecided") == (spread > 5) or abs(spread - 5) < 0.01, line
PY
# Its verdict, by a program whose batches in full take a second, or what "apart" has one after another.
cat >in-full <<'SH'
#!/usr/bin/env bash
[ "$1" = replay ] || exit 0
echo >>calls
read -ra seconds <apart
seconds=${seconds[$(wc -l <calls) % 3]}
echo "{\"link_scale\": 1, \"phases\": {\"prefill\": {\"wall_seconds\": $seconds}, \"decode\": {\"wall_seconds\": $seconds}}}"
SH
chmod +x in-full
verdict() { # CODE VERDICT SHARE: of decode composed to so much of a second
    jq -c --argjson share "$3" --slurpfile all modelled.jsonl '
        if .kind != "run" then . else .prefill_s = 1 |
            .decode_s = $share + 19 * ([$all[] | select(.kind == "cell").host_step_s] | first) end' modelled.jsonl >shifted.jsonl
    expect "$1" "a control, $3" python3 "$control" shifted.jsonl --phasor ./in-full --load 16/20x4
    has out " prefill: 1, 1, .*, +0.00 %, $([ "$2" = undecided ] && echo undecided || echo within)$" "a control, $3"
    has out " decode: .*, $2$" "a control, $3"
    has out "^# $([ "$2" = undecided ] && echo 2 || echo 0) of 2 undecided: " "a control, $3"
}
echo 1 1 1 >apart
verdict 0 within 1
verdict 0 within 0.985
verdict 3 off 1.1
verdict 3 off 0.97
echo 0.98 1 1.02 >apart # by 4 %
verdict 0 within 1.035
verdict 3 off 1.045
echo 0.97 1 1.03 >apart # by 6 %: neither the one nor the other, however far off
verdict 0 undecided 1
verdict 0 undecided 1.4
expect 1 "a control by the clock" python3 "$control" whole.jsonl --phasor "$phasor"
has err "whole.jsonl: not of phasor bench --replay" "a control by the clock"
expect 1 "a control of another load" python3 "$control" modelled.jsonl --phasor "$phasor"
has err "no run of static-tp at 4096/64x8; --load chooses another" "a control of another load"
for load in 16 16/1x4 16/20; do
    expect 1 "a control of $load" python3 "$control" modelled.jsonl --load $load
    has err "is no load with steps" "a control of $load"
done
expect 1 "a control by no program" python3 "$control" modelled.jsonl --phasor ./nowhere --load 16/20x4
has err "--phasor names the program" "a control by no program"
"$phasor" synth mixtral-8x7b --layers 1 --scale 64 -o kjv-moe >/dev/null 2>&1
expect 0 "another model of this name" "$phasor" bench kjv-moe --devices cpu:2 --replay "$box" --recordings passes \
    --batch-sizes 4 --scenarios 16/20 -r 1 --modes static-tp -o json
[ "$(find passes -newer then -name 'kjv-moe-*.prefill-*' | wc -l)" -eq 1 ] ||
    fail "another model of this name: its passes were not recorded"
for file in passes/*.prefill-*; do echo torn >"$file"; done
expect 3 "a torn recording" "${replay[@]}" --scenarios 16/20 -r 1
has err "failed: passes/" "a torn recording"

# ---- what a prediction is worth
predict=("$phasor" bench "$model/config.json" --predict "$box" --scenarios 16/12,24/8 --batch-sizes 4)
for wrong in "--box two.json" "--devices cpu:2" "--recordings passes" "--replay h200x2"; do
    # shellcheck disable=SC2086 # two words
    expect 2 "--predict and $wrong" "${predict[@]}" $wrong
    has err "leave ${wrong%% *}\|leave --replay and --recordings" "--predict and $wrong"
done
expect 1 "draws of a profile" "$phasor" bench "$model" --predict two.json -r 1
has err "two.json is measured: only the numbers of a box file have ranges" "draws of a profile"
silent out "draws of a profile"
sed 's/"range": \[[^]]*\], //' "$box" >certain.json
expect 1 "draws of no range" "$phasor" bench "$model" --predict ./certain.json -r 1
has err 'no number has a "range" to be drawn from' "draws of no range"
expect 0 "draws" "${predict[@]}" -r 40 --results draws.jsonl -o json
cp out draws.json
jq -e 'map(has("reaches_static_tp") or has("collective_bytes") or has("planning_s")) | any | not' out >/dev/null ||
    fail "draws: an interval of 95 %, bytes or planning of what did not run"
python3 - draws.jsonl draws.json "$phasor" "$model" "$box" <<'PY' || fail "draws: not what the planner says"
import json, statistics, subprocess, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
rows = json.load(open(sys.argv[2]))
cells = [line for line in lines if line["kind"] == "cell"]
runs = [line for line in lines if line["kind"] == "run"]
assert all(run["clock"] == "predicted" for run in runs)
assert len(runs) == 40 * sum(len(cell["plans"]) for cell in cells)
def total(cell, mode, round):
    plan = next(p for p in cell["plans"] if mode in p["modes"])
    return next(r["total_s"] for r in runs if r["round"] == round and r["plan"] == plan["plan"] and
                r["way"] == plan["way"] and r["prompt_tokens"] == cell["prompt_tokens"])
for cell in cells:
    for row in rows:
        if row["prompt_tokens"] != cell["prompt_tokens"]:
            continue
        for key, other in (("against_static_tp", "static-tp"), ("against_static_tp_int4", "static-tp-int4")):
            ratios = [total(cell, other, i) / total(cell, row["mode"], i) for i in range(1, 41)]
            for value, name in ((statistics.median(ratios), key), (min(ratios), key + "_low"), (max(ratios), key + "_high")):
                assert abs(row[name] / value - 1) < 1e-9, (row, name, value)
    # Draws lie around what the box's own numbers say, and are not those.
    plan = next(p for p in cell["plans"] if "static-tp" in p["modes"])
    own = plan["predicted_prefill_s"] + plan["predicted_between_s"] + plan["predicted_decode_s"]
    seconds = [total(cell, "static-tp", i) for i in range(1, 41)]
    assert min(seconds) < own < max(seconds) and len(set(seconds)) == 40, (own, seconds)
PY
expect 0 "draws again" "${predict[@]}" -r 40 --results draws-again.jsonl
cmp -s <(grep '"run"' draws.jsonl) <(grep '"run"' draws-again.jsonl) || fail "draws again: others"
expect 0 "draws of another seed" "${predict[@]}" -r 40 --seed 1 --results draws-other.jsonl
! cmp -s <(grep '"run"' draws.jsonl) <(grep '"run"' draws-other.jsonl) || fail "draws of another seed: the same"
# Every seed draws, and one draw has no interval.
expect 0 "one draw" "${predict[@]}" -r 1 --seed 5768062832238850805 -o json
jq -e 'map(.total_s.median != .predicted_s and (.is_static_tp or .against_static_tp_high == null)) | all' out \
    >/dev/null || fail "one draw: of an interval, or of the box as it is"
# Not on a box that has changed since.
cp "$box" mine.json
mine=("$phasor" bench "$model/config.json" --predict ./mine.json --scenarios 16/12 --batch-sizes 4 --results mine.jsonl)
expect 0 "draws of a box" "${mine[@]}" -r 2
sed -i 's/"range": \[0.05, 0.07\]/"range": [0.06, 0.07]/' mine.json
! cmp -s mine.json "$box" || fail "draws of a changed box: it is the same"
expect 1 "draws of a changed box" "${mine[@]}" -r 3 --resume
has err "was predicted by other numbers of ./mine.json" "draws of a changed box"
head -n 20 draws.jsonl >draws-begun.jsonl
expect 0 "draws, gone on with" "${predict[@]}" -r 40 --results draws-begun.jsonl --resume
cmp -s <(grep '"run"' draws.jsonl) <(grep '"run"' draws-begun.jsonl) || fail "draws, gone on with: others"
expect 0 "draws, the page" "$phasor" report draws.jsonl -o draws.html
has draws.html "with the least and the most of them" "draws, the page"
expect 0 "draws, the plots" "$phasor" report draws.jsonl --plots predicted
[ "$(ls predicted)" = "$(printf 'parts.svg\ntimes-1-kjv-moe-16-12.svg\ntimes-1-kjv-moe-24-8.svg')" ] || fail "draws, the plots: $(ls predicted)"
has draws.html "Z; the box's numbers at random, seed 0; plans" "draws, the page"
has draws.html "memory <br><small>predicted, fullest device</small>.*bytes between ranks <br><small>not counted</small>" "draws, the page"
made draws.html draws.jsonl predicted
expect 0 "draws, the table" "$phasor" report draws.jsonl
# The worst load of each draw, by draws of which each load and plan has its own.
jq -c 'if .kind == "run" then .total_s = 1 + ((.round * 7 + .prompt_tokens * 5 + (.plan | length) * 3) % 31) / 50 else . end' \
    draws.jsonl >varied.jsonl
"$phasor" report varied.jsonl -o varied.html && "$phasor" report varied.jsonl >varied.md
python3 - varied.jsonl varied.md varied.html <<'PY' || fail "draws, the worst load: not that of the draws"
import html, json, re, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
plans, totals = {}, {}
for line in lines:
    for plan in line.get("plans", []):
        for mode in plan["modes"]:
            plans[line["prompt_tokens"], mode] = plan["plan"], plan["way"]
    if line["kind"] == "run":
        totals[line["round"], line["prompt_tokens"], line["plan"], line["way"]] = line["total_s"]
def ratio(round, prompt, mode, other):
    return totals[round, prompt, *plans[prompt, other]] / totals[round, prompt, *plans[prompt, mode]]
for mode, other, words in (("adaptive", "static-tp", "static TP"), ("hap", "static-tp", "static TP"),
                           ("adaptive", "static-tp-int4", "static TP on INT4")):
    worst = [min(ratio(round, prompt, mode, other) for prompt in (16, 24)) for round in range(1, 41)]
    wanted = (f"the worst load of a draw: {statistics.median(worst):.3f} in the median of 40 draws, "
              f"{min(worst):.3f} at the least")
    for path in sys.argv[2:]:
        text = html.unescape(open(path).read())
        assert re.search(f"{mode}: [^;\n]* times {words}, [^;\n]* of 2 loads; {wanted}", text), (mode, other, wanted, path)
PY
# What each part is worth, drawn: each as far on from the one before it, or back and thinner, as the numbers on the axis have it.
"$phasor" bench "$mixtral" --predict "$boxes/a6000x4.json" --scenarios 256/64,4096/64 --batch-sizes 16,64 -r 1 \
    --modes static-tp,best-attention,best-static,adaptive-exact,adaptive --results ladder.jsonl >/dev/null 2>&1
jq -c 'if .kind == "run" then .total_s = 1 + ([.plan, .way | explode | add] | add) % 31 / 50 else . end' ladder.jsonl >far.jsonl
"$phasor" report far.jsonl -o far.html
python3 - far.html <<'PY' || fail "parts, drawn: not as far as they are worth"
import re, sys, xml.dom.minidom
page = open(sys.argv[1], encoding="utf-8").read().split("<h2>What each part is worth</h2>")[1].split("</table>")[0]
worths = [[float(value) for value in re.findall(r">([0-9.]+)</td>", row)] for row in re.findall(r"<tr>.*?<b>.*?</tr>", page)][:-1]
picture = xml.dom.minidom.parseString(re.search(r"<svg.*?</svg>", page, re.S)[0])
ticks = [(float(text.firstChild.data), float(text.getAttribute("x"))) for text in picture.getElementsByTagName("text")
         if text.getAttribute("text-anchor") == "middle"]
dots = (ticks[-1][1] - ticks[0][1]) / (ticks[-1][0] - ticks[0][0])  # of a static TP
rects = picture.getElementsByTagName("rect")
bars = [[float(rect.getAttribute(key)) for key in ("x", "width", "height")] for rect in rects]
legend = re.findall(r'background:(#[0-9a-f]*)"></i>([^<]*)</span>', page)
assert len(legend) == 4 and len({colour for colour, _ in legend}) == 4, legend
for number, rect in enumerate(rects):  # as the legend has it; a load below the other
    title = rect.getElementsByTagName("title")[0].firstChild.data
    assert (rect.getAttribute("fill"), title.split(":")[0]) == legend[number % 4], (title, legend)
    assert 0 <= float(rect.getAttribute("y")) - 26 - 17 * (number // 4) <= 9, (title, number)
labels = [text.firstChild.data for text in picture.getElementsByTagName("text") if " x " in text.firstChild.data]
loads = [" ".join(re.findall(r"<td>([^<]*)</td>", row)) for row in re.findall(r"<tr>.*?<b>.*?</tr>", page)][:-1]
assert labels == loads, (labels, loads)
assert len(worths) == 4 and len(bars) == 4 * 4 and max(height for _, _, height in bars) == 9
seen = set()
for worth, parts in zip(worths, zip(*[iter(bars)] * 4)):
    at = 1
    for times, (left, width, height) in zip(worth, parts):
        ends = (left, left + width) if height == 9 else (left + width, left)
        for wanted, end in zip((at, at * times), ends):
            assert abs(ticks[0][1] + (wanted - ticks[0][0]) * dots - end) < 0.01 * dots, (worth, times, left, width)
        seen.add((at != 1, times > 1.05, times < 0.95))
        at *= times
assert {(True, True, False), (True, False, True)} <= seen, seen  # gains and losses behind others
PY
# Worth so much that nothing else could be seen is in no picture, but in the table.
jq -c 'if .kind == "run" and (.plan | contains(":int4")) then .total_s = 1e-9 else . end' ladder.jsonl >beyond.jsonl
expect 0 "parts beyond pictures" "$phasor" report beyond.jsonl -o beyond.html --plots beyond
! grep -q "Bars begin at" beyond.html && ! [ -e beyond/parts.svg ] || fail "parts beyond pictures: drawn"
has beyond.html "<td class=\"n\"><b>[0-9]\{9,\}\.[0-9]*</b></td>" "parts beyond pictures"
! grep -q "upper end" out || fail "draws, the table: of intervals"

# ---- progress on a terminal: one time left, by what runs weigh, and none by their number
expect 0 "on a terminal" python3 -c "$on_terminal" drawn "${bench[@]}" --scenarios 16/50 --batch-sizes 4 -r 2
has drawn "bench: .*\[[0-9:]*\] [0-9]*/[0-9]*: round" "on a terminal"
! grep -q "bench: .*\[[0-9:]*<" drawn || fail "on a terminal: two times left"

# ---- two files
expect 0 "the same twice" python3 "$changes" whole.jsonl whole.jsonl
has out "^0 of [1-9][0-9]* changed beyond their noise; 0 ran too seldom; 0 only in" "the same twice"
jq -c 'if .kind == "run" then .total_s = 1 + .round / 1e3 else . end' whole.jsonl >level.jsonl
jq -c 'if .kind == "run" and .plan == "tp2|tp2" then .total_s *= 1.1 else . end' level.jsonl >slower.jsonl
expect 0 "one plan slower" python3 "$changes" level.jsonl slower.jsonl
lines out 6 "one plan slower" # four loads, the ratios, and the sum
has out "^kjv-moe 16/4 x 2, tp2|tp2 by none: slower: 1.100 times as long (1.0[0-9]* to 1.1[0-9]*)$" "one plan slower"
expect 0 "one plan faster" python3 "$changes" slower.jsonl level.jsonl
has out "^kjv-moe 24/8 x 4, tp2|tp2 by none: faster: 0.909 times as long" "one plan faster"
# Ratios are compared in one round, too: each plan's own totals as far off as its place in the file says.
grep -v '"round":2' level.jsonl >once.jsonl
python3 - once.jsonl >apart.jsonl 2>wanted <<'PY'
import json, statistics, sys
off = []
for line in map(json.loads, open(sys.argv[1])):
    if line["kind"] == "run" and (line["prompt_tokens"], line["batch_size"]) == (16, 4):
        line["total_s"] *= 1.5 # all of a load alike: no ratio is another
    if line["kind"] == "run" and line["plan"] != "tp2|tp2":
        off.append(0.01 * (len(off) + 1))
        line["total_s"] *= 1 + off[-1]
    print(json.dumps(line))
at = 0.9 * (len(off) - 1)
most = off[int(at)] + (at - int(at)) * (off[min(int(at) + 1, len(off) - 1)] - off[int(at)])
print(f"^{len(off)} ratios to static TP are {100 * statistics.median(off):.2f} % apart in the median, {100 * most:.2f} % "
      f"in the 90th percentile, {100 * off[-1]:.2f} % at most (kjv-moe [^(]*)$", file=sys.stderr)
PY
for pair in "once apart" "apart once"; do
    # shellcheck disable=SC2086 # two names
    expect 0 "ratios of $pair" python3 "$changes" $(printf '%s.jsonl ' $pair)
    has out "$(cat wanted)" "ratios of $pair"
    has out "^0 of 0 changed beyond their noise; [1-9][0-9]* ran too seldom" "ratios of $pair"
done
expect 0 "ratios of the same" python3 "$changes" once.jsonl once.jsonl
has out "^[1-9][0-9]* ratios to static TP are 0.00 % apart in the median, 0.00 % in the 90th" "ratios of the same"
grep -v '"plan":"tp2|tp2"' once.jsonl >alone.jsonl
{ head -n 6 once.jsonl; grep '"run"' alone.jsonl; } >beside.jsonl
expect 0 "ratios to nothing" python3 "$changes" once.jsonl beside.jsonl
has out "^no ratio to static TP is in both$" "ratios to nothing"
# What is called config.json has its folder's name.
for name in one other; do
    jq -c --arg model "$name/config.json" 'if .model then .model = $model else . end |
        if .question then .question.models = [$model] else . end' once.jsonl >"of-$name.jsonl"
done
expect 0 "files of two models" python3 "$changes" of-one.jsonl of-other.jsonl
has out "^0 of 0 changed beyond their noise; 0 ran too seldom; [1-9]" "files of two models"
expect 1 "two clocks" python3 "$changes" whole.jsonl modelled.jsonl
has err "is wall and modelled.jsonl modelled" "two clocks"
expect 2 "one file" python3 "$changes" whole.jsonl
python3 -c 'import lzma, sys; lzma.open("packed.jsonl.xz", "w").write(open(sys.argv[1], "rb").read())' whole.jsonl
expect 0 "a packed file" python3 "$changes" whole.jsonl packed.jsonl.xz
has out "^0 of [1-9][0-9]* changed beyond their noise; 0 ran too seldom; 0 only in whole.jsonl, 0 only in packed.jsonl.xz$" "a packed file"
head -c 200 packed.jsonl.xz >torn.jsonl.xz
for file in torn.jsonl.xz odd.jsonl.xz; do
    [ -e "$file" ] || echo odd >"$file"
    expect 1 "$file" python3 "$changes" whole.jsonl "$file"
    has err "$file: no results of phasor bench" "$file"
done
expect 1 "no results" python3 "$changes" two.json whole.jsonl
has err "two.json: no results of phasor bench" "no results"

# ---- what goes wrong
# Passes that do not come out even are failures, and made good by nothing; the reason is kept.
uneven=("$phasor" bench "$model" --devices cpu:2 --replay "$box" --recordings passes --batch-sizes 4,24
    --scenarios 1024/2 -r 1 --modes static-tp,best-static)
expect 3 "uneven" "${uneven[@]}" --results failed.jsonl -o json
has err "warning: .* failed: 24 sequences of 1024 tokens do not come out even over" "uneven"
jq -e 'map(select(.batch_size == 24 and .failures == 1 and (.why | contains("come out even")))) | length == 2' out \
    >/dev/null || fail "uneven: not said in the table"
expect 3 "uneven, again" "${uneven[@]}" --results failed.jsonl --resume
has out "come out even" "uneven, again"
expect 0 "uneven, the page" "$phasor" report failed.jsonl -o failed.html
has failed.html "come out even" "uneven, the page"
grep '"failed"' failed.jsonl | sort -u |
    sed 's/"failed":"[^"]*"/"prefill_s":1.0,"decode_s":1.0,"between_s":0.0,"total_s":2.0,"median_ttft_s":0,"p99_ttft_s":0,"median_tpot_s":0,"p99_tpot_s":0,"total_input_tokens":24576,"total_output_tokens":48,"collective_bytes":0,"peak_bytes":0/' >made # the same runs, made at last
cat made >>failed.jsonl
expect 0 "made good" "${uneven[@]}" --results failed.jsonl --resume
"${bench[@]}" --scenarios 16/100 --batch-sizes 4 -r 1000 --results stopped.jsonl >out 2>err &
pid=$!
until_ready $pid grep -qs '"kind":"run"' stopped.jsonl || fail "a signal: no run"
kill -TERM $pid
wait $pid
[ $? = 143 ] || fail "a signal: exit code"
has err "resume goes" "a signal"
[ -z "$(ls -A temporary)" ] || fail "a signal: something stays in TMPDIR"
jq -es '.[0].kind == "bench" and .[-1].kind == "run" and (.[-1] | has("total_s"))' stopped.jsonl >/dev/null ||
    fail "a signal: the file is not whole"

[ "$failures" -eq 0 ]
