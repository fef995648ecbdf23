#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the bundle it lies in: run.sh OUT. Needs bash, coreutils, grep and gzip.
#
# The command's selftest with cold and with warm caches, every test binary, the
# call benchmarks, and the command's own: its default run twice, and what differs
# between the two; collectives by algorithm with 2, 4 and 8 ranks on one GPU; links,
# copies, and copies in turn with the peers in C++ and PyTorch where nvcc and torch
# are there. Where there are two GPUs or more also what takes several: copies and
# collectives by algorithm, P2P denied, beside the driver's staging and NCCL. Leaves
# at most eight files in OUT:
#
#   summary.txt          what failed first, then what ran
#   tests.log[.gz]       the test binaries' and the selftests' output
#   selftest-cold.json   no compiled kernels in the cache, first run
#   selftest-warm.json   the same command again
#   measured.json        the record to keep: machine, date, commit, command, how
#                        each package ended, what was skipped and why, the
#                        benchmarks, the selftest with warm caches, the probe's
#                        report, the command's benchmarks ("bench-NAME", and
#                        "diff-default" of the two default runs), those of several
#                        GPUs ("multi"), and what the measuring tests wrote, by file
#                        name
#   probe-facts.json     what the probe read, serial numbers and UUIDs masked
#   skipped.txt          each skipped test with its reason
#   bench.txt            benchmarks of the driver calls, and the command's as text
#
# Exit 1 if anything failed. What may be set:
#
#   GP_BUNDLE_LIMIT    seconds a test binary may take (default 300)
#   GP_BUNDLE_BYTES    --bytes of the selftest (default 64MiB)
#   GP_BUNDLE_ONLY     only packages whose folder matches this bash pattern; the
#                      command's benchmarks are bench/default (twice), bench/OP-N for
#                      each collective on N ranks of one GPU, bench/link, bench/copy
#                      and bench/peers, and what takes several GPUs is multi
#   GP_BUNDLE_TIME     seconds in which the command's benchmarks end together, those
#                      of multi not among them (default 600): each that runs has its
#                      share, and for those that have none left it is said
#   GP_MULTI_TIME      seconds in which multi must end (default 90, and 30 a GPU); it
#                      also decides which sizes are measured, and how much of NCCL
#   GP_MULTI_MOST      bytes of multi's largest size (default: 1 GiB)
#   GP_BUNDLE_LOAD     how long the load test runs once more, alone and on all GPUs:
#                      "3m", "90s" (default: not at all)
#   GP_BUNDLE_BENCH    packages whose benchmarks run (default "cuda internal/libcuda")
set -uo pipefail
export LC_ALL=C

