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
    unshare --map-root-user --net env PATH="$scratch/bin:$PATH" \
        "$source/scripts/gpu-check" "$@" >"$scratch/said" 2>&1 || code=$?
    [ "$code" -eq "$expected" ] || { cat "$scratch/said"; fail "exit code $code for $expected: $*"; }
}

# smi WORDS: what nvidia-smi does from here on
smi()
{
    printf '#!/bin/sh\n%s\n' "$1" >"$scratch/bin/nvidia-smi"
    chmod +x "$scratch/bin/nvidia-smi"
}

export CUDA_VISIBLE_DEVICES=
mkdir "$scratch/bin"
smi 'echo "no driver here" >&2; exit 9'

run 2 --nothing
run 2 --prefix "$scratch"
grep -q 'scripts/setup --unpack' "$scratch/said" || fail "no cure for a folder that is no prefix"

"$source/scripts/setup" --unpack "$scratch/prefix"
run 3 --prefix "$scratch/prefix" --build "$scratch/build" --architectures 75
grep -q 'no GPU on this machine' "$scratch/said" || fail "it does not say that there is no GPU"
grep -q '^GPUs: none (.*no driver here' "$scratch/said" || fail "it does not say why"
grep -q '^nvcc: [0-9]' "$scratch/said" || fail "nvcc is not told"
for word in commit NCCL io_uring; do
    grep -q "^$word: ." "$scratch/said" || fail "$word is not told"
done
for name in jansson pcre2-8 utf8proc xxhash zstd uring hwloc criterion; do
    grep -q "$scratch/prefix/usr/lib[^ ]*/lib$name\." "$scratch/build/build.ninja" ||
        fail "lib$name is not that of the prefix"
done
for program in phasor bench/bench_gpu tests/test_gpu tests/test_gpu_comm tests/test_gpu_exec tests/test_gpu_transition; do
    [ -x "$scratch/build/$program" ] || fail "$program was not built"
done
for program in cmake ninja; do
    [ -x "$scratch/prefix/usr/bin/$program" ] || fail "$program is not in the prefix"
done
# At run time, too: all but what any system has.
triplet=$(basename "$(dirname "$(ls "$scratch"/prefix/usr/lib/*/libcriterion.so | head -n 1)")")
found=$scratch/prefix/usr/lib/$triplet:$scratch/prefix/lib/$triplet
for program in tests/test_gpu tests/test_gpu_comm tests/test_gpu_exec tests/test_gpu_transition; do
    LD_LIBRARY_PATH=$found ldd "$scratch/build/$program" | grep -v "$scratch/prefix" |
        grep -vE 'linux-vdso|/ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|resolv|crypt|anl|ssl|crypto)\.so' >"$scratch/else" &&
        { cat "$scratch/else"; fail "$program needs what the prefix has not"; }
done
cmp -s "$scratch/said" "$scratch/build/results/report.txt" || fail "the report is not what was shown"

# A build that fails is told with its last words.
run 1 --prefix "$scratch/prefix" --build "$scratch/build" --architectures 1
grep -q '^FAILED  \(configure\|build\)' "$scratch/said" && grep -q 'gpu-check: FAILED in' "$scratch/said" ||
    fail "a failure is not told"

# Two cards of which none answers: each step that wants one fails, and what hides failures is not heard.
smi 'case "$*" in *topo*) ;; *) printf "98, GPU-1, X, 1, 1 MiB, 7.5\n99, GPU-2, X, 1, 1 MiB, 8.0\n" ;; esac'
export CUDA_VISIBLE_DEVICES=98,99 CRITERION_ALWAYS_SUCCEED=1 PHASOR_TEST_ONLY=none
run 1 --prefix "$scratch/prefix" --build "$scratch/build" --architectures 75
for step in 'gpu 7.5' 'gpu 8.0' 'gpu comm' 'gpu exec' 'gpu transition' 'a model' operators; do
    grep -q "^FAILED  $step  " "$scratch/said" || { cat "$scratch/said"; fail "$step has not failed"; }
done
echo "test_gpu_check: passed"
