#!/usr/bin/env bash
# scripts/same-answers: the bundled model's answers are one under every plan, and where a program's are
# not, it says so.
# usage: test_same_answers.sh SOURCE PHASOR
set -euo pipefail
source=$1 phasor=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PHASOR_CACHE=$scratch/cache

fail()
{
    cat "$scratch/said"
    echo "test_same_answers: $*" >&2
    exit 1
}

# compare EXPECTED-CODE PHASOR ARGUMENT...
compare()
{
    local expected=$1 program=$2 code=0
    shift 2
    "$source/scripts/same-answers" --rows "$scratch/rows.jsonl" "$program" "$source/models/kjv-moe" "$@" \
        >"$scratch/said" 2>&1 || code=$?
    [ "$code" -eq "$expected" ] || fail "exit code $code for $expected: $*"
}

# liar CHANGE: a program whose answers on cpu:1 are changed so; `choice` is each of them
liar()
{
    cat >"$scratch/liar" <<END
#!/usr/bin/env bash
"$phasor" "\$@" || exit
[[ " \$* " == *" run "*" cpu:1 "* ]] || exit 0
while [ "\$1" != -o ]; do shift; done
python3 - "\$2" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for row in rows:
    for choice in row["response"]["body"]["choices"]:
        $1
open(sys.argv[1], "w").write("".join(json.dumps(row) + "\n" for row in rows))
PYTHON
END
    chmod +x "$scratch/liar"
}

cat >"$scratch/rows.jsonl" <<'END'
{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": ["In the beginning", "And it came to pass"], "max_tokens": 12, "stop": ["."], "seed": 3}}
{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The LORD is my", "max_tokens": 4, "temperature": 0.8}}
END
compare 0 "$phasor" cpu:1 cpu:2
[ "$(grep -c '^agrees .* 3 of 3 answers equal, 42 tokens' "$scratch/said")" -eq 18 ] || fail "not all plans were compared"

liar 'choice["logprobs"]["tokens"][2] = "lie"'
compare 1 "$scratch/liar" --reference cpu:2 cpu:1
grep -q "^FAILED *cpu:1 *tp1|tp1  .*[ab]: token 2 is 'lie', not '" "$scratch/said" || fail "a wrong token is not told"

liar 'choice["logprobs"]["token_logprobs"] = [x - 0.019 for x in choice["logprobs"]["token_logprobs"]]'
compare 1 "$scratch/liar" --reference cpu:2 cpu:1
grep -q "^FAILED .*NLL is [01].[0-9]* % off; at most 0.[0-9]* % were noise" "$scratch/said" || fail "wrong probabilities are not told"

liar 'choice["logprobs"]["tokens"].pop(), choice["logprobs"]["token_logprobs"].pop()'
compare 1 "$scratch/liar" --reference cpu:2 cpu:1
grep -q "^FAILED .*: \(11 tokens for 12\|3 tokens for 4\)" "$scratch/said" || fail "a short answer is not told"

# Of two tokens that are nearly as likely either may come first, but not in most answers.
truth='choice["logprobs"]["tokens"][2]'
close="$truth, choice[\"logprobs\"][\"top_logprobs\"][2] = \"lie\", {\"lie\": -1.0, $truth: -1.04}"
liar "if row[\"custom_id\"] == \"b\": $close"
sed -i 's/cpu:1/cpu:2/' "$scratch/liar"
compare 0 "$scratch/liar" --reference cpu:2 cpu:1
grep -q "^agrees .* 2 of 3 answers equal, others by 0.04, 40 tokens" "$scratch/said" ||
    fail "what is close is not told apart"
liar "$close"
sed -i 's/cpu:1/cpu:2/' "$scratch/liar"
compare 1 "$scratch/liar" --reference cpu:2 cpu:1
grep -q "^FAILED .*3 of 3 answers differ" "$scratch/said" || fail "many that differ are not told"

# Farther behind than the noise of number types, in one answer of three.
liar "if row[\"custom_id\"] == \"b\": ${close/1.04/1.9}"
sed -i 's/cpu:1/cpu:2/' "$scratch/liar"
compare 1 "$scratch/liar" --reference cpu:2 cpu:1
grep -q "^FAILED .*b: token 2 is .*, not 'lie', whose logit is larger by 0.9; the noise is 0.0" "$scratch/said" ||
    fail "a token that is not close is not told"

# Off now to one side, now to the other, so that the whole cost stays what it is.
liar 'choice["logprobs"]["token_logprobs"] = [x + (-1) ** i / 8 for i, x in enumerate(choice["logprobs"]["token_logprobs"])]'
compare 1 "$scratch/liar" --reference cpu:2 cpu:1
grep -q "^FAILED .*28 of [0-9]* tokens are off by more than 0.0" "$scratch/said" || fail "tokens that are off are not told"

# A reference whose number types are not one model's.
liar 'for i in range(9 if "float32" in sys.argv[2:] else 0): choice["logprobs"]["token_logprobs"] = [x - 1 for x in choice["logprobs"]["token_logprobs"]]'
sed -i "s/python3 - \"\$2\"/python3 - \"\$2\" \"\$@\"/" "$scratch/liar"
compare 1 "$scratch/liar" cpu:2
grep -q "same-answers: the reference differs by 9 from its own answers" "$scratch/said" || fail "no word of a reference that is wrong"

for devices in cpu:3 cpu:x gpu:0 cuda:0-; do
    compare 2 "$phasor" "$devices"
    grep -q "$devices: give cpu:N, .* of 1, 2, 4, 8 devices" "$scratch/said" || fail "no word of $devices"
done
printf '#!/bin/sh\necho broken >&2; exit 1\n' >"$scratch/liar"
compare 1 "$scratch/liar" cpu:2
grep -q "same-answers: exit code 1: broken" "$scratch/said" || fail "a program that fails is not told"
