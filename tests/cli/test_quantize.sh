#!/usr/bin/env bash
# phasor quantize as a user meets it: where the backup goes, what is refused, kill -9 and going on.
# Usage: test_quantize.sh PHASOR MODEL
set -u
phasor=$1
model=$2
source "$(dirname "$0")/tools.sh"

expect 0 "a backup" "$phasor" quantize "$model" -o b1
has out "cosine *min 0.99[5-9].* of 144 matrices" "a backup"; silent err "a backup"
[ -s b1 ] && [ ! -e b1.phasor-part ] || fail "a backup: b1 is not whole"
expect 0 "again" "$phasor" quantize "$model" -o b1
has out "nothing: it was there" "again"
expect 0 "verify" "$phasor" quantize "$model" -o b1 --verify
has out "checked in" "verify"
expect 0 "quiet" "$phasor" quantize "$model" -o b1 --verify --quiet
silent out "quiet"; silent err "quiet"
expect 0 "threads" "$phasor" quantize "$model" -o b2 --threads 5
cmp -s b1 b2 || fail "another number of threads makes another backup"
for options in "--scheme channel" "--scheme tensor --asymmetric" "--group 32 --zstd"; do
    # shellcheck disable=SC2086
    expect 0 "$options" "$phasor" quantize "$model" -o b3 --overwrite $options
    expect 0 "verify $options" "$phasor" quantize "$model" -o b3 --verify
done

# ---- a link stays, and leads to the backup
mkdir far
cp b3 far/behind
ln -s far/behind link
expect 0 "through a link" "$phasor" quantize "$model" -o link --overwrite
[ -L link ] && cmp -s b1 far/behind || fail "a link was replaced, or leads to no backup"
[ -z "$(find . far -name '*.phasor-part')" ] || fail "a part file was left beside a link"
ln -s nowhere dangling
expect 1 "a link to nothing" "$phasor" quantize "$model" -o dangling
has err "dangling is a link to a file that is not there" "a link to nothing"
[ -L dangling ] && [ ! -e nowhere ] || fail "a link to nothing was followed or replaced"

# ---- the cache
expect 0 "in the cache" env PHASOR_CACHE="$dir/cache/deep" "$phasor" quantize "$model"
has out "^backup *$dir/cache/deep/[0-9a-f]*-group64.backup" "in the cache"
cmp -s b1 cache/deep/*-group64.backup || fail "the cache has another backup"
expect 0 "verify in the cache" env PHASOR_CACHE="$dir/cache/deep" "$phasor" quantize "$model" --verify
expect 1 "nothing in the cache" env PHASOR_CACHE="$dir/none" "$phasor" quantize "$model" --verify
has err "cannot open the backup $dir/none" "nothing in the cache"
[ ! -e none ] || fail "--verify made a folder"

# ---- what is refused
expect 2 "no model" "$phasor" quantize
expect 2 "bad group" "$phasor" quantize "$model" -o b9 --group 24
has err "multiple of 16, found 24" "bad group"
expect 2 "bad scheme" "$phasor" quantize "$model" -o b9 --scheme row
expect 1 "other settings" "$phasor" quantize "$model" -o b1 --group 32
has err "another backup.*--overwrite" "other settings"
echo "a letter" >letter
expect 1 "no backup" "$phasor" quantize "$model" -o letter --overwrite
has err "letter is there and is no backup" "no backup"
[ "$(cat letter)" = "a letter" ] || fail "a file that is no backup was changed"
expect 1 "verify what is none" "$phasor" quantize "$model" -o letter --verify
expect 1 "no such folder" "$phasor" quantize "$model" -o none/b
expect 1 "a full disk" "$phasor" quantize "$model" -o /dev/full
[ ! -e b9 ] || fail "a refused run made a backup"
"$phasor" synth tiny-mixtral -o other -q
expect 1 "another checkpoint" "$phasor" quantize other -o b1 --verify
has err "backup of another checkpoint" "another checkpoint"
expect 1 "another checkpoint, writing" "$phasor" quantize other -o b1
size=$(stat -c %s b1)
head -c $((size / 2)) b1 >cut
expect 1 "cut" "$phasor" quantize "$model" -o cut --verify
has err "was cut or is damaged" "cut"
printf 'x' | dd of=b2 bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
expect 1 "one byte" "$phasor" quantize "$model" -o b2 --verify
has err "granule [0-9]* .*is damaged.*--overwrite" "one byte"

# ---- killed and gone on with
"$phasor" synth mixtral-8x7b --layers 3 --scale 8 -o large -q
expect 0 "undisturbed" "$phasor" quantize large -o whole
# Where the machine is busy a run may be over before its kill comes: then it is begun anew.
kills=0
for delay in 0.03 0.06 0.1 0.15 0.2 0.3 $(seq 100); do
    "$phasor" quantize large -o broken --threads 1 -q >out 2>err </dev/null &
    pid=$!
    until_ready $pid [ -e broken.phasor-part ]
    [ "${delay#0}" = "$delay" ] || sleep "$delay"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null # and its lock is gone
    [ -e broken ] || kills=$((kills + 1))
    [ ! -e broken ] || [ $kills -gt 0 ] || rm broken
    [ $kills -lt 6 ] && [ ! -e broken ] || break
done
[ $kills -gt 0 ] || fail "nothing was killed"
expect 0 "going on" "$phasor" quantize large -o broken
cmp -s whole broken || fail "a backup that was gone on with is another"
[ ! -e broken.phasor-part ] || fail "a part file was left"
"$phasor" quantize large -o stopped --threads 1 >out 2>err </dev/null &
pid=$!
until_ready $pid [ -e stopped.phasor-part ]
kill -TERM $pid 2>/dev/null
wait $pid
code=$?
if [ $code -eq 0 ]; then
    echo "SIGTERM came too late"
else
    [ $code -eq 143 ] || fail "SIGTERM: exit code $code"
    has err "the same command goes on from there" "SIGTERM"
    expect 0 "after SIGTERM" "$phasor" quantize large -o stopped
fi
cmp -s whole stopped || fail "after SIGTERM the backup is another"

[ $failures -eq 0 ] && echo "all passed"
exit $((failures > 0))
