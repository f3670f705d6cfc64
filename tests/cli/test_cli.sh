#!/usr/bin/env bash
# The command line as a user meets it: exit codes, what goes to which stream, signals.
# Usage: test_cli.sh PHASOR MODEL
set -u
phasor=$1
model=$2
manual=$(realpath "$(dirname "$0")/../../docs/man/phasor.1")
source "$(dirname "$0")/tools.sh"

row() { # row ID BODY
    printf '{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{%s}}\n' "$1" "$2"
}

# ---- help and usage
expect 0 "--help" "$phasor" --help
has out "Commands:" "--help"; silent err "--help"
expect 0 "help run" "$phasor" help run
has out "--max-num-seqs" "help run"
for command in run inspect plan quantize replay calibrate bench report synth completion version; do
    expect 0 "$command --help" "$phasor" "$command" --help
    has out "Usage: phasor $command" "$command --help"; silent err "$command --help"
    # Each has its place in the manual: "-o, --output FILE" is ".It Fl o , Fl -output Ar file" there.
    sed -n "/^\.Ss phasor $command\$/,/^\.S[sh] /p" "$manual" >section
    for option in $(grep -oE '^ {2,6}(-[a-zA-Z], )?--[a-z0-9-]+' out | grep -oE -- '--.*'); do
        [ "$option" = --help ] || grep -qE -- "Fl ${option#-}( |\$)" section || fail "phasor(1): no $option of $command"
    done
done
expect 0 "--version" "$phasor" --version
has out "^phasor [0-9]" "--version"
has out "NCCL[: ]" "--version"
expect 2 "no command" "$phasor"
silent out "no command"
expect 2 "unknown command" "$phasor" walk
has err "walk" "unknown command"
expect 2 "unknown flag" "$phasor" run "$model" --no-such-flag
has err "no-such-flag" "unknown flag"
expect 2 "no files" "$phasor" run "$model"
has err "--input-file" "no files"
expect 2 "no model" "$phasor" run -i in -o o
expect 2 "two models" "$phasor" run "$model" --model other -p x
expect 2 "too many operands" "$phasor" run "$model" "$model" -p x
expect 2 "bad size" "$phasor" run "$model" -p x --kv-memory 4XB
has err "kv-memory" "bad size"
expect 2 "bad count" "$phasor" run "$model" -p x --max-num-seqs 0
expect 2 "bad word" "$phasor" run "$model" -p x --dtype int3
expect 2 "half" "$phasor" run "$model" -p x --dtype half
has err "bfloat16" "half"
expect 2 "tokens below seqs" "$phasor" run "$model" -i in -o o --max-num-seqs 8 --max-num-batched-tokens 7
expect 2 "a prompt's option with a file" "$phasor" run "$model" -i in -o o --top-p 0.5
has err "is for --prompt" "a prompt's option with a file"
for option in "--temperature 0" "--top-p 1" "--top-k 0" "--max-tokens 128"; do # given as they are without
    expect 2 "$option with a file" "$phasor" run "$model" -i in -o o $option
    has err "is for --prompt" "$option with a file"
done
for option in --strict "--max-num-seqs 256" "--max-num-batched-tokens 0" "--max-num-batched-tokens 8"; do
    expect 2 "$option with a prompt" "$phasor" run "$model" -p x $option
    has err "is for a batch file, not for --prompt" "$option with a prompt"
done
expect 2 "a template without --chat" "$phasor" run "$model" -p x --chat-template mixtral
has err "needs --chat" "a template without --chat"
for value in "top-p 0:is below 1e-09" "top-p 1.5:is above 1" "temperature 101:is above 100" "temperature -1:is below 0" \
    "top-k -1:is below 0" "max-tokens 0:is below 1" "max-tokens -3:is below 0" "max-tokens -q:is no whole number" "max-num-seqs 9E:is no whole number" "seed -1:from 0"; do
    expect 2 "--${value%:*}" "$phasor" run "$model" -p x --${value%:*}
    has err "${value#*:}" "--${value%:*}"
