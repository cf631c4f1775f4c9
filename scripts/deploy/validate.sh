#!/usr/bin/env bash
# Checks a live cluster from the outside, as a signed-in user; the checks are scripts/validate.
#
#   validate.sh URL [--no-job] [--foreign JOB] [--ca FILE]
#
#   URL             of a server: https://lattice1.example.com:8080
#   --no-job        submits nothing
#   --foreign JOB   a job of another user, which must look absent
#   --ca FILE       trust this authority
#
# Sign in before, by `lattice login`, or set LATTICE_TOKEN.
set -euo pipefail

fail() {
  printf '%s\nHint: %s\n' "$1" "$(basename "$0") --help" >&2
  exit 2
}
for argument; do
  case $argument in
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" && exit 0 ;;
  esac
done
[ $# -gt 0 ] || fail "The address of a server is missing."
[[ $1 =~ ^https?://[^/]+ ]] || fail "$1 is no address: it begins with https://"
exec "$(dirname "$0")/../validate" "$@"
