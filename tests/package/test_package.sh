#!/usr/bin/env bash
# Installs a built tree into a new place and uses it as others would: the header from C and C++, the
# libraries through pkg-config and through CMake, shared and static.
#
# usage: test_package.sh SOURCE_ROOT BUILD_TREE C_COMPILER
set -euo pipefail

root=$1 build=$2 cc=$3
consumer=$root/tests/package/consumer
model=$root/models/kjv-moe
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stage=$scratch/stage

fail()
{
    echo "FAILED: $*" >&2
    exit 1
}

quietly()
{
    "$@" >"$scratch/said" 2>&1 || { cat "$scratch/said"; fail "$*"; }
}

quietly cmake --install "$build" --prefix "$stage"
lib=$(dirname "$(find "$stage" -name libphasor.a)")
pc_path=$lib/pkgconfig
shared=no
[ ! -e "$lib/libphasor.so" ] || shared=yes

echo "the tree"
for file in bin/phasor include/phasor.h share/man/man1/phasor.1 share/doc/phasor/LICENSE \
    share/phasor/boxes/a6000x4.json share/doc/phasor/docs/plans.md; do
    [ -s "$stage/$file" ] || fail "$file is not installed"
done
"$stage/bin/phasor" version >/dev/null
"$stage/bin/phasor" replay none --box none-such >"$scratch/said" 2>&1 || true
grep -q 'known are .*a6000x4' "$scratch/said" ||
    fail "an installed phasor does not find its boxes"

echo "the header"
for language in c++ c; do
    quietly "$cc" -x "$language" -Wall -Wextra -Werror -pedantic -fsyntax-only \
        "$stage/include/phasor.h"
done

echo "the exported names"
nm -g --defined-only "$lib/libphasor.a" | awk 'NF == 3 { print $3 }' >"$scratch/names-static"
[ -s "$scratch/names-static" ] || fail "libphasor.a exports nothing"
! grep -v '^phasor_' "$scratch/names-static" || fail "libphasor.a exports these"
if [ $shared = yes ]; then
    nm -D --defined-only "$lib/libphasor.so" | awk '$2 != "A" { print $3 }' >"$scratch/names-shared"
    ! grep -v '^phasor_[a-z_]*@@PHASOR_0$' "$scratch/names-shared" || fail "libphasor.so exports these"
    sed 's/@@.*//' "$scratch/names-shared" | sort | diff - <(sort "$scratch/names-static") ||
        fail "libphasor.so and libphasor.a export different names"
fi

# pkg_config KIND LIBRARY_FOLDER [pkg-config option]
pkg_config()
{
    local kind=$1 folder=$2
    local pc=(env PKG_CONFIG_PATH="$pc_path${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}" pkg-config)
    echo "pkg-config, $kind"
    # Word splitting is what the output of pkg-config is made for.
    quietly "$cc" -o "$scratch/consumer-$kind" "$consumer/main.c" -L"$folder" \
        $("${pc[@]}" --cflags --libs ${3+"$3"} phasor)
    quietly env LD_LIBRARY_PATH="$folder" "$scratch/consumer-$kind" "$model"
}

# A linker takes the shared library where both are: the static one is tried alone.
mkdir "$scratch/alone"
cp "$lib/libphasor.a" "$scratch/alone"
if [ $shared = yes ]; then
    pkg_config shared "$lib"
    readelf -d "$scratch/consumer-shared" | grep -q 'libphasor\.so\.0' ||
        fail "the soname is not libphasor.so.0"
fi
mv "$lib" "$scratch/away"
mkdir -p "$lib"
cp -r "$scratch/away/pkgconfig" "$lib"
pkg_config static "$scratch/alone" --static
rm -r "$lib"
mv "$scratch/away" "$lib"

kinds=static
[ $shared = no ] || kinds='shared static'
for kind in $kinds; do
    echo "find_package, $kind"
    quietly cmake -S "$consumer" -B "$scratch/$kind" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_PREFIX_PATH="$stage${CMAKE_PREFIX_PATH:+;$CMAKE_PREFIX_PATH}" -DKIND="$kind" \
        -DWANTED_VERSION=0.1
    quietly cmake --build "$scratch/$kind"
    quietly "$scratch/$kind/consumer" "$model"
    quietly "$scratch/$kind/consumer_default" "$model"
done
! cmake -S "$consumer" -B "$scratch/later" -DCMAKE_PREFIX_PATH="$stage" -DKIND=static \
    -DWANTED_VERSION=0.2 >/dev/null 2>&1 || fail "0.1 was taken for 0.2"
echo "the package works"