done
expect 0 "little memory for a prompt" "$phasor" run "$model" -p In --memory 20MiB -n 1
expect 0 "an answer longer than the cache" "$phasor" run "$model" -p In --kv-memory 400KiB -n 500
has err "^note: the KV cache of .* not for 500; --kv-memory or --memory makes more" "an answer longer than the cache"
expect 1 "no memory for a prompt" "$phasor" run "$model" -p In --memory 12MiB
has err "; raise --memory$" "no memory for a prompt"
expect 0 "an answer longer than the context" "$phasor" run "$model" -p In --max-model-len 4 -n 30
has err "^note: the context of 4 tokens has room for" "an answer longer than the context"
expect 0 "variables for a file with a prompt" env PHASOR_MAX_NUM_SEQS=64 PHASOR_MAX_NUM_BATCHED_TOKENS=8 \
    PHASOR_STRICT=1 PHASOR_CHAT_TEMPLATE=mixtral "$phasor" run "$model" -p In --max-tokens 1
expect 0 "variables of other calls with a prompt" env PHASOR_MODEL=none PHASOR_INPUT_FILE=none PHASOR_OUTPUT_FILE=none \
    PHASOR_RECORD=rec PHASOR_PROFILE=none PHASOR_ROUTING=none PHASOR_RESUME=1 PHASOR_OVERWRITE=1 "$phasor" run "$model" -p In --max-tokens 1 --plan "tp1|tp1"
[ ! -e rec ] || fail "a prompt left a recording"
expect 2 "a profile for a plan that is given" "$phasor" run "$model" -p x --plan tp1 --profile none
has err "profile is for --plan auto" "a profile for a plan that is given"
expect 2 "a variable and an option" env PHASOR_MAX_NUM_SEQS=64 "$phasor" run "$model" -p In --max-num-seqs 4
has err "is for a batch file, not for --prompt" "a variable and an option"
expect 2 "bad variable" env PHASOR_SEED=x "$phasor" run "$model" -p x
has err "PHASOR_SEED" "bad variable"
# Ranges that only the model tells are wrong usage, too; what depends on the machine is not.
row a '"prompt":"In","max_tokens":1' >one
expect 2 "too many tokens a pass" "$phasor" run "$model" -i one -o o0 --max-num-batched-tokens 4g
has err "max-num-batched-tokens: expected" "too many tokens a pass"
expect 2 "too many sequences" "$phasor" run "$model" -i one -o o0 --max-num-seqs 2g \
    --max-num-batched-tokens 2g
expect 2 "too long a context for a prompt" "$phasor" run "$model" -p x --max-model-len 99999999
expect 2 "too long a context" "$phasor" run "$model" -i one -o o0 --max-model-len 99999999
expect 2 "no such template" "$phasor" run "$model" -i one -o o0 --chat-template none-such
expect 1 "too little memory" "$phasor" run "$model" -i one -o o0 --memory 1
has err "memory is 1 B" "too little memory"
[ ! -e o0 ] || fail "a refused run made an output"
expect 0 "one row" env PHASOR_PROMPT=other PHASOR_OVERWRITE=1 "$phasor" run "$model" -i one -o o0 --resume
has err "^1 row: 1 completed" "one row"
for shell in bash zsh fish; do
    expect 0 "completion $shell" "$phasor" completion $shell
    has out "max-num-seqs" "completion $shell"
done
! "$phasor" completion zsh | grep -q ']:[^:]*cpu:N' || fail "zsh takes the N of cpu:N for a command"
"$phasor" completion bash | bash -n || fail "the bash completion is no bash"
expect 2 "completion of what" "$phasor" completion tcsh

# ---- batch files
row a '"prompt":"In the beginning","max_tokens":4' >good
row b '"prompt":"And God said","max_tokens":4' >>good
{ cat good; row a '"prompt":"again"'; echo 'no json'; row c '"prompt":"x","n":0'; } >mixed

