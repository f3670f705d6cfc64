#!/usr/bin/env bash
# Builds as on a machine without a network: the libraries come from one unpacked prefix, and nothing
# but libc is linked at run time.
#
# usage: test_static_build.sh SOURCE_ROOT C_COMPILER
set -euo pipefail

root=$1 cc=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix

mkdir -p "$prefix/include" "$prefix/lib"
for header in jansson.h jansson_config.h pcre2.h utf8proc.h xxhash.h zstd.h zstd_errors.h; do
    path=$(echo "#include <$header>" | "$cc" -DPCRE2_CODE_UNIT_WIDTH=8 -M -x c - |
           tr ' ' '\n' | grep "/$header\$" | head -n 1)
    cp "$path" "$prefix/include"
done
for library in jansson pcre2-8 utf8proc xxhash zstd; do
    cp "$("$cc" -print-file-name="lib$library.a")" "$prefix/lib"
done

# configure [options]
configure()
{
    cmake -S "$root" -B "$scratch/build" -G Ninja -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_BUILD_TYPE=Release -DPHASOR_STATIC_DEPS=ON -DPHASOR_TESTS=OFF \
        -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF "$@"
}

# liburing may be absent; that is said.
configure 2>&1 | tee "$scratch/said"
grep -q 'liburing was not found (package liburing-dev)' "$scratch/said"
grep -q 'hwloc (package libhwloc-dev) was not found' "$scratch/said"
cmake --build "$scratch/build" --target part_io
header=$(echo '#include <liburing.h>' | "$cc" -M -x c - | tr ' ' '\n' | grep '/liburing.h$')
cp -r "$header" "${header%.h}" "$prefix/include"
cp "$("$cc" -print-file-name=liburing.a)" "$prefix/lib"

configure
cmake --build "$scratch/build"
nm "$scratch/build/phasor" >"$scratch/names"
grep -q io_uring_queue_init "$scratch/names" ||
    { echo "the program has no io_uring"; exit 1; }

! ldd "$scratch/build/phasor" | grep -vE 'linux-vdso|ld-linux|lib(c|m|pthread)\.so' ||
    { echo "the program needs these at run time"; exit 1; }
CMAKE_PREFIX_PATH=$prefix bash "$root/tests/package/test_package.sh" "$root" "$scratch/build" "$cc"
