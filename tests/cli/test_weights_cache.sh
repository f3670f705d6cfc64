#!/usr/bin/env bash
# --weights-cache as a user meets it: the second load maps what the first has left, answers stay, and whatever is wrong
# with a file is a warning.
# Usage: test_weights_cache.sh PHASOR MODEL
set -u
phasor=$1
model=$2
source "$(dirname "$0")/tools.sh"

"$phasor" synth tiny-mixtral -o wide --seed 3 -q
cat >rows <<'ROWS'
{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":[1,2,3,4,5],"max_tokens":12,"ignore_eos":true,"return_token_ids":true}}
{"custom_id":"b","method":"POST","url":"/v1/completions","body":{"prompt":[9,8,7],"max_tokens":12,"ignore_eos":true,"return_token_ids":true}}
ROWS
answers() { jq -S '{custom_id, text: .response.body.choices}' "$1" | sort; }
# run LABEL MODEL OPTION...: into out.jsonl
run()
{
    local label=$1 of=$2
    shift 2
    expect 0 "$label" env PHASOR_CACHE="$dir/cache" "$phasor" run "$of" -i rows -o out.jsonl --overwrite \
        --deterministic "$@"
}
files() { find cache -name '*.weights' 2>/dev/null | wc -l; }

for options in "--plan static --devices cpu:1" "--plan tp2|tp2 --devices cpu:2" "--plan dp2|ep2>tp2 --devices cpu:2 --transition reshard" \
    "--plan dp2|ep2>tp2 --devices cpu:2 --transition keep" "--plan tp2|ep2 --devices cpu:2 --expert-dtype int4"; do
    read -ra words <<<"$options"
    rm -rf cache
    run "without: $options" wide "${words[@]}"
    answers out.jsonl >expected
    [ "$(files)" = 0 ] || fail "$options: weights were left that nobody asked for"
    run "first: $options" wide "${words[@]}" --weights-cache
    has err "packed weights will be left in $dir/cache/packed/[0-9a-f]*.weights" "first: $options"
    answers out.jsonl | cmp -s - expected || fail "first: $options: other answers"
    ranks=$(sed 's/.*cpu:\([0-9]\).*/\1/' <<<"$options")
    [ "$(files)" = "$ranks" ] || fail "$options: $(files) files of $ranks ranks"
    find cache -name '*.weights' -exec md5sum {} + | sort >sums
    run "second: $options" wide "${words[@]}" --weights-cache
    has err "packed weights are mapped from $dir/cache/packed/" "second: $options"
    ! grep -q "will be left in" err || fail "second: $options: weights were written again"
    answers out.jsonl | cmp -s - expected || fail "second: $options: other answers"
    find cache -name '*.weights' -exec md5sum {} + | sort | cmp -s - sums || fail "$options: a run changed its file"
done

# ---- files that are of no use
run "one rank" wide --plan static --weights-cache
file=$(grep -o "$dir/cache/packed/[0-9a-f]*.weights" err | head -1)
answers out.jsonl >expected
cp "$file" whole
flip() { printf 'x' | dd of="$2" bs=1 seek="$1" conv=notrunc 2>/dev/null; }
for damage in "truncate -s 3000000" "truncate -s 0" "truncate -s +1" "flip 20" "flip 2100000"; do
    cp --remove-destination whole "$file"
    $damage "$file"
    run "$damage" wide --plan static --weights-cache
    has err "warning: --weights-cache: $file: .*packed again" "$damage"
    has err "will be left in $file" "$damage"
    answers out.jsonl | cmp -s - expected || fail "$damage: other answers"
    cmp -s "$file" whole || fail "$damage: the file was not mended"
done
# ---- a model of the same shape has another file
"$phasor" synth tiny-mixtral -o other --seed 4 -q
before=$(files)
run "another model" other --plan static --weights-cache
has err "will be left in" "another model"
[ "$(files)" = $((before + 1)) ] || fail "another model has the same file"
answers out.jsonl | cmp -s - expected && fail "another model gives the same answers: these compare nothing"

# ---- a weight is written over in place, where no sample of the checkpoint is taken
run "before" other --plan static --weights-cache
has err "are mapped from" "before"
header=$(od -An -t u8 -N 8 other/model.safetensors | tr -d ' ')
head -c 64 /dev/zero | dd of=other/model.safetensors bs=1 seek=$((8 + header)) conv=notrunc 2>/dev/null
run "written over" other --plan static --weights-cache
has err "will be left in" "written over"

# ---- nothing can be left
expect 0 "no folder" env PHASOR_CACHE=/dev/null/none "$phasor" run wide -i rows -o out.jsonl --overwrite --plan static --weights-cache
has err "warning: --weights-cache: .*/dev/null" "no folder"
expect 0 "no cache" env -u PHASOR_CACHE -u XDG_CACHE_HOME -u HOME "$phasor" run wide -i rows -o out.jsonl --overwrite \
    --plan static --weights-cache
has err "warning: --weights-cache: there is no place for packed weights" "no cache"
(
    ulimit -f 100
    env PHASOR_CACHE="$dir/small" "$phasor" run wide -i rows -o out.jsonl --overwrite --plan static --weights-cache >out 2>err
) || fail "a file that is too large ended the run"
has err "warning: --weights-cache: cannot write .*ulimit" "too large a file"
[ -z "$(find small -type f 2>/dev/null)" ] || fail "something half-written was left"

# ---- killed while it writes: nothing stays, where the folder's system has files without a name
if python3 -c 'import os, sys; os.close(os.open(sys.argv[1], os.O_TMPFILE | os.O_WRONLY))' "$dir" 2>/dev/null; then
    "$phasor" synth mixtral-8x7b --layers 1 --scale 4 -o large -q
    for delay in 0 0.02 0.05 0.1; do
        rm -rf killed
        PHASOR_CACHE=$dir/killed "$phasor" run large -i rows -o out.jsonl --overwrite --plan static --weights-cache \
            >out 2>err </dev/null &
        until_ready $! grep -q "will be left in" err
        sleep "$delay"
        kill -TERM $! 2>/dev/null
        wait $!
        [ -z "$(find killed -name '*phasor-new*' 2>/dev/null)" ] || fail "killed after $delay s: something half-written was left"
    done
fi

# ---- text in, text out
expect 0 "a prompt" env PHASOR_CACHE="$dir/cache" "$phasor" run "$model" -p "In the beginning" -n 8 --weights-cache
cp out said
expect 0 "a prompt again" env PHASOR_CACHE="$dir/cache" "$phasor" run "$model" -p "In the beginning" -n 8 --weights-cache
cmp -s out said || fail "a prompt: other text"
has err "mapped from" "a prompt again"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
