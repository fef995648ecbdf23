#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Packs what a GPU host without Go needs to run the tests, the benchmarks and
# the command: build/gpu/bundle.tar.gz. On the host:
#
#   tar xzf bundle.tar.gz && gpu/run.sh OUT
#
# Layout of the archive: gpu/run.sh, gpu/gp, gpu/multi (bench/multi), gpu/packages (one package folder a
# line) and gpu/tree, a copy of the sources, which some tests read, with the test
# binary `run.test` in each package's folder. It runs there, as it would under
# `go test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

limit=$((48 << 20)) # bytes, of the archive
out=build/gpu
mkdir -p "$out"
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
stage=$work/gpu

# Not for the host, beside what cannot reach a driver: commands, benchmarks, examples and checkers, the test of the layering,
# which asks the go command, and what only serves the build or other tests.
skip() {
    case $1 in
    . | cmd/* | bench/* | examples/* | tools/* | internal/arch | internal/testenv | ptx/internal/genptx | internal/ptxvm/isa | probe/nvml/nvmlsim) return 0 ;;
    esac
    return 1
}

export CGO_ENABLED=0 GOOS=linux GOARCH=amd64
flags=(-trimpath -buildvcs=false -ldflags="-s -w")

mkdir -p "$stage/tree"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
    [[ ! -e $f ]] || printf '%s\0' "$f"
done | xargs -0 cp --parents -t "$stage/tree"
go build "${flags[@]}" -o "$stage/gp" ./cmd/gp
go build "${flags[@]}" -o "$stage/multi" ./bench/multi
install -m 755 bundle/run.sh "$stage/run.sh"
git rev-parse --short=12 HEAD >"$stage/commit" 2>/dev/null || echo unknown >"$stage/commit"
if [[ -n $(git status --porcelain 2>/dev/null) ]]; then
    echo "$(<"$stage/commit")+changes" >"$stage/commit"
fi

root=$PWD
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... | while IFS= read -r dir; do
    [[ -n $dir ]] || continue
    pkg=.
    [[ $dir == "$root" ]] || pkg=${dir#"$root"/}
    skip "$pkg" && continue
    # Tests that reach no library of the host's say the same there as here.
    go list -test -deps "./$pkg" >"$work/deps"
    grep -q '/internal/dl$' "$work/deps" || continue
    # One at a time: go test -c for several packages holds all of them in memory.
    go test -c "${flags[@]}" -o "$stage/tree/$pkg/run.test" "./$pkg"
    echo "$pkg" >>"$stage/packages"
    printf '%-28s %5d KiB\n' "$pkg" $(($(stat -c %s "$stage/tree/$pkg/run.test") >> 10))
done

# go-nvml as the oracle for our NVML binding: with cgo, and so with a glibc floor.
if command -v "${CC:-gcc}" >/dev/null; then
    CGO_ENABLED=1 go -C probe/gonvml test -c "${flags[@]}" -o "$(realpath "$stage")/tree/probe/gonvml/run.test" . 2>/dev/null
    echo probe/gonvml >>"$stage/packages"
    printf '%-28s %5d KiB, needs %s\n' probe/gonvml $(($(stat -c %s "$stage/tree/probe/gonvml/run.test") >> 10)) \
        "$(grep -ao 'GLIBC_2\.[0-9]*' "$stage/tree/probe/gonvml/run.test" | sort -uV | tail -n 1)"
fi

tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner -cz -f "$work/bundle.tar.gz" gpu
size=$(stat -c %s "$work/bundle.tar.gz")
printf '%s: %d.%d MiB, %d test binaries, commit %s\n' "$out/bundle.tar.gz" $((size >> 20)) $(((size >> 10) % 1024 * 10 / 1024)) \
    "$(wc -l <"$stage/packages")" "$(<"$stage/commit")"
if ((size > limit)); then
    echo "too big: the limit is $((limit >> 20)) MiB" >&2
    exit 1
fi
mv "$work/bundle.tar.gz" "$out/bundle.tar.gz"
