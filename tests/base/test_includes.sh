#!/usr/bin/env bash
# Holds every #include "..." of src/, kernels/ and include/ against the table in src/README.md, and
# shows on made-up trees that a breach is found.
#
# usage: test_includes.sh SOURCE_ROOT
set -euo pipefail

root=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# check ROOT: prints each breach; fails when there is one.
check()
{
    (
        cd "$1"
        find src kernels include -type f \
            \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) |
            LC_ALL=C sort >"$scratch/files"
        [ -s "$scratch/files" ] || { echo "no sources in $1"; exit 1; }
        awk '
            function breach(text) { print FILENAME ":" FNR ": " text; bad = 1 }
            function folder_of(path) { sub(/\/[^\/]*$/, "", path); return path }

            # The table: | `part` | `may` `include` | what |
            FILENAME == "src/README.md" {
                if ($0 !~ /^\| `/)
                    next
                split($0, cell, "|")
                if (cell[4] == "")
                    breach("a row of the table needs three cells")
                gsub(/[ `]/, "", cell[2])
                part = cell[2]
                if (part in is_part)
                    breach(part " stands twice in the table")
                is_part[part] = 1
                part_count++
                gsub(/`/, "", cell[3])
                count = split(cell[3], names, " ")
                for (i = 1; i <= count; i++) {
                    if (names[i] != "include" && !(names[i] in is_part))
                        breach(part " may include " names[i] ", which does not stand above it")
                    may[part, names[i]] = 1
                }
                next
            }

            FNR == 1 {
                mine = folder_of(FILENAME)
                if (mine != "include" && !(mine in is_part))
                    breach(mine " holds code, but is no part in the table of src/README.md")
                if (FILENAME !~ /^kernels\// && FILENAME !~ /\.[ch]$/)
                    breach("code other than C belongs into kernels/")
            }

            /^[ \t]*#[ \t]*include[ \t]*"/ {
                split($0, quoted, "\"")
                name = quoted[2]
                if (name ~ /\.\./)
                    breach("\"" name "\" goes up in the tree")
                else if (name == "phasor.h")
                    other = "include"
                else if (name !~ /\//)
                    other = mine
                else if (name ~ /^kernels\//)
                    other = folder_of(name)
                else
                    other = "src/" folder_of(name)
                if (other != mine && !((mine, other) in may))
                    breach(mine " may not include " other " (\"" name "\")")
                include_count++
            }

            END {
                if (part_count == 0)
                    breach("src/README.md has no table of parts")
                if (!bad)
                    printf "%d includes between %d parts are as src/README.md says\n",
                           include_count, part_count
                exit bad
            }
        ' src/README.md $(cat "$scratch/files")
    )
}

# found PATTERN FILE LINE: in a small tree of two parts, FILE holding LINE is a breach.
found()
{
    local tree=$scratch/tree
    rm -rf "$tree"
    mkdir -p "$tree"/src/base "$tree"/src/layout "$tree"/kernels "$tree"/include
    printf '%s\n' '| part | may include | what |' '| --- | --- | --- |' \
        '| `src/base` | | below |' '| `src/layout` | `src/base` | above |' >"$tree/src/README.md"
    echo '#include "base/base.h"' >"$tree/src/layout/layout.c"
    echo 'int base;' >"$tree/src/base/base.h"
    check "$tree" >/dev/null || { echo "the right tree was refused"; exit 1; }
    mkdir -p "$(dirname "$tree/$2")"
    echo "$3" >>"$tree/$2"
    if check "$tree" >"$scratch/said"; then
        echo "not found: $2 with $3"
        exit 1
    fi
    grep -q -- "$1" "$scratch/said" || { echo "$2 with $3: unclear:"; cat "$scratch/said"; exit 1; }
}

found 'may not include src/layout' src/base/base.h '#include "layout/layout.h"'
found 'may not include include' src/layout/layout.c '#  include "phasor.h"'
found 'goes up' src/layout/layout.c '#include "../base/base.h"'
found 'no part' src/more/more.c 'int more;'
found 'may not include kernels/cpu' src/layout/layout.c '#include "kernels/cpu/kernels.h"'
found 'not stand above' src/README.md '| `src/odd` | `src/later` | odd |'
found 'other than C' src/base/base.cpp 'int base;'

check "$root"