if (($# != 1)); then
    echo "usage: run.sh OUT" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
limit=${GP_BUNDLE_LIMIT:-300}
bytes=${GP_BUNDLE_BYTES:-64MiB}
only=${GP_BUNDLE_ONLY:-*}
bench=${GP_BUNDLE_BENCH-cuda internal/libcuda}
bench_time=${GP_BUNDLE_TIME:-600}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
log=$tmp/tests.log
: >"$log"
: >"$out/skipped.txt"
mkdir "$tmp/measure"
export GP_MEASURE_DIR=$tmp/measure

failed=() lines=()

say() {
    lines+=("$1")
    echo "$1"
}

now() { date +%s; }

trim() { printf '%s' "${1#"${1%%[! ]*}"}"; }

# A cache of our own, so that the first run is cold whatever the host has seen:
# ours below XDG_CACHE_HOME, the driver's JIT cache in CUDA_CACHE_PATH.
export XDG_CACHE_HOME=$tmp/cache CUDA_CACHE_PATH=$tmp/jit
mkdir -p "$XDG_CACHE_HOME" "$CUDA_CACHE_PATH"

selftest() { # name, then the arguments; stdout to $tmp/$name
    local name=$1 at rc
    shift
    at=$(now)
    timeout -k 10 "$limit" "$here/gp" selftest "$@" >"$tmp/$name" 2>"$tmp/$name.err"
    rc=$?
    {
        echo "##### gp selftest $* (exit $rc)"
        cat "$tmp/$name" "$tmp/$name.err"
    } >>"$log"
    if ((rc != 0)); then
        failed+=("gp selftest $*: exit $rc: $(tail -n 1 "$tmp/$name.err")")
    fi
    say "$(printf 'selftest %-38s exit %d  %4d s' "$*" "$rc" $(($(now) - at)))"
}

selftest selftest-cold.json --json --bytes "$bytes"
selftest selftest-warm.json --json --bytes "$bytes"
selftest selftest.txt --bytes "$bytes"
cp "$tmp/selftest-cold.json" "$tmp/selftest-warm.json" "$out"

# The first all_reduce of a process, which a process can only measure once: each
# rung of the kernel ladder with a cold and with a warm cache.
if [[ -x $here/tree/gp/run.test && gp == $only ]]; then
    for rung in nvrtc ptx; do
        for state in cold warm; do
            (cd "$here/tree/gp" && XDG_CACHE_HOME=$tmp/first-$rung CUDA_CACHE_PATH=$tmp/first-$rung/jit \
                GP_KERNELS=$rung GP_MEASURE_FIRST=${rung}_$state \
                timeout -k 10 "$limit" ./run.test -test.v -test.count=1 -test.run '^TestMeasureFirstAllReduce$') >"$tmp/one.log" 2>&1
            rc=$?
            {
                echo "##### first all_reduce, $rung, $state cache (exit $rc)"
                cat "$tmp/one.log"
            } >>"$log"
            ((rc == 0)) || failed+=("first all_reduce, $rung, $state cache: exit $rc")
            say "$(printf 'first all_reduce, %-5s, %-4s cache %18s exit %d' "$rung" "$state" '' "$rc")"
        done
    done
fi

# The reason of a skip is the last line that the test logged before the SKIP line.
collect_skips() { # package, log
    local line reason=
    while IFS= read -r line; do
        case $line in
        *"--- SKIP: "*) printf '%s %s: %s\n' "$1" "${line#*--- SKIP: }" "$(trim "${reason:0:240}")" >>"$out/skipped.txt" ;;
        " "*.go:[0-9]*) reason=$line ;;
        esac
    done < <(grep -E -e '--- SKIP: |^ +[A-Za-z0-9_]+\.go:[0-9]+: ' "$2")
}

test_binary() { # package, seconds, what it is called, then arguments of the binary
    local pkg=$1 seconds=$2 name=$3 at rc pass fail skip line
    shift 3
    at=$(now)
    (cd "$here/tree/$pkg" && timeout -k 10 $((seconds + 10)) ./run.test -test.v -test.count=1 -test.timeout "${seconds}s" "$@") >"$tmp/one.log" 2>&1
    rc=$?
    {
        echo "##### $name (exit $rc)"
        cat "$tmp/one.log"
    } >>"$log"
    collect_skips "$pkg" "$tmp/one.log"
    pass=$(grep -c -- '--- PASS: ' "$tmp/one.log")
    fail=$(grep -c -- '--- FAIL: ' "$tmp/one.log")
    skip=$(grep -c -- '--- SKIP: ' "$tmp/one.log")
    if ((rc != 0)); then
        while IFS= read -r line; do
            failed+=("$name: $(trim "$line")")
        done < <(grep -E -e '--- FAIL: |^panic: |^fatal error: |^SIG[A-Z]+: ' "$tmp/one.log" | head -n 20)
        ((fail > 0)) || failed+=("$name: exit $rc: $(tail -n 1 "$tmp/one.log")")
    fi
    say "$(printf 'test %-28s pass %4d  fail %2d  skip %3d  exit %d  %4d s' "$name" "$pass" "$fail" "$skip" "$rc" $(($(now) - at)))"
}

while IFS= read -r pkg; do
    # shellcheck disable=SC2053 # a pattern is meant
    [[ $pkg == $only ]] || continue
    # The one binary that is built with cgo asks for a glibc of some age.
    if [[ $pkg == probe/gonvml ]] && ! "$here/tree/$pkg/run.test" -test.list '^$' >"$tmp/one.log" 2>&1; then
        echo "$pkg all: does not start here: $(tail -n 1 "$tmp/one.log")" >>"$out/skipped.txt"
        continue
    fi
    test_binary "$pkg" "$limit" "$pkg"
