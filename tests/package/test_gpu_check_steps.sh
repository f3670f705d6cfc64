#!/usr/bin/env bash
# scripts/gpu-check behind the build, with two cards, a compiler and tools that are scripts: what passes, and
# what each thing that is out of order makes it say. The answers are phasor's on the CPU.
# usage: test_gpu_check_steps.sh SOURCE PHASOR
set -euo pipefail
source=$1 phasor=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PHASOR_CACHE=$scratch/cache PATH=$scratch/bin:$PATH
unset CUDA_VISIBLE_DEVICES CUDA_PATH CUDA_HOME PHASOR_NCCL
mkdir "$scratch/bin" "$scratch/built"

fail()
{
    cat "$scratch/said"
    echo "test_gpu_check_steps: $*" >&2
    exit 1
}

# fake FILE: an executable script of what standard input says
fake()
{
    cat >"$scratch/$1"
    chmod +x "$scratch/$1"
}

# cards DRIVER: what nvidia-smi lists from here on
cards()
{
    fake bin/nvidia-smi <<END
#!/bin/sh
case "\$*" in *topo*) exit 0 ;; esac
for i in 4 5 6; do echo "\$i, GPU-a\$i, NVIDIA X\$i, $1, 81559 MiB, 9.0"; done
END
}

# run EXPECTED-CODE NAME=VALUE... : of gpu-check, with what makes one of the scripts lie
run()
{
    local expected=$1 code=0
    shift
    env "$@" "$source/scripts/gpu-check" --build "$scratch/build" --jobs "$jobs" >"$scratch/said" 2>&1 || code=$?
    [ "$code" -eq "$expected" ] || fail "exit code $code for $expected: $*"
}

says()
{
    grep -q -e "$1" "$scratch/said" || fail "it does not say: $1"
}

cards 580.65.06
fake bin/nvcc <<'END'
#!/bin/sh
echo "Cuda compilation tools, release 12.8, V12.8.93"
END
fake bin/ninja <<'END'
#!/bin/sh
exit 1
END
# "Builds" what lies beside it.
fake bin/cmake <<END
#!/bin/sh
case "\$1" in --build) mkdir -p "\$2" && cp -r "$scratch/built/." "\$2" ;; *) echo "\$*" >"$scratch/configured" ;; esac
END
mkdir "$scratch/built/tests" "$scratch/built/bench"
for name in test_gpu test_gpu_comm test_gpu_exec test_gpu_transition; do
    fake "built/tests/$name" <<'END'
#!/bin/sh
echo "[====] Synthesis: Tested: 3 | Passing: 3 | Failing: 0 | Crashing: 0"
END
done
printf '#!/bin/sh\n' | fake built/bench/bench_gpu
fake built/phasor <<END
#!/usr/bin/env python3
import json, os, re, subprocess, sys
words, lies = sys.argv[1:], os.environ.get("LIE", "").split()
off = os.environ.get("PHASOR_NCCL") == "off"
if words[0] == "version":
    print("phasor 0.1.0\nno NCCL: it is switched off" if off else "phasor 0.1.0\nNCCL 2.28.3 (libnccl.so.2)")
elif words[0] == "plan" and "--all" in words:
    count = re.search(r"x(\d)", words[words.index("--box") + 1])[1]
    print(json.dumps({"plans": [{"plan": f"tp{count}|tp{count}", "verdict": "possible"}]}))
elif words[0] == "run":
    at = words.index("--devices") + 1
    devices = words[at]
    open("$scratch/ran", "a").write(f"{devices} {os.environ['CUDA_VISIBLE_DEVICES']} {off}\n")
    ends, many = re.fullmatch(r"cuda:(\d)-(\d)", devices), re.fullmatch(r"cuda:0x(\d)", devices)
    if not devices.startswith("cpu"):
        words[at] = f"cpu:{int(ends[2]) + 1 if ends else many[1] if many else 1}"
    if ends:
        how = "copies: it has no libnccl.so.2" if off or "nccl" in lies else "NCCL 2.28.3 (libnccl.so.2)"
        print(f"note: the GPUs are joined by {how}", file=sys.stderr)
    code = subprocess.run(["$phasor", *words]).returncode
    if code == 0 and "--trace" in words:
        path = words[words.index("--trace") + 1]
        trace = json.load(open(path))
        part = ", 64 of 132 multiprocessors" if many and "parts" not in lies else ""
        trace["otherData"]["kernels"] = f"cuda:0 (NVIDIA X, sm_90{part})"
        trace["traceEvents"] += [] if "graphs" in lies else [{"name": "graph", "cat": "operation"}] * 7
        json.dump(trace, open(path, "w"))
    sys.exit(code)
