# The verbs of the project. `just` lists them; CONTRIBUTING.md says when to use which.
set shell := ["bash", "-euo", "pipefail", "-c"]

export PATH := justfile_directory() + "/.venv/bin:" + env_var("PATH")

# List the verbs.
default:
    @just --list --unsorted

# While you write: lint, types, and the tests of what imports the change since a commit.
quick SINCE="HEAD":
    ruff check .
    mypy
    @python scripts/quick.py {{SINCE}}

# Before each commit: format, lint, types, import contracts, documents, all tests without a lab.
check:
    scripts/check

# What the gate leaves out, an hour a part at most: `just nightly`, `just nightly vm`, `just nightly status`.
nightly *PARTS:
    @PYTHONPATH=. python scripts/nightly.py {{PARTS}}

# Put the code into the house format.
format:
    ruff format .
    ruff check --fix .

# Any tests: `just test tests/unit/domain -k nodeset`.
test *ARGS:
    pytest {{ARGS}}

# Whole stories on real parts: `just e2e` or `just e2e allocations`.
e2e FEATURE="":
    pytest {{ if FEATURE == "" { "tests/e2e" } else if path_exists("tests/e2e/" + FEATURE) == "true" { "tests/e2e/" + FEATURE } else { "tests/e2e/test_" + FEATURE + ".py" } }}

# The whole real system on this machine: up, down, status, shell [USER].
lab *ARGS:
    @python -m lab {{ARGS}}

# One JSON line a figure: `just bench cli`.
bench NAME *ARGS:
    @python -m bench.{{replace(NAME, "-", "_")}} {{ARGS}}

# What is too long for CI; the dated result goes to bench/results.
soak NAME *ARGS:
    @mkdir -p bench/results
    @python -m bench.soak.{{NAME}} {{ARGS}} | tee -a bench/results/$(date +%F)-soak-{{NAME}}.jsonl

# Each promise with the tests that prove it; --json for machines, --gate for its story in the gate.
spec *ARGS:
    @python scripts/spec.py {{ARGS}}

# The documents as a site, into build/site; a dead link ends it.
site:
    @PYTHONPATH=. python scripts/site.py

# Measure the tree: lines, files, words; --list gerunds|classes|sentences|small for what is counted.
house *ARGS:
    @PYTHONPATH=. python scripts/house.py {{ARGS}}

# Regenerate what is generated: the wire, the verbs of the SDK, the table of commands, the reference
# pages, the REST description, the goldens, the roadmap.
generate:
    scripts/generate
    python scripts/sdk.py
    python scripts/command_table.py
    python scripts/reference.py
    PYTHONPATH=. python scripts/reference_metrics.py
    python scripts/reference_config.py --write
    PYTHONPATH=. python scripts/openapi.py
    PYTHONPATH=. python scripts/golden.py
    PYTHONPATH=. python scripts/roadmap.py