done <"$here/packages"

# A long run of the load test, whose record is the "load" of what is measured.
if [[ -n ${GP_BUNDLE_LOAD-} ]]; then
    case $GP_BUNDLE_LOAD in
    *m) seconds=$((${GP_BUNDLE_LOAD%m} * 60)) ;;
    *) seconds=${GP_BUNDLE_LOAD%s} ;;
    esac
    GP_LOAD=${seconds}s test_binary gp $((seconds + 120)) "gp, load of $GP_BUNDLE_LOAD" -test.run '^TestLoad$/^gpu$'
    say "$(printf 'load %s' "$(grep -A 60 'load_test.go:[0-9]*: {$' "$tmp/one.log" | grep -E '"(seconds|copies|collectives|groups_opened|cancellations)"' | tr -d ' \n')")"
fi

: >"$out/bench.txt"
for pkg in $bench; do
    # shellcheck disable=SC2053 # a pattern is meant
    [[ $pkg == $only && -x $here/tree/$pkg/run.test ]] || continue
    at=$(now)
    (cd "$here/tree/$pkg" && timeout -k 10 "$limit" ./run.test -test.run '^$' -test.bench . -test.benchtime 200ms -test.benchmem) >"$tmp/one.log" 2>&1
    rc=$?
    {
        echo "##### $pkg (exit $rc)"
        cat "$tmp/one.log"
    } >>"$out/bench.txt"
    ((rc == 0)) || failed+=("benchmarks of $pkg: exit $rc: $(tail -n 1 "$tmp/one.log")")
    say "$(printf 'bench %-27s exit %d  %4d s' "$pkg" "$rc" $(($(now) - at)))"
done

# The command's own benchmarks: as text to bench.txt, as JSON to the record. Each
# has a share of the time, by the seconds that it is good for; what one does not
# use is the others'.
bench_names=() bench_shares=() bench_args=()
queue() { # name, seconds, then the arguments of gp bench
    # shellcheck disable=SC2053 # a pattern is meant
    [[ bench/${1%-again} == $only ]] || return 0
    bench_names+=("$1")
    bench_shares+=("$2")
    shift 2
    bench_args+=("$( (($# == 0)) || printf '%q ' "$@")") # as words for the shell: one may have a blank
}

default_seconds=150 # in which gp bench without a kind ends by itself