expect 0 "a good file" "$phasor" run "$model" -i good -o o1
silent out "a good file"; has err "2 rows: 2 completed, 0 failed" "a good file"; lines o1 2 "a good file"
has err "^peak memory .*: rank 0 .*; KV cache .*, at most [0-9.]* KiB of it set aside for rows$" "a good file"
expect 0 "quiet" "$phasor" run "$model" -i good -o o2 --quiet
silent out "quiet"; silent err "quiet"
expect 1 "an old output" "$phasor" run "$model" -i good -o o1
has err "--overwrite" "an old output"; lines o1 2 "an old output"
expect 0 "--overwrite" "$phasor" run "$model" -i good -o o1 --overwrite
expect 0 "--overwrite without error file" "$phasor" run "$model" -i good -o o1 --error-file /dev/null --overwrite
lines o1 2 "--overwrite without error file"
[ ! -e o1.phasor-run ] || fail "the record of an output that was replaced stays"
expect 0 "--overwrite with errors on stdout" "$phasor" run "$model" -i good -o o1 --error-file - --overwrite
lines o1 2 "--overwrite with errors on stdout"
expect 0 "results on stdout" "$phasor" run "$model" -i good -o -
lines out 2 "results on stdout"; has out '"custom_id":"a"' "results on stdout"
expect 0 "what is expected" "$phasor" run "$model" -i good -o - --verbose
tokens=$(($(stat -c %s good) / 5))
has err "^note: about $tokens tokens of prompts are expected: keys and values of [0-9]* have" "what is expected"
expect 0 "input from a pipe" bash -c "cat good | '$phasor' run '$model' -i - -o -"
lines out 2 "input from a pipe"
expect 0 "what is left of a file" bash -c "{ read -r _; '$phasor' run '$model' -i - -o -; } <good"
lines out 1 "what is left of a file"; has out '"custom_id":"b"' "what is left of a file"
expect 0 "options from variables" env PHASOR_INPUT_FILE=good PHASOR_OUTPUT_FILE=- PHASOR_QUIET=1 \
    PHASOR_MAX_NUM_SEQS=1 "$phasor" run "$model"
lines out 2 "options from variables"; silent err "options from variables"
expect 3 "a mixed file" "$phasor" run "$model" -i mixed -o o3
silent out "a mixed file"; has err "2 completed, 3 failed" "a mixed file"; has err "why rows failed stands in o3" "a mixed file"; lines o3 5 "a mixed file"
has o3 "line 3: this custom_id stands on line 1" "a mixed file"
expect 3 "an error file" "$phasor" run "$model" -i mixed -o o4 --error-file e4
lines o4 2 "an error file"; lines e4 3 "an error file"
expect 1 "--strict" "$phasor" run "$model" -i mixed -o o5 --strict
has err "line 3" "--strict"; [ ! -e o5 ] || fail "--strict made an output"
expect 1 "no input" "$phasor" run "$model" -i none -o o6
has err "none" "no input"; [ ! -e o6 ] || fail "a refused run made an output"
expect 1 "a folder as output" "$phasor" run "$model" -i good -o .
has err "is a folder" "a folder as output"
expect 1 "no folder for the output" "$phasor" run "$model" -i good -o no/such/folder/o
has err "its folder" "no folder for the output"
expect 1 "no model there" "$phasor" run ./no/such/model -i good -o o6
has err "no/such/model" "no model there"
expect 1 "a full disk" "$phasor" run "$model" -i good -o /dev/full
has err "/dev/full" "a full disk"
expect 1 "the input as output" "$phasor" run "$model" -i good -o good --overwrite
lines good 2 "the input as output"

# Where it is not there, it is said what is missing.
"$phasor" run "$model" -p x --max-tokens 1 --devices cuda:0 >out 2>err ||
    has err "cannot use cuda:0: it was configured without CUDA (cmake --preset cuda\\|cuda:0 cannot be used\\|there is no cuda:0" \
        "a GPU"

# ---- metrics and summary
expect 0 "--metrics-file" "$phasor" run "$model" -i good -o o8 --metrics-file m.prom --summary-file s.json \
    --devices cpu:2
has m.prom '^phasor:rows_completed_total{.*} 2$' "--metrics-file"
has s.json '"total_output_tokens":8,' "--summary-file"; lines s.json 1 "--summary-file"
for word in request_throughput output_throughput total_token_throughput "prefill [0-9.]* tok/s" \
    "decode [0-9.]* tok/s" "^TTFT " "^TPOT " "^ITL " "^E2EL " "^collectives " "rank 1 "; do
    has err "$word" "the summary"
