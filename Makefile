# SPDX-License-Identifier: Apache-2.0
# `make help` is made from the comments behind the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := bin/penstock
GO ?= go

.PHONY: help demo build console test check bench soak e2e e2e-epp e2e-kube e2e-boundary e2e-console e2e-engine e2e-ollama e2e-loadtools e2e-soak e2e-trace e2e-package release clean fuzz

help: ## Show this help
	@awk 'BEGIN{FS=":.*## "} /^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build ## Start eight simulated replicas, the gateway and a load; compare random with penstock
	@$(BIN) demo

build: console ## Build bin/penstock, with the console where Node.js is present
	@command -v $(GO) >/dev/null || { printf '%s\n' "make: Go is not installed; 1.26 is needed, which any Go from 1.21 on fetches by itself." \
	  "  Debian, Ubuntu: sudo apt-get install golang-go   Fedora: sudo dnf install golang   macOS: brew install go" >&2; exit 1; }
	@$(GO) build -trimpath -o $(BIN) ./cmd/penstock

console: ## Build the pages of the console, where Node.js is present
	@scripts/console.sh

test: ## Install what tests need, run every layer, print one summary
	@./scripts/test.sh

check: ## Run the fast layers only: format, vet, staticcheck, architecture, unit tests without -race
	@./scripts/test.sh format vet staticcheck unit-quick

bench: build ## Measure CPU per request, chunk and long prompt beside nginx and others (QUICK=1, FORMAT=json)
	@./scripts/bench.sh

soak: build ## Mixed traffic and churn for an hour (FOR=3m): memory, goroutines, descriptors, ledger, plotted
	@./scripts/soak.sh

e2e: ## Run the end-to-end layers only
	@./scripts/test.sh $(shell ls scripts/layers | sed -n 's/^e2e-\(.*\)\.sh$$/e2e-\1/p')

e2e-epp: ## Run the picker behind a real Envoy; builds what it needs, the first time for an hour
	@PENSTOCK_BUILD=1 ./scripts/test.sh e2e-epp

e2e-kube: ## Run against a real API server; builds it the first time, for an hour
	@PENSTOCK_BUILD=1 ./scripts/test.sh e2e-kube

e2e-boundary: ## Run two gateways that share a quota through Redis
	@./scripts/test.sh e2e-boundary

e2e-console: ## Drive the console in a real browser, and test the alert rules
	@./scripts/test.sh e2e-console

e2e-engine: ## Run real vLLM replicas on CPU behind penstock; installs them the first time (6 GB)
	@PENSTOCK_BUILD=1 ./scripts/test.sh e2e-engine

e2e-ollama: ## Run real Ollama replicas behind penstock; builds it the first time, for half an hour
	@PENSTOCK_BUILD=1 ./scripts/test.sh e2e-ollama

e2e-loadtools: ## Run load generators of the field against penstock; installs them the first time (2 GB)
	@PENSTOCK_BUILD=1 ./scripts/test.sh e2e-loadtools

e2e-soak: ## The soak in three minutes
	@./scripts/test.sh e2e-soak

e2e-trace: ## Play a public trace through the router
	@./scripts/test.sh e2e-trace

e2e-package: ## Build a release twice, install it into a root folder, upgrade it under 200 streams
	@./scripts/test.sh e2e-package

release: ## Build binaries, deb, rpm, OCI image, man pages and checksums into build/release (ARCH=amd64)
	@./scripts/release.sh

fuzz: ## Run every fuzz target for FUZZTIME (default 1m) each
	FUZZTIME=$${FUZZTIME:-1m} ./scripts/test.sh fuzz

clean: ## Remove what builds and tests left in the project folder
	rm -rf bin build
