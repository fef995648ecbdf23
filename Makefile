# SPDX-License-Identifier: Apache-2.0

# Every command that builds for a host says CGO_ENABLED=0: with a C compiler
# present Go turns cgo on by itself, and the binary would get a glibc floor.

GO ?= go

# What `make soak` repeats, and how often. The property tests draw new cases on
# every run.
SOAK_COUNT ?= 50
SOAK_PACKAGES ?= ./gp/... ./internal/... ./cuda/sim/... ./ptx/... ./cmd/gp

.PHONY: test ci lint cross ptx ptx-check gpu-bundle release readme-figures soak clean

test:
	CGO_ENABLED=0 $(GO) test ./...

ci:
	.ci/run

lint:
	.ci/run lint

ptx:
	$(GO) run ./ptx/internal/genptx

ptx-check:
	$(GO) run ./ptx/internal/genptx -check

# The tests of every platform of a release, linked.
cross:
	CROSS=1 .ci/run targets

gpu-bundle:
	bundle/build.sh

# build/release: an archive for each platform, and SHA256SUMS.
release:
	$(GO) -C tools run ./release -root .. -out ../build/release

# The README's table of measured figures, from the records of docs/measured.
readme-figures:
	$(GO) run ./bench/figures

soak:
	GP_SOAK=1 CGO_ENABLED=0 $(GO) test -count=1 -timeout 6h -run '^TestEveryCallFailsOnce$$' ./gp
	FUZZTIME=5m .ci/run fuzz
	CGO_ENABLED=0 $(GO) test -gcflags='all=-N -l' ./...
	GP_SOAK=10 CGO_ENABLED=0 $(GO) test -count=1 -timeout 2h -run '^TestMixes$$' ./gp
	GP_SOAK=1 CGO_ENABLED=0 $(GO) test -count=$(SOAK_COUNT) -timeout 6h -run '^(TestInterpreterAgrees|TestMutants)$$' ./ptx
	GP_LOAD=5m CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 1h -run '^TestLoad$$' ./gp
	GP_LOAD=3s CGO_ENABLED=1 $(GO) test -race -count=$(SOAK_COUNT) -timeout 6h $(SOAK_PACKAGES)

clean:
	rm -rf build
