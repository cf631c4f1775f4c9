# The verbs of the project. `just` lists them; CONTRIBUTING.md says when to use which.
set shell := ["bash", "-euo", "pipefail", "-c"]

export PATH := justfile_directory() + "/.venv/bin:" + env_var("PATH")

# List the verbs.
default:
    @just --list --unsorted

# Format, lint, types, import contracts, documents, unit tests: under two minutes.
check:
    ruff format --check .
    ruff check .
    mypy
    lint-imports --no-logo
    pytest -q -n 2 tests/architecture tests/unit

# Put the code into the house format.
format:
    ruff format .
    ruff check --fix .

# Any tests: `just test tests/unit/domain -k nodeset`.
test *ARGS:
    pytest {{ARGS}}

# Whole stories on real parts: `just e2e` or `just e2e allocations`.
e2e FEATURE="":
    pytest {{ if FEATURE == "" { "tests/e2e" } else { "tests/e2e/test_" + FEATURE + ".py" } }}

# The whole real system on this machine: up, down, status, shell [USER].
lab *ARGS:
    @python -m lab {{ARGS}}

# One JSON line a figure: `just bench cli`.
bench NAME *ARGS:
    @python -m bench.{{replace(NAME, "-", "_")}} {{ARGS}}

# What is too long for CI; the dated result goes to bench/results.
soak NAME *ARGS:
    @mkdir -p bench/results
    @python -m bench.soak.{{NAME}} {{ARGS}} | tee bench/results/$(date +%F)-soak-{{NAME}}.jsonl

# Each promise with the tests that prove it; --json for machines.
spec *ARGS:
    @python scripts/spec.py {{ARGS}}

# Regenerate what is generated: the wire, the reference pages, the REST description.
generate:
    scripts/generate
    python scripts/reference.py
    python scripts/reference_config.py
    PYTHONPATH=. python scripts/openapi.py
