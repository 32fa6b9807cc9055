# The usual targets. `make check` is what CI runs; everything else is a part of it or a shortcut.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build test race lint fmt fuzz bench golden run check clients page long

build: ## both commands into bin/
	go build -trimpath -o bin/ ./cmd/...

test: ## the README's test command
	go test ./...

race:
	go test -race ./...

lint:
	go vet ./...
	go run $(STATICCHECK) ./...

fmt:
	gofmt -w .

fuzz: ## each fuzz test for FUZZTIME (30s)
	@set -e; for t in $$(grep -rho '^func Fuzz[A-Za-z]*' --include=*_test.go messages pipeline stages | sed 's/func //' | sort -u); do \
	  dir=$$(grep -rl "^func $$t(" --include=*_test.go messages pipeline stages | head -1 | xargs dirname); \
	  go test "./$$dir" -run '^$$' -fuzz "^$$t$$" -fuzztime "$${FUZZTIME:-30s}"; done

bench:
	go test -run '^$$' -bench . -benchmem ./...

golden: ## write the golden files anew; read the diff before you commit it
	go test ./messages -update

run:
	go run ./cmd/gateway

check:
	.ci/run

clients page long:
	.ci/$@
