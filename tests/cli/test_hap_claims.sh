#!/usr/bin/env bash
# bench/hap_claims.py: each claim and each panel has its row, and every row its numbers.
# Usage: test_hap_claims.sh PHASOR SCRIPT PAGE; without Python it is skipped (77).
set -u
phasor=$1
model=$2
script=$(realpath "$2") # in bench/
page=$(realpath "$3")
command -v python3 >/dev/null || exit 77
source "$(dirname "$0")/tools.sh"

expect 0 "the tables" python3 "$script" --phasor "$phasor" --quick
silent err "the tables"
# rows TITLE: of the table below the title, without its head
rows() { awk -v title="### $1" '$0 == title {on = 1; next} /^###/ {on = 0} on && /^\| [^-f]/' out; }
rows "Claims of the text" >claims
lines claims 20 "claims"
rows "Every bar" >bars
lines bars 26 "a batch of each panel"
rows "Static TP's seconds beside the axes" >axes
lines axes 26 "panels"
for claim in "4 .*IV-C.1" "6 .*IV-C.2" "7 .*IV-C.3" "7 .*abstract" "8a " "8b .*v100x8" "9 "; do
    has claims "^| $claim" "claims"
done
! grep -q -i -e "nan" -e "inf" -e "|  |" claims bars axes || fail "a row lacks a number"
awk -F ' *[|] *' '$9 < 1 || $9 - $8 - $10 > 0.011 || $8 + $10 - $9 > 0.011 {bad = 1} END {exit bad}' claims ||
    fail "a residual is not the difference"

# ---- into the page: between its marks, and nowhere else
cp out tables
cp "$page" page.md
expect 0 "a page" python3 "$script" --phasor "$phasor" --quick --page page.md
diff <(sed -n '/tables: begin/,/tables: end/p' page.md | sed -e '1,2d' -e '$d' | sed '$d') tables >out ||
    fail "a page: not the tables"
diff <(sed '/tables: begin/,/tables: end/d' "$page") <(sed '/tables: begin/,/tables: end/d' page.md) >out ||
    fail "a page: something else has changed"

# ---- what cannot be answered ends it
expect 1 "no phasor" python3 "$script" --phasor false --quick
has err "^false inspect .*: exit status 1" "no phasor"
mkdir bench && cp -r "$script" "$(dirname "$script")/hap" bench/
sed -i 's/"num_hidden_layers": 32/"num_hidden_layers": 31/' bench/hap/mixtral-8x7b/config.json
expect 1 "another model" python3 "bench/${script##*/}" --phasor "$phasor" --quick
has err "mixtral-8x7b: 45.3 billion parameters, 46.7 in HAP's table III" "another model"

exit $((failures > 0))
