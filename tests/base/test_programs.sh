#!/usr/bin/env bash
# Whatever file of the tree says in its first line which program runs it can be run by its name, as
# documents do; shows on a made-up tree that one which cannot is found.
#
# usage: test_programs.sh SOURCE_ROOT
set -euo pipefail

root=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# check ROOT FOLDER...: prints each that cannot be run; fails when there is one, or no program at all.
check()
{
    local found=0 bad=0 file
    while read -r file; do
        found=1
        [ -x "$file" ] || { echo "$file cannot be run: chmod +x"; bad=1; }
    done < <(cd "$1" && find "${@:2}" -type f -size -1024k -exec awk '
        FNR == 1 && /^#!/ { print FILENAME } { nextfile }' {} + | sed "s|^|$1/|")
    [ "$found" = 1 ] || { echo "no programs in $1"; return 1; }
    return "$bad"
}

mkdir "$scratch/bench"
printf '#!/usr/bin/env python3\n' >"$scratch/bench/a.py"
printf 'not a program\n#!\n' >"$scratch/bench/b.txt"
if said=$(check "$scratch" bench); then
    echo "a program that cannot be run was not found"
    exit 1
fi
[ "$said" = "$scratch/bench/a.py cannot be run: chmod +x" ] || { echo "found instead: $said"; exit 1; }
chmod +x "$scratch/bench/a.py"
check "$scratch" bench

check "$root" .ci bench scripts tests
