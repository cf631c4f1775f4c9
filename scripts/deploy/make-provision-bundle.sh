#!/usr/bin/env bash
# One file with all that the nodes of an air-gapped site need: packages, configuration, join key.
#
#   make-provision-bundle.sh --packages DIR --join-key FILE --out FILE.tar [--config FILE]
#
#   --packages DIR    with lattice-python and lattice-agent, as deb, rpm or both
#   --join-key FILE   the line of `lattice admin enrol`
#   --config FILE     for /etc/lattice/agent.yaml
#   --out FILE.tar    a file that does not exist yet; only its owner can read it
#
# On a node, as root:
#   tar -xf FILE.tar && cd lattice-provision && sha256sum -c SHA256SUMS && ./install.sh [--root DIR]
#
# The file is as secret as the join key in it. Delete it when the nodes have enrolled.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  printf '%s\nHint: %s\n' "$1" "${2:-$(basename "$0") --help}" >&2
  exit 2
}
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; }

packages='' key='' config='' out=''
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --packages | --join-key | --config | --out)
      [ $# -ge 2 ] || fail "$1 needs a value."
      case $1 in
        --packages) packages=$2 ;;
        --join-key) key=$2 ;;
        --config) config=$2 ;;
        --out) out=$2 ;;
      esac
      shift 2
      ;;
    *) fail "Unknown argument: $1" ;;
  esac
done

[ -n "$packages" ] || fail "The folder of the packages is missing: --packages DIR."
[ -d "$packages" ] || fail "$packages is no folder."
[ -n "$key" ] || fail "The join key is missing: --join-key FILE." "lattice admin enrol NODES >join.key"
[ -f "$key" ] || fail "There is no file $key." "lattice admin enrol NODES >join.key"
[[ $(head -c 15 "$key") == lattice-join-1. ]] ||
  fail "$key is no join key: one begins with lattice-join-1." "lattice admin enrol NODES >join.key"
[ -z "$config" ] || [ -f "$config" ] || fail "There is no file $config."
[ -n "$out" ] || fail "Where to write is missing: --out FILE.tar."
[ ! -e "$out" ] || fail "$out exists already."
shopt -s nullglob
chosen=("$packages"/lattice-{python,agent}[_-]*.{deb,rpm})
kinds=0
for kind in deb rpm; do
  found=("$packages"/lattice-{python,agent}[_-]*."$kind")
  case ${#found[@]} in
    0) ;;
    2) kinds=$((kinds + 1)) ;;
    *) fail "$packages needs one lattice-python and one lattice-agent as $kind: ${found[*]##*/}" ;;
  esac
done
[ $kinds -gt 0 ] || fail "$packages has neither lattice-python nor lattice-agent."

umask 077
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/lattice-provision
mkdir -p "$bundle/packages"
cp "${chosen[@]}" "$bundle/packages/"
chmod 644 "$bundle"/packages/*
install -m 600 "$key" "$bundle/join.key"
install -m 755 "$here/install-compute.sh" "$bundle/install-compute.sh"
more=''
if [ -n "$config" ]; then
  install -m 644 "$config" "$bundle/agent.yaml"
  more=" --config \"\$here/agent.yaml\""
fi
cat >"$bundle/install.sh" <<INSTALL
#!/usr/bin/env bash
# Installs this bundle on this node, or with --root DIR in an image.
here=\$(cd "\$(dirname "\$0")" && pwd)
exec "\$here/install-compute.sh" --packages "\$here/packages" --join-key "\$here/join.key"$more "\$@"
INSTALL
chmod 755 "$bundle/install.sh"
(cd "$bundle" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum) >"$work/sums"
install -m 600 "$work/sums" "$bundle/SHA256SUMS"
tar --create --file "$work/bundle.tar" --directory "$work" --sort=name --owner=0 --group=0 \
  --numeric-owner lattice-provision
mv "$work/bundle.tar" "$out"
echo "Wrote $out. It holds the join key: only its owner can read it."
