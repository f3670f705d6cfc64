#!/usr/bin/env bash
# phasor plan as a user meets it.
# Usage: test_plan.sh PHASOR MODEL EXAMPLE_PROFILE
set -u
phasor=$1
model=$2
boxes=$(realpath "$(dirname "$0")/../../boxes")
example=$(realpath "$3")
source "$(dirname "$0")/tools.sh"

# ---- tables
expect 0 "a box by name" "$phasor" plan "$model" --box h200x2
silent err "a box by name"
has out "^box *h200x2: 2 H200" "a box by name"; has out "assumed, not measured" "a box by name"
has out "static TP" "a box by name"; has out "^tp2|tp2 *none .*static TP" "a box by name"
expect 0 "--all" "$phasor" plan "$model" --box h200x2 --all
has out ">tp2:int4 *keep" "--all"
expect 0 "--policy exact" "$phasor" plan "$model" --box h200x2 --all --policy exact
has out "not allowed: decode would run on INT4 weights" "--policy exact"

mkdir config
cp "$model/config.json" config/
expect 0 "a config alone" "$phasor" plan config/config.json --box h200x2 --batch-size 1
has out "^load *1 sequences of 2048 prompt and 256 output tokens$" "a config alone"

expect 0 "what cannot be" "$phasor" plan "$(dirname "$boxes")/bench/hap/qwen1.5-moe-a2.7b/config.json" --box a100x8 --all
has out "^tp8|ep8 *none *illegal: 60 experts cannot be dealt evenly to 8 groups$" "what cannot be"
[ "$(grep -c " illegal: " out)" = 4 ] || fail "what cannot be: $(grep -c " illegal: " out) layouts"

