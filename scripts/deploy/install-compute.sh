#!/usr/bin/env bash
# Installs the agent of Lattice with a join key: on this compute node, or in the root of its image.
#
#   install-compute.sh --packages DIR --join-key FILE [--config FILE] [--root DIR]
#
#   --packages DIR    with one lattice-python and one lattice-agent, as deb or as rpm
#   --join-key FILE   the line of `lattice admin enrol`
#   --config FILE     goes to /etc/lattice/agent.yaml; without it the package's own is used
#   --root DIR        the root of an image; its services start when it boots
#
# Run it as root. A second time it installs what is newer, and renews the key.
set -euo pipefail

fail() {
  printf '%s\nHint: %s\n' "$1" "${2:-$(basename "$0") --help}" >&2
  exit 2
}
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; }

packages='' key='' config='' root=''
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --packages | --join-key | --config | --root)
      [ $# -ge 2 ] || fail "$1 needs a value."
      case $1 in
        --packages) packages=$2 ;;
        --join-key) key=$2 ;;
        --config) config=$2 ;;
        --root) root=${2%/} ;;
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
[ -z "$root" ] || [ -d "$root/etc" ] || fail "$root is no root of a system: it has no /etc."
[ "$(id -u)" = 0 ] || fail "Only root can install packages." "Run it with sudo."

if [ -e "$root/var/lib/dpkg/status" ]; then
  kind=deb separator=_
elif [ -d "$root/var/lib/rpm" ] || [ -d "$root/usr/lib/sysimage/rpm" ]; then
  kind=rpm separator=-
else
  fail "${root:-This machine} has neither dpkg nor rpm." "Unpack lattice-agent-x86_64.tar.gz there instead."
fi
chosen=()
for name in lattice-python lattice-agent; do
  found=("$packages/$name$separator"*".$kind")
  [ -e "${found[0]}" ] || fail "$packages has no $name as $kind."
  [ ${#found[@]} = 1 ] || fail "$packages has more than one $name: ${found[*]##*/}" "Leave one of them."
  chosen+=("${found[0]}")
done

if [ $kind = deb ]; then
  dpkg ${root:+--root="$root"} --install "${chosen[@]}"
else
  rpm ${root:+--root "$root"} --upgrade --replacepkgs --verbose "${chosen[@]}"
fi
[ -z "$config" ] || install -m 644 "$config" "$root/etc/lattice/agent.yaml"
install -m 600 "$key" "$root/etc/lattice/join.key"
units=(lattice-enrol.service lattice-helper.socket lattice-agent.service)
if [ -n "$root" ]; then
  systemctl --root="$root" --quiet enable "${units[@]}"
  echo "Installed below $root; a node enrols when it boots."
elif [ -d /run/systemd/system ]; then
  systemctl --quiet enable --now "${units[@]}"
  echo "Installed and started. On the server: lattice admin agents"
else
  systemctl --quiet enable "${units[@]}"
  echo "Installed; systemd does not run here, so nothing was started."
fi