command_bench() { # name, seconds, then the arguments
    local name=$1 seconds=$2 at rc args=() time=(--time "$2s")
    shift 2
    args=("$@")
    # A bound of its own is measured as it is.
    ((${#args[@]} > 0 || seconds < default_seconds)) || time=()
    at=$(now)
    timeout -k 10 $((seconds + 120)) "$here/gp" bench "${args[@]}" "${time[@]}" --save "$tmp/bench-$name.json" >"$tmp/one.log" 2>&1
    rc=$?
    {
        echo "##### gp bench ${args[*]} ${time[*]} (exit $rc)"
        cat "$tmp/one.log"
    } >>"$out/bench.txt"
    ((rc == 0)) || failed+=("bench/$name: exit $rc: $(tail -n 1 "$tmp/one.log")")
    say "$(printf 'bench %-27s exit %d  %4d s' "$name" "$rc" $(($(now) - at)))"
}

run_queue() {
    local i left=0 end=$(($(now) + bench_time)) share
    for share in "${bench_shares[@]}"; do
        ((left += share))
    done
    for i in "${!bench_names[@]}"; do
        share=$(((end - $(now)) * bench_shares[i] / left))
        ((left -= bench_shares[i]))
        if ((share < 1)); then
            echo "bench/${bench_names[i]} all: GP_BUNDLE_TIME, $bench_time s, is over" >>"$out/skipped.txt"
            continue
        fi
        eval "command_bench ${bench_names[i]} $share ${bench_args[i]}"
    done
}

# The peers that this host can run, as arguments of gp bench peers.
peers=()
find_peers() {
    local nvcc src=$here/tree/bench/peers
    nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc || true)
    if [[ -z $nvcc ]]; then
        echo "bench/peers staged_copy.cu: no nvcc here" >>"$out/skipped.txt"
    elif timeout -k 10 60 "$nvcc" -O2 -std=c++17 -o "$tmp/staged_copy" "$src/staged_copy.cu" -lcuda >"$tmp/one.log" 2>&1; then
        peers+=(--peer "$tmp/staged_copy")
    else
        failed+=("nvcc bench/peers/staged_copy.cu: $(tail -n 1 "$tmp/one.log")")
        cat "$tmp/one.log" >>"$log"
    fi
    if timeout -k 10 60 python3 -c 'import torch; raise SystemExit(not torch.cuda.is_available())' >/dev/null 2>&1; then
        peers+=(--peer "python3 $src/staged_copy.py")
    else
        echo "bench/peers staged_copy.py: no python3 with torch that sees a GPU here" >>"$out/skipped.txt"
    fi
}

queue default "$default_seconds"
queue default-again "$default_seconds"
# Comparing results is the host's work, and by rank.
for n in 2 4 8; do
    queue all_reduce-$n $((15 + 5 * n)) all_reduce --same-gpu $n --compare auto,direct,ring,ring_zero_copy,two_shot,one_shot \
        --bytes 8,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB
done
for op in all_gather reduce_scatter broadcast reduce all_to_all; do
    for n in 2 4 8; do
        queue $op-$n $((2 + n / 2)) $op --same-gpu $n --compare auto,direct,ring,two_shot,one_shot --bytes 64KiB,1MiB,64MiB
    done
done
queue link 20 link
queue copy 50 copy --sweep
# shellcheck disable=SC2053 # a pattern is meant
if [[ bench/peers == $only ]]; then
    find_peers
    ((${#peers[@]} == 0)) || queue peers 40 peers "${peers[@]}"
fi
run_queue
if [[ -s $tmp/bench-default.json && -s $tmp/bench-default-again.json ]]; then
    (
        cd "$tmp" || exit
        "$here/gp" bench diff --json bench-default.json bench-default-again.json >diff-default.json &&
            "$here/gp" bench diff bench-default.json bench-default-again.json
    ) >"$tmp/one.log" 2>&1 ||
        failed+=("bench diff: $(tail -n 1 "$tmp/one.log")")
    {
        echo "##### gp bench diff, of the two default runs"
        cat "$tmp/one.log"
    } >>"$out/bench.txt"
    say "bench diff: $(tail -n 1 "$tmp/one.log")"
fi

# What takes several GPUs. It ends in time by itself; the limit is for when it
# does not.
gpu_count() { timeout 30 nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | wc -l; }
multi() {
    local at rc n=$1 seconds
    seconds=${GP_MULTI_TIME:-$((90 + 30 * n))}
    local args=(-gp "$here/gp" -peers "$here/tree/bench/multi" -gpus "$n" -time "${seconds}s" -save "$tmp/multi.json")
    [[ -z ${GP_MULTI_MOST-} ]] || args+=(-most "$GP_MULTI_MOST")
    at=$(now)
    timeout -k 15 $((seconds + 30)) "$here/multi" "${args[@]}" >"$tmp/one.log" 2>&1
    rc=$?
    {
        echo "##### multi, $n GPUs (exit $rc)"
        cat "$tmp/one.log"
    } >>"$out/bench.txt"
    ((rc == 0)) || failed+=("multi: exit $rc: $(tail -n 1 "$tmp/one.log")")
    say "$(printf 'multi %-27s exit %d  %4d s' "$n GPUs" "$rc" $(($(now) - at)))"
}
# shellcheck disable=SC2053 # a pattern is meant
if [[ multi == $only ]]; then
    n=$(gpu_count)
    if ((n >= 2)) || [[ $only == multi ]]; then
        multi "$n"
    else
        echo "multi all: $n GPU here, and it takes two" >>"$out/skipped.txt"
    fi
fi

# The probe's exit code says what it judged; only a broken driver is a failure
# here, and the selftest would have met it.
at=$(now)
timeout -k 10 "$limit" "$here/gp" probe --verify --save "$out/probe-facts.json" >"$tmp/probe.txt" 2>&1
rc=$?
timeout -k 10 "$limit" "$here/gp" probe --facts "$out/probe-facts.json" --json >"$tmp/probe.json" 2>>"$tmp/probe.txt"
{
    echo "##### gp probe --verify (exit $rc)"
    cat "$tmp/probe.txt"
} >>"$log"
((rc == 0)) || failed+=("gp probe --verify: exit $rc: $(tail -n 1 "$tmp/probe.txt")")
say "$(printf 'probe --verify %33s exit %d  %4d s' '' "$rc" $(($(now) - at)))"

# JSON of text: a string, and an array of the lines of standard input.
json_string() { printf '"%s"' "$(printf '%s' "$1" | tr -d '\000-\010\013-\037' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/ /g' | tr '\n' ' ')"; }
json_lines() {
    local line sep=
    printf '['
    while IFS= read -r line; do
        printf '%s\n  %s' "$sep" "$(json_string "$line")"
        sep=,
    done
    printf ']'
}
gpus() { timeout 30 nvidia-smi --query-gpu=name,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader 2>/dev/null; }
driver() { timeout 30 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1; }

{
    printf '{\n"date": "%s",\n"command": "gpu/run.sh OUT (make gpu-bundle)",\n' "$(date -u +%FT%TZ)"
    printf '"commit": %s,\n"machine": %s,\n' "$(json_string "$(<"$here/commit")")" "$(json_string "$(head -n 1 "$tmp/selftest.txt")")"
    printf '"gpus_link_generation_and_width": %s,\n"driver": %s,\n' "$(gpus | json_lines)" "$(json_string "$(driver)")"
    printf '"cpu": %s,\n"cores": %s,\n"kernel": %s,\n' "$(json_string "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)")" \
        "$(nproc)" "$(json_string "$(uname -srm)")"
    printf '"failed": %s,\n' "$(((${#failed[@]})) && printf '%s\n' "${failed[@]}" | json_lines || echo '[]')"
    printf '"runs": %s,\n' "$(printf '%s\n' "${lines[@]}" | json_lines)"
    printf '"skipped": %s,\n' "$(json_lines <"$out/skipped.txt")"
    printf '"benchmarks": %s,\n' "$(grep ^Benchmark "$out/bench.txt" | json_lines)"
    for f in "$tmp"/{selftest-warm,probe,bench-*,diff-default,multi}.json; do
        [[ -s $f ]] || continue
        name=${f##*/}
        printf '"%s": ' "${name%.json}"
        cat "$f"
        printf ',\n'
    done
    printf '"measured": {'
    sep=
    for f in "$tmp"/measure/*.json; do
        [[ -s $f ]] || continue
        name=${f##*/}
        printf '%s\n"%s": ' "$sep" "${name%.json}"
        cat "$f"
        sep=,
    done
    printf '\n}\n}\n'
} >"$out/measured.json"

if (($(stat -c %s "$log") > 1 << 20)); then
    gzip -9 <"$log" >"$out/tests.log.gz"
else
    cp "$log" "$out/tests.log"
fi

{
    if ((${#failed[@]})); then
        echo "FAILED: ${#failed[@]}"
        printf '  %s\n' "${failed[@]}"
    else
        echo "everything passed"
    fi
    echo
    echo "commit   $(<"$here/commit")"
    echo "kernel   $(uname -srm)"
    # GPU names and driver; no serial numbers or UUIDs: this file is kept.
    if command -v nvidia-smi >/dev/null; then
        timeout 30 nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max,pci.bus_id --format=csv,noheader 2>&1 | while IFS= read -r line; do
            echo "gpu      $line"
        done
    else
        echo "gpu      no nvidia-smi"
    fi
    echo "machine  $(head -n 1 "$tmp/selftest.txt")"
    echo "skipped  $(wc -l <"$out/skipped.txt") tests, see skipped.txt"
    echo
    printf '%s\n' "${lines[@]}"
} >"$out/summary.txt"

echo
cat "$out/summary.txt"
((${#failed[@]} == 0))