done
[ "$(ls -- *.phasor-new-* 2>/dev/null)" = "" ] || fail "a new file was left beside the old one"
expect 0 "a full disk for metrics" "$phasor" run "$model" -i good -o o9 --metrics-file /dev/full
[ "$(grep -c "warning: --metrics-file" err)" -eq 1 ] || fail "a full disk is not told once"
# These are refused before a model is looked for.
expect 1 "no folder for metrics" "$phasor" run none -i good -o o10 --metrics-file no/such/m.prom
has err "no/such/m.prom, or a new file beside it: No such" "no folder for metrics"
expect 1 "metrics over the input" "$phasor" run none -i good -o o10 --metrics-file ./good
has err "another file of this run" "metrics over the input"
expect 1 "metrics over the output" "$phasor" run none -i good -o o10 --metrics-file o10
expect 1 "a summary over metrics" "$phasor" run none -i good -o o10 --metrics-file m --summary-file m
has err "summary-file: m is m" "a summary over metrics"
expect 1 "a folder for metrics" "$phasor" run none -i good -o o10 --metrics-file .
expect 1 "a stream for metrics" "$phasor" run none -i good -o o10 --metrics-file -
expect 1 "metrics over the output by another name" "$phasor" run none -i good -o o10 --metrics-file ./o10
has err "another file of this run" "metrics over the output by another name"
expect 1 "metrics over the record" "$phasor" run none -i good -o o10 --metrics-file ./o10.phasor-run
has err "another file of this run" "metrics over the record"
expect 1 "metrics in /proc" "$phasor" run none -i good -o o10 --metrics-file /proc/phasor
has err "/proc/phasor" "metrics in /proc"
expect 1 "an output in /proc" "$phasor" run none -i good -o /proc/phasor
has err "/proc/phasor" "an output in /proc"
mkfifo fifo; ln -s nowhere dangling
expect 1 "a pipe for metrics" "$phasor" run none -i good -o o10 --metrics-file fifo
has err "is a pipe" "a pipe for metrics"
expect 1 "a link to nothing" "$phasor" run none -i good -o dangling
has err "a link to a file that is not there" "a link to nothing"
expect 1 "a summary over something else" "$phasor" run none -i good -o o10 --summary-file mixed
has err "did not write" "a summary over something else"
bash -c "'$phasor' run none -i good -o - --metrics-file /dev/stdout >stream 2>err" && fail "metrics on standard output"
has err "standard output" "metrics on standard output"
for flag in input output error metrics summary; do
    expect 2 "--$flag-file=" "$phasor" run none -i good -o o10 "--$flag-file="
    has err "$flag-file needs the name" "--$flag-file="
done
expect 2 "metrics of a prompt" "$phasor" run "$model" -p x --metrics-file m.prom
lines good 2 "metrics over the input"; [ ! -e o10 ] || fail "a refused run made an output"

# ---- one prompt
expect 0 "-p" "$phasor" run "$model" -p "In the beginning" -n 5
[ -s out ] || fail "-p printed nothing"; silent err "-p"
expect 0 "--chat" "$phasor" run "$model" -p "Who was Moses?" --chat -n 5
expect 0 "a template" "$phasor" run "$model" -p "Who was Moses?" --chat --chat-template mixtral -n 5
expect 2 "no such template for a prompt" "$phasor" run "$model" -p x --chat --chat-template none-such
expect 1 "-p on a full disk" bash -c "'$phasor' run '$model' -p In -n 5 >/dev/full"

# ---- inspect and synth
expect 0 "inspect" "$phasor" inspect "$model"
has out "MixtralForCausalLM" "inspect"; silent err "inspect"
expect 0 "inspect --json" "$phasor" inspect "$model" --json
has out '"expert_count": 8' "inspect --json"
expect 1 "inspect nothing" "$phasor" inspect ./no/such/model
expect 0 "inspect a plan" "$phasor" inspect "$model" --plan "tp2dp2|tp2ep2"
has out "^plan  *tp2dp2|tp2ep2$" "inspect a plan"; silent err "inspect a plan"
has out "attention  *groups 0-1, 2-3: 8 of 16 heads, 4 of 8 of keys" "inspect a plan"
has out "experts  *groups 0-1, 2-3: 4 of 8 experts, 128 of 256 wide" "inspect a plan"
has out "^memory of device  *0-3$" "inspect a plan"
has out "^  experts  *2.25 MiB$" "inspect a plan"
expect 0 "inspect by devices" "$phasor" inspect "$model" --devices cpu:2
has out "tp2|tp2: static TP (the default)" "inspect by devices"
expect 0 "inspect all plans" "$phasor" inspect "$model" --plan list --devices cpu:16
has out "^tp8dp2|tp2ep8 .*static EP" "inspect all plans"
has out "^tp16|ep16  *no: 8 heads of keys and values cannot be cut 16 ways" "inspect all plans"
expect 0 "inspect plans as JSON" "$phasor" inspect "$model" --plan list --devices cpu:2 --json
has out '"plan": "tp2|ep2"' "inspect plans as JSON"
expect 0 "inspect a plan's memory" "$phasor" inspect "$model" --plan "tp1|tp1" --dtype float32 \
    --max-num-seqs 1 --max-num-batched-tokens 16
