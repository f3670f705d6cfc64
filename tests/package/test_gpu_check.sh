#!/usr/bin/env bash
# scripts/gpu-check without a network: the libraries come from a folder that scripts/setup --unpack
# filled, nothing can be reached, and the build works. Here no GPU is shown to it, which it says, by
# its exit code, too. What it does with its arguments and where a build fails is checked as well.
# usage: test_gpu_check.sh SOURCE   (root or user namespaces, nvcc, and Debian's packages at hand)
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail()
{
    echo "test_gpu_check: $*" >&2
    exit 1
}

# run EXPECTED-CODE WORDS... : of gpu-check, without a network and without a GPU
run()
{
    local expected=$1 code=0
    shift
    CUDA_VISIBLE_DEVICES="" unshare --map-root-user --net env PATH="$scratch/bin:$PATH" \
        "$source/scripts/gpu-check" "$@" >"$scratch/said" 2>&1 || code=$?
    [ "$code" -eq "$expected" ] || { cat "$scratch/said"; fail "exit code $code for $expected: $*"; }
}

mkdir "$scratch/bin"
printf '#!/bin/sh\nexit 9\n' >"$scratch/bin/nvidia-smi" # as where there is no driver
chmod +x "$scratch/bin/nvidia-smi"

run 2 --nothing
run 2 --prefix "$scratch"
grep -q 'scripts/setup --unpack' "$scratch/said" || fail "no cure for a folder that is no prefix"

"$source/scripts/setup" --unpack "$scratch/prefix"
run 3 --prefix "$scratch/prefix" --build "$scratch/build" --architectures 75
grep -q 'no GPU on this machine' "$scratch/said" || fail "it does not say that there is no GPU"
for word in commit nvcc NCCL io_uring; do
    grep -q "^$word: ." "$scratch/said" || fail "$word is not told"
done
for name in jansson pcre2-8 utf8proc xxhash zstd uring hwloc criterion; do
    grep -q "$scratch/prefix/usr/lib[^ ]*/lib$name\." "$scratch/build/build.ninja" ||
        fail "lib$name is not that of the prefix"
done
for program in phasor bench/bench_gpu tests/test_gpu tests/test_gpu_comm tests/test_gpu_exec; do
    [ -x "$scratch/build/$program" ] || fail "$program was not built"
done
cmp -s "$scratch/said" "$scratch/build/results/report.txt" || fail "the report is not what was shown"

# A build that fails is told with its last words.
run 1 --prefix "$scratch/prefix" --build "$scratch/build" --architectures 1
grep -q '^FAILED  ' "$scratch/said" && grep -q 'gpu-check: FAILED in' "$scratch/said" ||
    fail "a failure is not told"
echo "test_gpu_check: passed"
