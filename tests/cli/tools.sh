# What the tests of the program share; sourced with `phasor` and `model` set. The test runs in a folder
# of its own, which goes with it.
phasor=$(realpath "$phasor")
model=$(realpath "$model")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
unset "${!PHASOR_@}"
export PHASOR_CACHE=$dir/cache # no profile or backup of the user's
failures=0

fail() {
    echo "FAILED: $*"
    echo "--- stdout"; head -c 2000 out; echo "--- stderr"; head -c 2000 err
    failures=$((failures + 1))
}

# expect CODE NAME command...: runs it with stdout in `out` and stderr in `err`
expect() {
    local wanted=$1 name=$2 code
    shift 2
    "$@" >out 2>err </dev/null
    code=$?
    [ "$code" -eq "$wanted" ] || fail "$name: exit code $code, expected $wanted"
}
# until_ready PID command...: waits until the command succeeds; fails when the process ends before
until_ready() {
    local pid=$1
    shift
    until "$@" 2>/dev/null; do
        kill -0 "$pid" 2>/dev/null || { "$@" 2>/dev/null; return; }
        sleep 0.02
    done
}
# catches PID NUMBER: whether the process has a handler for that signal; one that this shell has
# started and that is not $phasor yet may have the shell's
catches() {
    local mask
    [ "$(readlink "/proc/$1/exe")" = "$(readlink -f "$phasor")" ] || return 1
    mask=$(sed -n 's/^SigCgt:[^0-9a-f]*//p' "/proc/$1/status")
    [ -n "$mask" ] && [ $((0x$mask >> ($2 - 1) & 1)) -eq 1 ]
}
# python3 -c "$on_terminal" FILE command...: with its stderr on a terminal, whose bytes go to FILE
on_terminal='
import os, pty, signal, subprocess, sys
terminal, end = pty.openpty()
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stderr=end, env=dict(os.environ, TERM="xterm"))
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
os.close(end)
with open(sys.argv[1], "wb", buffering=0) as file:
    try:
        while piece := os.read(terminal, 4096):
            file.write(piece)
    except OSError: # the other end is closed
        pass
code = child.wait()
sys.exit(code if code >= 0 else 128 - code)'
silent() { [ ! -s "$1" ] || fail "$2: something stands on $1"; }
has() { grep -q -e "$2" "$1" || fail "$3: no \"$2\" in $1"; }
lines() { [ "$(wc -l <"$1")" -eq "$2" ] || fail "$3: $(wc -l <"$1") lines in $1, expected $2"; }
