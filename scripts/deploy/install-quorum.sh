#!/usr/bin/env bash
# Three or five members of etcd with TLS for the servers' agreed state.
#
#   install-quorum.sh --member NAME=ADDRESS … --out DIR      writes a folder for each member
#   install-quorum.sh --install DIR/NAME [--root DIR]        on that member: puts it in place
#
#   --member NAME=ADDRESS   three or five of them; ADDRESS is an IP address or a host name
#   --out DIR               a folder that does not exist yet; it will hold private keys
#   --data DIR              where members store their data (/var/lib/etcd)
#   --client-port N         for the servers (2379)
#   --peer-port N           between the members (2380)
#   --days N                how long certificates are valid (3650)
#   --install DIR           a member's folder, as --out wrote it
#   --root DIR              install below DIR, for an image; starts nothing
#
# Clients and peers have an authority each, so that a server's certificate makes no member.
# The members need the etcd of their distribution, with its unit etcd.service.
set -euo pipefail

fail() {
  printf '%s\nHint: %s\n' "$1" "${2:-$(basename "$0") --help}" >&2
  exit 2
}
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; }
is_port() { [[ $1 =~ ^[0-9]{1,5}$ ]] && [ "$1" -ge 1 ] && [ "$1" -le 65535 ]; }

members=() out='' from='' root='' data=/var/lib/etcd client=2379 peer=2380 days=3650
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit 0 ;;
    --member | --out | --install | --root | --data | --client-port | --peer-port | --days)
      [ $# -ge 2 ] || fail "$1 needs a value."
      case $1 in
        --member) members+=("$2") ;;
        --out) out=$2 ;;
        --install) from=$2 ;;
        --root) root=${2%/} ;;
        --data) data=${2%/} ;;
        --client-port) client=$2 ;;
        --peer-port) peer=$2 ;;
        --days) days=$2 ;;
      esac
      shift 2
      ;;
    *) fail "Unknown argument: $1" ;;
  esac
done

# --- --install: one member's folder onto this machine, or below --root

install_member() {
  local folder=$root/etc/etcd/lattice unit=$root/etc/systemd/system/etcd.service.d/lattice.conf
  local owner group name
  [ "$(id -u)" = 0 ] || fail "Only root can install a member." "Run it with sudo."
  for name in etcd.yaml client-ca.crt client.crt client.key peer-ca.crt peer.crt peer.key; do
    [ -f "$from/$name" ] || fail "$from has no $name." "Give the folder that --out wrote for this member."
  done
  [ -x "$root/usr/bin/etcd" ] || fail "There is no $root/usr/bin/etcd." "Install the package etcd-server, or etcd."
  owner=$(awk -F: '$1 == "etcd" { print $3 }' "$root/etc/passwd")
  group=$(awk -F: '$1 == "etcd" { print $4 }' "$root/etc/passwd")
  [ -n "$owner" ] || fail "There is no user etcd." "The distribution's package of etcd makes it."
  if [ -e "$folder" ] && ! diff -rq "$from" "$folder" >/dev/null; then
    fail "$folder has another member." "Remove it and its data first, if that member is to go."
  fi
  install -d -m 755 "$root/etc/etcd" "${unit%/*}"
  install -d -m 700 -o "$owner" -g "$group" "$folder"
  for name in "$from"/*; do
    install -m 600 -o "$owner" -g "$group" "$name" "$folder/"
  done
  install -d -m 700 -o "$owner" -g "$group" "$root$(sed -n 's/^data-dir: //p' "$from/etcd.yaml")"
  cat >"$unit" <<-'UNIT'
	[Service]
	WorkingDirectory=/etc/etcd/lattice
	ExecStart=
	ExecStart=/usr/bin/etcd --config-file /etc/etcd/lattice/etcd.yaml
	UNIT
  if [ -n "$root" ]; then
    systemctl --root="$root" --quiet enable etcd.service
  elif [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl --quiet enable etcd.service
    # A member is ready only when most of the others are.
    systemctl --no-block restart etcd.service
  fi
  echo "Installed $folder"
}

if [ -n "$from" ]; then
  [ -z "${members[*]-}$out" ] || fail "--install goes with --root alone."
  install_member
  exit 0
fi

# --- --out: keys, certificates and configuration of all members

case ${#members[@]} in 3 | 5) ;; *) fail "A quorum has 3 or 5 members, not ${#members[@]}." ;; esac
[ -n "$out" ] || fail "Where to write is missing: --out DIR."
[ ! -e "$out" ] || fail "$out exists already." "Name a new folder: keys are never replaced."
for port in "$client" "$peer"; do
  is_port "$port" || fail "A port is a number from 1 to 65535, not $port."
done
[ "$client" != "$peer" ] || fail "Clients and peers need ports of their own."
[[ $days =~ ^[1-9][0-9]{0,4}$ ]] || fail "--days is a number of days."
[[ $data == /* ]] || fail "--data is an absolute path."
command -v openssl >/dev/null || fail "There is no openssl here." "Install the package openssl."
seen=' '
for member in "${members[@]}"; do
  [[ $member =~ ^[a-z0-9][a-z0-9-]*=[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$ ]] ||
    fail "$member is not NAME=ADDRESS."
  for part in "${member%%=*}" "${member#*=}"; do
    [[ $seen != *" $part "* ]] || fail "$part stands twice."
  done
  seen+="${member%%=*} ${member#*=} "
done

umask 077
mkdir -p "$(dirname "$out")"
work=$(mktemp -d "$(dirname "$out")/.quorum.XXXXXX")
trap 'rm -rf "$work"' EXIT

run_openssl() { # WHAT ARGUMENT…
  local what=$1 said
  shift
  said=$(openssl "$@" 2>&1) || fail "openssl made no $what: $said" "Nothing was written. $(openssl version)"
}
authority() { # NAME COMMON-NAME
  run_openssl "authority $1" req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
    -days "$days" -subj "/CN=$2" -addext 'keyUsage=critical,keyCertSign,cRLSign' \
    -keyout "$work/$1.key" -out "$work/$1.crt"
}
certificate() { # AUTHORITY STEM COMMON-NAME USAGE [ALTERNATIVE-NAMES]
  local extensions="basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=$4"
  [ -z "${5:-}" ] || extensions+=$'\n'"subjectAltName=$5"
  run_openssl "key for ${2##*/}" req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
    -subj "/CN=$3" -keyout "$2.key" -out "$2.csr"
  run_openssl "certificate for ${2##*/}" x509 -req -in "$2.csr" -CA "$work/$1.crt" \
    -CAkey "$work/$1.key" -CAcreateserial -days "$days" -extfile <(echo "$extensions") -out "$2.crt"
  rm "$2.csr"
}
is_address() { [[ $1 =~ ^[0-9.]+$ || $1 == *:* ]]; }
in_url() { if [[ $1 == *:* ]]; then echo "[$1]"; else echo "$1"; fi; }

