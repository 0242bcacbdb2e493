# Sandgate: one command for each thing one does. "make" lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:

# runsc, images and what tests need of Python are made once and kept here; several checkouts may share it.
SANDGATE_CACHE ?= /var/cache/sandgate
export SANDGATE_CACHE
SDK := $(SANDGATE_CACHE)/sdk
SDK_VERSION := 0.6.0
# Walks the API from its document.
SCHEMATHESIS := $(SANDGATE_CACHE)/schemathesis
SCHEMATHESIS_VERSION := 4.32.5

# The programs are static: the agent runs inside whatever image it is mounted into.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO_BUILD := CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'
GO_TEST := go test -p 2 -count=1 -timeout 40m
GO_SOURCES := $$(git ls-files '*.go' ':!*_templ.go')

## Using it

help: ## lists these commands
	@awk 'BEGIN {FS = ":.*## "} /^## / {printf "\n%s\n", substr($$0, 4)} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

run: ## prepares this machine (packages, runsc, programs) and serves on 127.0.0.1:8080; RUN_FLAGS="--listen ..." adds flags
	@[[ $$EUID == 0 ]] || { echo "Sandboxes need namespaces, cgroups and mounts: run this as root (sudo make run)." >&2; exit 1; }
	@echo "Preparing this machine and building Sandgate (a minute or two the first time) ..."
	@$(MAKE) -j3 packages-run runsc build
	@bin/sandgate setup --no-image
	@echo "Starting ..."
	@exec bin/sandgate serve $(RUN_FLAGS)

build: bin/sandgate-agent bin/sandgate ## builds bin/sandgate and bin/sandgate-agent, both static

dist: build ## makes dist/sandgate-VERSION.tar.gz, the programs with what one reads first
	@name=sandgate-$(VERSION) && rm -rf dist/$$name && mkdir -p dist/$$name \
	  && cp bin/sandgate bin/sandgate-agent README.md dist/sandgate.service dist/$$name/ && cp -r docs dist/$$name/docs \
	  && tar -C dist --owner=0 --group=0 --sort=name --mtime="@$$(git log -1 --format=%ct)" -czf dist/$$name.tar.gz $$name \
	  && (cd dist && sha256sum $$name.tar.gz >$$name.tar.gz.sha256) && rm -rf dist/$$name && ls -l dist/$$name.tar.gz

clean: ## removes what was built here; the cache stays
	rm -rf bin node_modules dist/sandgate-* dist/pictures
	find static/dist -type f ! -name .keep -delete

## Testing it

test: prepare ## runs all tests: unit, race, real runsc, browser; installs what they need
	@CGO_ENABLED=1 $(GO_TEST) -race ./...

check: ## runs what CI runs: format, vet, staticcheck, lint, generated files, then all tests
	@$(MAKE) -j2 prepare lint
	@$(MAKE) test

lint: lint-go lint-web ## checks format, vet, staticcheck, further analyzers, generated files and the front end

soak: prepare ## runs ten thousand commands, kills a thousand servers, then repeats the tests of the lifecycle and of terminals for SOAK (default 20) rounds
	@CGO_ENABLED=1 go test -tags soak -timeout 1h -count=1 -v -run 'TestTenThousandCommands|TestExhaustionForLong|TestFloodsForLong|TestTwoThousandTerminals' ./internal/e2e
	@go test -tags soak -timeout 3h -count=1 -v -run TestAThousandCrashes ./internal/e2e
	@CGO_ENABLED=1 go test -tags soak -timeout 1h -count=1 -v -run TestWritersAreKilled ./internal/audit
	@SANDGATE_SCREEN_ROUNDS=2000 go test -timeout 2h -count=1 -run TestSnapshotsPaint ./sandbox/screen
	@go test -run xxx -fuzz FuzzScreen -fuzztime 10m ./sandbox/screen
	@CGO_ENABLED=1 go test -p 1 -timeout 4h -race -count=$(or $(SOAK),20) ./sandbox/... ./internal/e2e/...

bench: prepare ## measures against bare runsc, prints the table and writes bench/latest.json
	@go run ./bench -out bench/latest.json $(BENCH_FLAGS)

