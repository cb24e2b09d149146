# tgfs: run `make help` for what there is.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# The packages with goroutines of their own: they also run under the race detector.
# botpool goes first and alone: its tests sign in over real key exchanges, which
# take seconds there, and have deadlines.
RACE        := ./cache/... ./index/... ./store/... ./fs/...
# Two at once: more do not fit beside the compiler of gotd's package tg.
P           := 2
DEMO        ?=

.PHONY: help build deps warm fmt fmt-check vet lint test test-only race soak bench demo clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: warm ## Build bin/tgfs and bin/tgemu
	go build -o bin/ ./cmd/tgfs ./tests/tgemu/cmd/tgemu ./tests/demo

test: deps fmt-check warm vet lint test-only race ## THE test command: install what is missing, check, run every test

test-only: ## Run every test, without the checks before and the race run after
	go test -p $(P) -timeout 15m ./...

race: ## Run the tests of the concurrent packages under the race detector
	go build -race -p 1 github.com/gotd/td/tg
	go test -race -short -timeout 15m ./botpool/...
	go test -race -short -p $(P) -timeout 15m $(RACE)

soak: warm ## Run the long tests: random operations, stress-ng, PostgreSQL (half an hour)
	./scripts/deps soak
	TGFS_SOAK=1 go test -v -run Soak -timeout 3h ./tests

bench: warm ## Run the benchmarks of the issue: speed-up, close, CPU and memory per GiB
	go test -run '^$$' -bench . -benchtime 1x -timeout 60m ./tests/...

demo: deps build ## Run the main job against an emulated Telegram (DEMO=once ends by itself)
	exec bin/demo $(if $(filter once,$(DEMO)),-once)

lint: ## Run staticcheck (go vet has its own target)
	go run $(STATICCHECK) ./...

vet: ## Run go vet
	go vet -p 1 ./...

fmt: ## Format all Go files
	gofmt -w $$(git ls-files '*.go')

fmt-check:
	@files=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$files" ]; then echo "gofmt would change:"; echo "$$files"; exit 1; fi

# gotd's package tg takes one compiler process 5 GiB: it is built alone first.
warm:
	go build -p 1 github.com/gotd/td/tg

deps: ## Install the Debian packages that are missing (and say which)
	./scripts/deps

clean: ## Remove what building and the demo left
	rm -rf bin demo
	@if [ -d mnt ]; then rmdir mnt; fi