END
fake bin/compute-sanitizer <<'END'
#!/usr/bin/env bash
kind=$2
while [[ $1 == --* ]]; do shift 2; done
echo "========= COMPUTE-SANITIZER"
case "${LIE-}" in
refuse) echo "========= Error: Internal Sanitizer Error: The device is not supported"; exit 1 ;;
quiet) "$@"; exit ;;
esac
"$@" || exit
if [ "${LIE-}" = "find $kind" ]; then
    echo "========= ERROR SUMMARY: 2 errors"
elif [ "$kind" = racecheck ]; then
    echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
else
    echo "========= ERROR SUMMARY: 0 errors"
fi
END

# All in order; of three cards two are chosen. Several steps at a time, once.
jobs=4
run 0 CUDA_VISIBLE_DEVICES=6,GPU-a4
says '^cuda:0: NVIDIA X6, 81559 MiB, compute capability 9.0, driver 580.65.06$'
says '^cuda:1: NVIDIA X4,'
says '^graphs: 7 launched, 0 captured$'
says '^parts of a GPU: 64 of 132 multiprocessors for each of two ranks$'
says '^ranks on GPUs of their own: joined by NCCL 2.28.3'
for step in 'a model' 'a model by two ranks' 'same answers' 'same answers, several GPUs' 'same answers, by copies' \
    'sanitizer initcheck' 'sanitizer initcheck two ranks' 'sanitizer racecheck operations'; do
    says "^passed  $step  "
done
for ran in 'cuda:0 6,4 False' 'cuda:0x2 6,4 False' 'cuda:0x4 6,4 False' 'cuda:0-1 6,4 False' 'cuda:0-1 6,4 True'; do
    grep -qx "$ran" "$scratch/ran" || fail "not run: $ran"
done
grep -q 'CMAKE_CUDA_ARCHITECTURES=90' "$scratch/configured" || fail "it is not built for the cards"
grep -q 'WERROR' "$scratch/configured" && fail "warnings of other compilers are errors"

jobs=1
for words in 1 7 MIG-a4; do
    run 1 CUDA_VISIBLE_DEVICES=$words
    says "^gpu-check: CUDA_VISIBLE_DEVICES=$words chooses none of nvidia-smi's 3: give their numbers"
done
run 3 CUDA_VISIBLE_DEVICES=-1
says "^GPUs: none (CUDA_VISIBLE_DEVICES=-1 chooses none of nvidia-smi's 3)"

# On one card, so that less is run: what is not as it should be.
export CUDA_VISIBLE_DEVICES=5
run 1 LIE=parts
says '^FAILED  two ranks on cuda:0 share all of it: .* should have parts$'
says 'gpu-check: FAILED in parts of a GPU; '
cards 550.54.14
run 0 LIE='parts graphs'
says '^parts of a GPU: none$'
says '^graphs: none launched$'
run 1 LIE=quiet
says '^FAILED  sanitizer racecheck  .* no line "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"'
says '^FAILED  sanitizer memcheck  .* no line "ERROR SUMMARY: 0 errors"'
run 1 LIE=refuse
says 'compute-sanitizer refuses to work here: Error: Internal Sanitizer Error: The device is not supported$'
run 1 LIE='find racecheck'
says '^FAILED  sanitizer racecheck  .* ERROR SUMMARY: 2 errors'
says '^passed  sanitizer memcheck  '
rm "$scratch/bin/compute-sanitizer"
if ! command -v compute-sanitizer >/dev/null; then
    run 1
    says '^FAILED  compute-sanitizer is not in the PATH'
fi
run 1 CUDA_VISIBLE_DEVICES=4,5 LIE=nccl
says '^FAILED  NCCL 2.28.3 (libnccl.so.2) was found and does not join the GPUs$'

rm "$scratch/bin/ninja"
mkdir "$scratch/few"
for name in bash env git; do ln -s "$(command -v "$name")" "$scratch/few/$name"; done
ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$scratch/few/python3" # no script that needs others
run 1 PATH="$scratch/bin:$scratch/few"
says '^FAILED  ninja not found: apt-get install cmake ninja-build, or '
echo "test_gpu_check_steps: passed"