pictures: prepare ## makes docs/screenshot.png, and pictures of every page in dist/pictures, by the browser tests
	@SANDGATE_SCREENSHOT=$(CURDIR)/docs/screenshot.png SANDGATE_PICTURES=$(CURDIR)/dist/pictures $(GO_TEST) -run InTheBrowser ./internal/e2e

vuln: ## asks the Go vulnerability database about the modules in use; needs to reach it
	@go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

fix: bin/tools/gofumpt node_modules/.package-lock.json ## formats everything and generates again
	@go tool templ generate
	@bin/tools/gofumpt -w $(GO_SOURCES)
	@npm run --silent fix

# ---- how ----

# What tests need: packages, programs, runsc, the image, the SDK, schemathesis.
prepare: packages-test build runsc sdk schemathesis
	@bin/sandgate setup

packages-run packages-test: packages-%:
	@tools/packages.sh $*

# go build decides itself whether there is anything to do.
bin/sandgate-agent: FORCE
	@echo "Building $@ ..."; $(GO_BUILD) -o $@ ./cmd/sandgate-agent

bin/sandgate: FORCE static/dist/manifest.json
	@echo "Building $@ ..."; $(GO_BUILD) -o $@ ./cmd/sandgate

# "sandgate setup" builds runsc, but it has to be built itself first: this compiles runsc's packages meanwhile.
runsc:
	@ls $(SANDGATE_CACHE)/runsc-*/runsc >/dev/null 2>&1 || { echo "Compiling runsc, once (1 to 3 minutes) ..." \
	  && cd tools/runsc && CGO_ENABLED=0 GOWORK=off go build -trimpath gvisor.dev/gvisor/runsc/cli/maincli; }

sdk: $(SDK)/.version-$(SDK_VERSION)
$(SDK)/.version-$(SDK_VERSION): | packages-test
	@rm -rf $(SDK) && python3 -m venv $(SDK) && $(SDK)/bin/pip install --quiet --disable-pip-version-check noxus-sdk==$(SDK_VERSION) && touch $@

schemathesis: $(SCHEMATHESIS)/.version-$(SCHEMATHESIS_VERSION)
$(SCHEMATHESIS)/.version-$(SCHEMATHESIS_VERSION): | packages-test
	@rm -rf $(SCHEMATHESIS) && python3 -m venv $(SCHEMATHESIS) && $(SCHEMATHESIS)/bin/pip install --quiet --disable-pip-version-check schemathesis==$(SCHEMATHESIS_VERSION) && touch $@

node_modules/.package-lock.json: package.json package-lock.json
	@echo "Fetching what the pages are made of ..."; npm ci --silent && touch $@

static/dist/manifest.json: node_modules/.package-lock.json $(shell git ls-files static '*.templ' tailwind.config.js 2>/dev/null)
	@echo "Building the pages ..."; npm run --silent build

lint-go: bin/tools/gofumpt bin/tools/staticcheck bin/tools/lint static/dist/manifest.json
	@ok=true; fail() { ok=false; echo "$$@" >&2; }; \
	go tool templ generate -check >/dev/null 2>&1 || fail 'Generated templ files are stale: run "make fix".'; \
	unformatted=$$(bin/tools/gofumpt -l $(GO_SOURCES)); [[ -z $$unformatted ]] || fail "Not formatted (make fix does it):" $$unformatted; \
	go vet ./... || fail "go vet found faults."; \
	go vet -vettool=bin/tools/lint ./... || fail "bin/tools/lint found faults."; \
	bin/tools/staticcheck ./... || fail "staticcheck found faults."; \
	$$ok

lint-web: node_modules/.package-lock.json
	@out=$$(npm run --silent check 2>&1) || { echo "$$out"; exit 1; }

bin/tools/staticcheck: tools/lint/go.sum
	@cd tools/lint && go build -o ../../$@ honnef.co/go/tools/cmd/staticcheck
bin/tools/gofumpt: tools/lint/go.sum
	@cd tools/lint && go build -o ../../$@ mvdan.cc/gofumpt
bin/tools/lint: tools/lint/go.sum tools/lint/main.go
	@cd tools/lint && go build -o ../../$@ .

FORCE:
.PHONY: help run build dist clean test check lint lint-go lint-web soak bench pictures vuln fix prepare packages-run packages-test runsc sdk schemathesis FORCE