# ---- how often experts were chosen: which counts a phase is priced by
groups='[{"groups":2,"excess":0},{"groups":4,"excess":0},{"groups":8,"excess":0}]'
counts() { # keys of phases...
    printf '{"format":"phasor-routing","version":1,"experts":8,"top_k":2,"tokens":1000,"layers":[{},{},{},{},{},{}],'
    printf '"fullest_group":%s' "$groups"
    [ $# = 0 ] || printf ",\"%s\":$groups" "$@"
    printf '}\n'
}
counts >all.json
counts fullest_group_decode >decode.json
counts fullest_group_prefill fullest_group_decode >both.json
expect 0 "counts" "$phasor" plan "$model" --box a6000x4 --routing all.json
has out "^routing *experts are chosen as counted in all.json$" "counts"
expect 0 "counts of decode" "$phasor" plan "$model" --box a6000x4 --routing decode.json
has out "^routing *experts are chosen as counted in decode.json, in decode by its own passes$" "counts of decode"
expect 0 "counts of both" "$phasor" plan "$model" --box a6000x4 --routing both.json
has out "^routing *experts are chosen as counted in both.json, in prefill and in decode apart$" "counts of both"

# ---- what a run would not have is priced, and marked
"$example" weights.json 2 bytes=1e8 # to read them is all that takes time
plan_json() { "$phasor" plan "$model" --box weights.json --json "$@"; }
int4='(.plan | test(":int4")) or .way == "upload"'
plan_json >allowed
plan_json --policy exact >exact
jq -e --slurpfile a allowed "[.plans, \$a[0].plans] | transpose | map(.[0] as \$e | .[1] as \$a | \$e |
       \$a.total_s == .total_s and .memory.total == \$a.memory.total and
       if $int4 then .verdict == \"not allowed\" and .runnable == false and (.because | test(\"--policy exact\"))
       else .verdict == \$a.verdict and .runnable == (.verdict == \"possible\") end) | all" exact >/dev/null ||
    fail "--policy exact: what is not allowed has other times"
jq -e '.best == .best_runnable' exact >/dev/null || fail "--policy exact: a run has another plan"
jq -e ".plans as \$p | [\$p[] | if $int4 then .runnable == false and (.because | test(\"phasor quantize\"))
       else .runnable and .because == null end] | all" allowed >/dev/null || fail "no backup: what runs"
jq -e ".plans as \$p | (\$p[.best] | $int4) and (\$p[.best_runnable] | ($int4) | not) and
       (.why | test(\"needs an INT4 backup, which phasor quantize makes; without one the best is \"))" allowed >/dev/null ||
    fail "no backup: the best is not one, or nobody says so"
expect 0 "no backup" "$phasor" plan "$model" --box weights.json --report unbacked.html
has unbacked.html "(best without a backup)" "no backup"
has out "best, .*needs a backup$" "no backup"; has out "best without a backup" "no backup"
expect 0 "a backup" "$phasor" quantize "$model" -q
plan_json >backed
jq -e '.best == .best_runnable and ([.plans[] | .runnable] | all) and (.why | test("backup") | not)' backed >/dev/null ||
    fail "a backup: still not runnable"
jq -e '.best != .best_runnable' <("$phasor" plan config/config.json --box weights.json --json) >/dev/null ||
    fail "a config alone: it has a backup"
mv "$PHASOR_CACHE"/*.backup own.backup
rm -r "$PHASOR_CACHE"
plan_json --backup own.backup >named
jq -e --slurpfile b backed '.backup == "own.backup" and $b[0].backup == null and
       del(.backup) == ($b[0] | del(.backup))' named >/dev/null ||
    fail "a backup by name: other plans than with the one in the cache"
expect 0 "a finer backup" "$phasor" quantize "$model" --group 16 --asymmetric -q -o fine.backup
plan_json --backup fine.backup >fine
jq -e --slurpfile b backed '[.plans, $b[0].plans] | [.[] | map(select(.way == "keep" and (.plan | test(":int4")))) | sort_by(.plan)] |
       transpose | length > 0 and all(.[0].memory.experts > .[1].memory.experts)' fine >/dev/null ||
    fail "a finer backup: packed experts take as much memory as the usual one's"
expect 1 "no such backup" "$phasor" plan "$model" --box weights.json --backup absent.backup
has err "absent.backup" "no such backup"
"$phasor" synth tiny-mixtral -o other -q
expect 2 "another's backup" "$phasor" plan other --box weights.json --prompt-len 100 --backup own.backup
has err "own.backup is the backup of another checkpoint" "another's backup"
expect 1 "a backup of a config alone" "$phasor" plan config/config.json --box weights.json --backup own.backup
expect 2 "a backup against the policy" "$phasor" plan "$model" --box weights.json --backup own.backup --policy exact
has err "--policy exact wants no plan with them" "a backup against the policy"
expect 2 "a backup beside INT4 experts" "$phasor" plan "$model" --box weights.json --backup own.backup --expert-dtype int4
has err "--expert-dtype int4 wants no plan with them" "a backup beside INT4 experts"

# ---- the rows of a file
for i in $(seq 32); do # every fourth has a long answer
    printf '{"custom_id":"r%d","method":"POST","url":"/v1/completions","body":{"prompt":[1,2,3,%d],' "$i" "$i"
    printf '"max_tokens":%d}}\n' $((i % 4 == 0 ? 240 : 20))
done >rows
"$example" rows.json 2 bytes=1e8
of_rows=("$phasor" plan "$model" --box rows.json --max-num-seqs 8)
expect 0 "rows" "${of_rows[@]}" -i rows
has out "^load *32 sequences of 4 prompt and 75 output tokens on the mean, in rows$" "rows"
# Without a backup rows run together as is best for what is left then, which is not what is best with one.
awk 'BEGIN { for (i = 0; i < 256; i++) { # prompts of 1,024 to 2,048 ids, answers of 4 to 1,024 tokens, each of either
    printf "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[%d", i, i
    for (t = 1; t < int(1024 * 2 ^ (i % 16 / 16)); t++) printf ",%d", (i + t * t) % 999
    printf "],\"max_tokens\":%d}}\n", 4 * 256 ^ (int(i / 16) / 16) } }' >uneven
uneven=("$phasor" plan "$(dirname "$boxes")/bench/hap/mixtral-8x7b/config.json" --box a6000x4 -i uneven --memory 34GiB)
"${uneven[@]}" --json >uneven.all
"${uneven[@]}" --json --policy exact >uneven.exact
jq -e --slurpfile e uneven.exact '.plans[.best_runnable] as $r | $e[0].plans[$e[0].best] as $own | .best != .best_runnable and
    ([$r, $own] | map([.plan, .way, .total_s]) | .[0] == .[1]) and ($e[0].load.classes | length) > (.load.classes | length) and
    (.why | contains("without one the best is \($own.plan) by \($own.way)"))' uneven.all >/dev/null ||
    fail "no backup: the best without one is $(jq -c '.plans[.best_runnable] | [.plan, .total_s]' uneven.all), and a run has $(
        jq -c '.plans[.best] | [.plan, .total_s]' uneven.exact)"
# For less than a hundredth no layout is left: not static TP's, and in decode not that which the experts have in prefill.
little() { # little OUTPUT BATCH BEST FASTEST WHAT-FOR
    "$phasor" plan "$(dirname "$boxes")/bench/hap/mixtral-8x7b/config.json" --box a6000x4 --prompt-len 256 --output-len "$1" \
        --batch-size "$2" --json --all >little
    jq -e --arg best "$3" --arg fastest "$4" --arg for "% faster: too little $5." '.plans[.best].plan == $best and
        .plans[.fastest].plan == $fastest and (.why | contains($for))' little >/dev/null ||
        fail "little gained: $(jq -c '[.plans[.best, .fastest].plan], .why' little)"
}
little 64 32 "dp4|tp4>tp4:int4" "dp4|tp4>ep4:int4" "for the experts to have another layout in decode"
little 2048 32 "tp4|tp4>tp4:int4" "tp4|tp4>ep4:int4" "to leave static TP for"
# Where both layouts do not fit, sequences run in waves.
for i in $(seq 64); do
    printf '{"custom_id":"r%d","method":"POST","url":"/v1/completions","body":{"prompt":[' "$i"
    seq -s, 1000
    printf '],"max_tokens":%d}}\n' $((i % 4 == 0 ? 1500 : 60))
done | sed -z 's/\n\]/]/g' >lengthy
waves=("$phasor" plan "$(dirname "$boxes")/bench/hap/mixtral-8x7b/config.json" --box a6000x4 -i lengthy
    --max-num-seqs 16 --memory 27GiB)
expect 0 "rows in waves" "${waves[@]}"
has out "^run together *16 of 1000 prompt and 1500 output tokens; alone .* would be best" "rows in waves"
has out "^  *48 of 1000 prompt and 60 output tokens, decoded in prefill.s layout; alone .* would be best" "rows in waves"
has out "^In the order of the file the best plan takes .* s, with rows of like lengths together" "rows in waves"
expect 0 "rows in waves, JSON" "${waves[@]}" --json
jq -e '.load as $l | .plans[.best].total_s as $t | $l.input == "lengthy" and $l.sequences == 64 and
       ([$l.classes[].sequences] | add) == 64 and $t < $l.in_file_order_s and
       ([$l.classes[].best_s] | add) <= $t * 1.0001 and
       (.plans[.best] | ([.prefill[], .decode[]] | add) / (.prefill_s + .decode_s) - 1 | fabs) < 1e-9' \
    out >/dev/null || fail "rows in waves, JSON: not what was asked"
expect 0 "rows, the page" "${of_rows[@]}" -i rows --report rows.html
has rows.html "</html>" "rows, the page"
expect 0 "rows from a pipe, the page" bash -c "cat rows | '$phasor' plan '$model' --box rows.json -i - --report piped.html"
has piped.html "</html>" "rows from a pipe, the page"
expect 0 "no rows" "$phasor" plan "$model" --box rows.json --json
jq -e '.load.input == null and (.load.classes | length) == 1' out >/dev/null || fail "no rows: a word of some"
expect 2 "rows and a load" "${of_rows[@]}" -i rows --prompt-len 7
has err "--rows has the load" "rows and a load"
echo '{}' >wrong
expect 2 "no row that can be run" "${of_rows[@]}" -i wrong
has err "wrong: there is no row to plan for" "no row that can be run"
expect 2 "no rows" "${of_rows[@]}" -i /dev/null
has err "/dev/null has no rows; a batch file has one on each line" "no rows"
printf '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"text"}}\n' >text
expect 2 "text, and a config alone" "$phasor" plan config/config.json --box rows.json -i text
has err "without a tokenizer.json .* only prompts of token ids count" "text, and a config alone"
expect 0 "ids, and a config alone" "$phasor" plan config/config.json --box rows.json -i rows
expect 1 "a file that is not there" "${of_rows[@]}" -i absent

# ---- the page
expect 0 "--report" "$phasor" plan "$model" --box h200x2 --report page.html
has page.html "</html>" "--report"; has page.html "Where the time goes" "--report"
python3 -c '
import re, sys, xml.dom.minidom
for svg in re.findall(r"<svg.*?</svg>", open(sys.argv[1]).read(), re.S):
    xml.dom.minidom.parseString(svg)' page.html || fail "--report: not well-formed"
expect 0 "--report again" "$phasor" plan "$model" --box h200x2 --report page.html
cp config/config.json config/before
expect 1 "--report over the model" "$phasor" plan config/config.json --box h200x2 \
    --batch-size 1 --report config/config.json
has err "config.json holds something that phasor did not write" "--report over the model"
cmp -s config/config.json config/before || fail "--report took the place of config.json"
: >empty
expect 0 "--report into an empty file" "$phasor" plan "$model" --box h200x2 --report empty
expect 1 "--report into no folder" "$phasor" plan "$model" --box h200x2 --report no/such/page.html
has err "no/such/page.html: it, or a new file beside it, cannot be written" "--report into no folder"

# ---- no decode
expect 0 "one output token" "$phasor" plan "$model" --box h200x2 --output-len 1
has out "Decode takes 0 s" "one output token"
! grep -q "0 s more" out || fail "one output token: parts of nothing are told of"

# ---- JSON
expect 0 "--json" "$phasor" plan "$model" --box h200x2 --json
jq -e '.best != null and (.plans[.best].total_s > 0) and (.why | length > 20)' out >/dev/null ||
    fail "--json: no best plan"
jq -e '.plans as $p | ([$p[] | select(.verdict == "possible") | .total_s] | min) as $least |
       $p[.fastest].total_s == $least and
       if $p[.static_tp].total_s < 1.01 * $least then .best == .static_tp
       elif $p[.best].plan | startswith("tp2|tp2>tp2:int4") then $p[.best].total_s < 1.01 * $least
       elif $p[.best] | .plan | test("[|](?<prefill>[a-z0-9]+)>(?!\\k<prefill>(:|$))") then .best == .fastest
       else $p[.best].total_s < 1.01 * $least end' out >/dev/null || fail "--json: the best is not the fastest, or near it static TP, or a plan without change"
jq -e '[.plans[] | select(.verdict == "possible") |
        (.prefill_s + .decode_s + .transition_s + .way_back_s - .total_s) |
        (. < 1e-9 and . > -1e-9)] | all' out >/dev/null || fail "--json: times do not add up"
jq -e '.plans as $p | [$p[.static_tp], $p[.static_ep]] as $s | [$p[] | select(has("total_s")) |
       (.against_static_tp * .total_s / $s[0].total_s, .against_static_ep * .total_s / $s[1].total_s) - 1 |
       (. < 1e-9 and . > -1e-9)] | all and length > 10' out >/dev/null || fail "--json: gains are of other times"
cp out first
expect 0 "gains" "$phasor" plan "$model" --box h200x2
has out "  against static TP and EP$" "gains"
ep=$(printf '%.2fx' "$(jq '.plans[.static_ep].against_static_tp' first)")
has out "^tp2|ep2 *none .* $ep *1.00x *static EP" "gains"
sizes=(--max-num-seqs 32 --max-num-batched-tokens 16384 --memory 225MiB) # with which one of the two fits
expect 0 "no static EP" "$phasor" plan "$model" --box h200x2 "${sizes[@]}"
has out "^tp2|tp2 *none .* 1.00x *- *best, static TP" "no static EP"
expect 0 "no static EP, JSON" "$phasor" plan "$model" --box h200x2 "${sizes[@]}" --json
jq -e '.static_ep == null and (.plans[.best] | .against_static_tp == 1 and .against_static_ep == null)' out >/dev/null ||
    fail "no static EP, JSON: a gain over it"
expect 0 "again" "$phasor" plan "$model" --box h200x2 --json
cmp -s out first || fail "the same question has another answer"

# ---- profiles
"$example" own.json 2 gather=1e6
"$example" other.json 4 processor=Abacus
"$example" old.json 2 version=0.0.1
expect 0 "a profile" "$phasor" plan "$model" --box own.json --report own.html
silent err "a profile"
has out "^box *own.json: 2 x cpu" "a profile"; has out "measured on it" "a profile"
! grep -q "not measured" out || fail "a profile: not measured"
has own.html "from measured figures" "a profile"
for box in own:measured:null other:measured:true old:measured:true; do
    IFS=: read -r file times warns <<<"$box"
    expect 0 "a profile, JSON" "$phasor" plan "$model" --box "$file.json" --json
    jq -e --arg times "$times" --argjson warns "$warns" '.box.times == $times and
        (if $warns then (.box.warning | length > 20) else .box.warning == null end)' out >/dev/null ||
        fail "$file.json: times and warning"
done
expect 0 "a foreign profile" "$phasor" plan "$model" --box other.json
has out "^box *other.json: 4 x cpu" "a foreign profile"; has err "^warning: .* is foreign: .*Abacus" "a foreign profile"
lines err 1 "a foreign profile"
expect 0 "a stale profile" "$phasor" plan "$model" --box old.json
has err "^warning: .* is stale: .*0.0.1" "a stale profile"
expect 0 "memory of a profile's box" "$phasor" plan "$model" --box own.json --memory 1MiB
has out "Nothing fits" "memory of a profile's box"
cp own.json noname
expect 0 "a profile's path" "$phasor" plan "$model" --box ./noname
sed 's/"ranks"/"runks"/' own.json >torn.json
expect 1 "a profile that breaks its format" "$phasor" plan "$model" --box torn.json
has err 'torn.json.*"ranks"' "a profile that breaks its format"; lines err 1 "a profile that breaks its format"
head -c 200 own.json >torn.json
expect 1 "half a profile" "$phasor" plan "$model" --box torn.json
lines err 1 "half a profile"
expect 1 "neither" "$phasor" plan "$model" --box "$model/config.json"
has err "config.json is neither a box file, .*, nor a profile of phasor calibrate" "neither"; lines err 1 "neither"

# ---- what does not fit
expect 0 "too little memory" "$phasor" plan "$model" --box h200x2 --memory 1MiB
has out "Nothing fits: the smallest, .* with 1 sequence together" "too little memory"
has out "on a device of 1024 KiB (.* experts, .* other weights, .* KV cache," "too little memory"
expect 0 "too little memory, JSON" "$phasor" plan "$model" --box h200x2 --memory 1MiB --json
jq -e '.best == null and .static_tp == null' out >/dev/null || fail "too little memory: a plan"
jq -e '.would_fit | .max_num_seqs == null and .expert_dtype == null and .memory > 1048576' out \
    >/dev/null || fail "too little memory: what would fit"

# best FLAG...: whether a plan fits, of 64 sequences together in passes of 4096 tokens but for these.
best()
{
    "$phasor" plan "$model" --box h200x2 --json --batch-size 64 --prompt-len 512 --output-len 128 \
        --max-num-seqs 64 --max-num-batched-tokens 4096 "$@" | jq -e '.best != null' >/dev/null
}
# Each change that is said to do does, and less of it does not.
check_would_fit()
{
    local memory=$1 seqs tokens bytes
    "$phasor" plan "$model" --box h200x2 --json --batch-size 64 --prompt-len 512 --output-len 128 \
        --max-num-seqs 64 --max-num-batched-tokens 4096 --memory "$memory" >would
    bytes=$(jq .would_fit.memory would) seqs=$(jq .would_fit.max_num_seqs would)
    tokens=$(jq .would_fit.max_num_batched_tokens would)
    best --memory "$bytes" || fail "$memory: $bytes bytes of memory do not do"
    ! best --memory $((bytes - 1)) || fail "$memory: less than $bytes bytes do"
    if [ "$seqs" != null ]; then
        best --memory "$memory" --max-num-seqs "$seqs" || fail "$memory: $seqs sequences do not fit"
        ! best --memory "$memory" --max-num-seqs $((seqs + 1)) || fail "$memory: more than $seqs fit"
        fewer=1
    fi
    if [ "$tokens" != null ]; then
        best --memory "$memory" --max-num-batched-tokens "$tokens" ||
            fail "$memory: passes of $tokens do not fit"
        ! best --memory "$memory" --max-num-batched-tokens $((tokens + 1)) ||
            fail "$memory: passes of more than $tokens fit"
        shorter=1
    fi
    if [ "$(jq -r .would_fit.expert_dtype would)" = int4 ]; then
        best --memory "$memory" --expert-dtype int4 || fail "$memory: INT4 experts do not fit"
        rounded=1
    else
        ! best --memory "$memory" --expert-dtype int4 || fail "$memory: INT4 experts fit, and nobody says so"
    fi
}
fewer=0 shorter=0 rounded=0
least=$("$phasor" plan "$model" --box h200x2 --json --batch-size 64 --prompt-len 512 \
    --output-len 128 --max-num-seqs 64 --max-num-batched-tokens 4096 --memory 1 |
    jq .would_fit.memory)
for share in 99 90 70 50; do
    check_would_fit $((least * share / 100))
done
[ $fewer = 1 ] || fail "no memory was enough for fewer sequences"
[ $shorter = 1 ] || fail "no memory was enough for a shorter pass"
[ $rounded = 1 ] || fail "no memory was enough for INT4 experts"

# ---- experts in INT4
expect 0 "--expert-dtype" "$phasor" plan "$model" --box h200x2 --expert-dtype int4
has out "^model .*, its experts in int4$" "--expert-dtype"
expect 0 "--expert-dtype, JSON" "$phasor" plan "$model" --box h200x2 --expert-dtype int4 --json
jq -e '.expert_dtype == "int4" and .dtype == "bfloat16" and
       ([.plans[] | select((.plan | test(":int4")) or .way == "upload") | .verdict == "not allowed"] | all)' \
    out >/dev/null || fail "--expert-dtype, JSON: INT4 experts beside a backup"
mkdir odd
jq '.intermediate_size = 264' "$model/config.json" >odd/config.json
expect 2 "--expert-dtype of an odd width" "$phasor" plan odd/config.json --box no-such-box --expert-dtype int4
has err "multiples of 16, found 128 and 264" "--expert-dtype of an odd width"

mkdir long
jq '.max_position_embeddings = 1073741824 | .num_hidden_layers = 512' "$model/config.json" >long/config.json
expect 0 "a cache of 2^64 bytes" "$phasor" plan long/config.json --box h200x2 --json \
    --batch-size 1m --max-num-seqs 1m --prompt-len 1073741568
jq -e '[.plans[] | select(.verdict == "too large") | .memory.kv_cache > 1e18] | all and length > 0' \
    out >/dev/null || fail "a cache of 2^64 bytes comes round to little"

# ---- what a file says of itself, and numbers that no column was made for
jq '.title = "two\u001b[31m devices\u0007 <b>\u009b\u007f"' "$boxes/h200x2.json" >odd.json
expect 0 "a title with control characters" "$phasor" plan "$model" --box odd.json --report odd.html
for file in out odd.html; do
    ! LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' $file ||
        fail "a title with control characters: they are in $file"
done
has out 'two?\[31m devices? <b>??' "a title with control characters"
has odd.html 'two?\[31m devices? &lt;b&gt;??' "a title with control characters"
jq '.device.peak_compute.value = 1e-6 | .device.memory_bandwidth.value = 1e-6' "$boxes/h200x2.json" >slow.json
expect 0 "a box without an end" "$phasor" plan "$model" --box slow.json --all --batch-size 1000000
! grep -qE '[0-9] s[0-9]|[kKMGTPE]iB[0-9]|^[^ ]*(none|keep|reshard|upload|reload)' out ||
    fail "a box without an end: columns run together"

# ---- mistakes
expect 2 "no box" "$phasor" plan "$model"
has err "for which box" "no box"
expect 2 "an unknown box" "$phasor" plan "$model" --box a6001x4
has err 'there is no "a6001x4"; known are' "an unknown box"
expect 2 "a prompt beyond the context" "$phasor" plan "$model" --box h200x2 --prompt-len 1g
has err "more than the model's context" "a prompt beyond the context"
expect 2 "no tokens" "$phasor" plan "$model" --box h200x2 --prompt-len 0
expect 1 "no model" "$phasor" plan none/config.json --box h200x2
expect 1 "a box file that is none" "$phasor" plan "$model" --box "$model/config.json"

exit $((failures > 0))