authority client-ca "etcd of Lattice: clients"
authority peer-ca "etcd of Lattice: peers"
cluster=''
endpoints=()
for member in "${members[@]}"; do
  cluster+=${cluster:+,}${member%%=*}=https://$(in_url "${member#*=}"):$peer
  endpoints+=("https://$(in_url "${member#*=}"):$client")
done
for member in "${members[@]}"; do
  name=${member%%=*} address=${member#*=}
  folder=$work/$name
  mkdir "$folder"
  if is_address "$address"; then
    names=IP:$address listen=$(in_url "$address")
  else
    names=DNS:$address listen=0.0.0.0
  fi
  # A member compares its peer's address with the peer's certificate. Its gateway is its own client.
  names+=,IP:127.0.0.1
  certificate client-ca "$folder/client" "$name" serverAuth,clientAuth "$names,DNS:localhost"
  certificate peer-ca "$folder/peer" "$name" serverAuth,clientAuth "$names"
  cp "$work/client-ca.crt" "$work/peer-ca.crt" "$folder/"
  cat >"$folder/etcd.yaml" <<-YAML
	# Member $name of the quorum of Lattice, written by install-quorum.sh.
	# File names start at the folder of this file.
	name: $name
	data-dir: $data/$name.lattice
	listen-client-urls: https://$listen:$client
	advertise-client-urls: https://$(in_url "$address"):$client
	listen-peer-urls: https://$listen:$peer
	initial-advertise-peer-urls: https://$(in_url "$address"):$peer
	initial-cluster: $cluster
	initial-cluster-token: lattice
	initial-cluster-state: new
	auto-compaction-mode: periodic
	auto-compaction-retention: 1h
	client-transport-security:
	  cert-file: client.crt
	  key-file: client.key
	  trusted-ca-file: client-ca.crt
	  client-cert-auth: true
	peer-transport-security:
	  cert-file: peer.crt
	  key-file: peer.key
	  trusted-ca-file: peer-ca.crt
	  client-cert-auth: true
	YAML
done
mkdir "$work/servers" "$work/authorities"
certificate client-ca "$work/servers/client" lattice-server clientAuth
cp "$work/client-ca.crt" "$work/servers/ca.crt"
mv "$work"/*-ca.* "$work/authorities/"
mv "$work" "$out"
trap - EXIT

cat <<NEXT
Wrote $out: a folder for each member, 'servers' for lattice-server, and 'authorities'.
Next:
  1. Copy $out/NAME to each member, and there, as root: $(basename "$0") --install NAME
  2. Copy $out/servers to /etc/lattice/etcd on each server, for the user lattice.
  3. On each server:
     lattice-server setup$(printf ' --etcd %s' "${endpoints[@]}") \\
       --etcd-ca /etc/lattice/etcd/ca.crt --etcd-cert /etc/lattice/etcd/client.crt \\
       --etcd-key /etc/lattice/etcd/client.key --objects URL …
  4. Put $out/authorities away: who has it can make members and clients.
NEXT