has out "1 device, float32, passes of 16 tokens of at most 1 seq" "inspect a plan's memory"
expect 2 "inspect no plan" "$phasor" inspect "$model" --plan "tp2"
has err "ATTENTION|EXPERTS" "inspect no plan"; silent out "inspect no plan"
expect 2 "inspect an illegal plan" "$phasor" inspect "$model" --plan "tp16|tp16"
has err "cannot be cut 16 ways" "inspect an illegal plan"; silent out "inspect an illegal plan"
expect 2 "inspect another number" "$phasor" inspect "$model" --plan "tp2|ep2" --devices cpu:4
has err "must lie over 4" "inspect another number"
expect 2 "inspect plans of what" "$phasor" inspect "$model" --plan list
has err "--devices cpu:N" "inspect plans of what"
expect 0 "synth --list" "$phasor" synth --list
has out "tiny-mixtral" "synth --list"
expect 0 "synth" "$phasor" synth tiny-mixtral -o made --seed 3
"$phasor" synth tiny-mixtral -o octal --seed 010 && "$phasor" synth tiny-mixtral -o ten --seed 10 &&
    "$phasor" synth tiny-mixtral -o hex --seed 0xA || fail "seeds with zeros in front"
cmp octal/model.safetensors ten/model.safetensors && cmp hex/model.safetensors ten/model.safetensors ||
    fail "010 is no ten"
expect 1 "a text without a tokenizer" "$phasor" run made -p In
has err "made has no tokenizer.json, .* a batch file can hold token ids" "a text without a tokenizer"
expect 1 "synth into a full folder" "$phasor" synth tiny-mixtral -o made
expect 1 "synth of what" "$phasor" synth no-such-preset -o other
row a '"prompt":[1,2,3],"max_tokens":2,"return_token_ids":true' >ids
expect 0 "a model without tokenizer" "$phasor" run made -i ids -o -
has out '"token_ids":\[' "a model without tokenizer"

# ---- signals: what is finished is kept, whole
for i in $(seq 20); do row "s$i" '"prompt":"In","max_tokens":1'; done >many
for i in $(seq 20000); do row "r$i" '"prompt":"In the beginning","max_tokens":400'; done >>many
for signal in INT:130 TERM:143; do
    rm -f o7 m7
    # A background job of a script ignores SIGINT, unless it is told not to.
    env --default-signal=INT "$phasor" run "$model" -i many -o o7 --metrics-file m7 \
        --max-num-seqs 16 >out 2>err </dev/null &
    pid=$!
    until_ready $pid [ -s o7 ]
    kill "-${signal%:*}" $pid
    wait $pid
    code=$?
    [ $code -eq "${signal#*:}" ] || fail "SIG${signal%:*}: exit code $code"
    [ -s o7 ] || fail "SIG${signal%:*}: nothing was kept"
    [ -z "$(tail -c 1 o7)" ] || fail "SIG${signal%:*}: the last line is not whole"
    has err "not run" "SIG${signal%:*}"
    [ "$(grep -c "phasor: stopping: " err)" -eq 1 ] || fail "SIG${signal%:*}: not announced once"
    has m7 '^phasor:run_ended{.*} 1$' "SIG${signal%:*}"
done

# The sentence comes from the handler, not from behind the pass under way; with the second signal the
# program ends as signals end it.
printf '"max_tokens":1,"prompt":[5' >body
for i in $(seq 900); do printf ',%d' $((i + 5)); done >>body
for i in $(seq 1000); do row "l$i" "$(cat body),$i]"; done >long
"$phasor" run "$model" -i long -o o11 --max-num-batched-tokens 8192 --no-prefix-sharing \
    --threads 1 >out 2>err </dev/null &
pid=$!
until_ready $pid [ -e o11 ]
kill -TERM $pid
until_ready $pid grep -q "phasor: stopping: " err
has err "phasor: stopping: the pass under way is finished" "a signal within a pass"
sleep 1.1
kill -TERM $pid 2>/dev/null
wait $pid
code=$?
[ $code -eq 143 ] || fail "a second signal: exit code $code"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
