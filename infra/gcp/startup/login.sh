#!/usr/bin/env bash
# Each boot of the login node: MUNGE, slurm.conf, and the address of Lattice's server.
# shellcheck source=infra/gcp/startup/common.sh
source /usr/local/lib/lattice-cloud.sh
only_root_asks
begin_slurm
server=$(attribute lattice-server)
# The authority is public; it is taken once, from the server itself, inside the network.
if [ ! -e /etc/lattice/tls/ca.crt ]; then
  install -d -m 755 /etc/lattice/tls
  until openssl s_client -connect "$server:8080" -showcerts </dev/null 2>/dev/null |
    awk '/BEGIN CERT/ { text = "" } { text = text $0 "\n" } /END CERT/ { last = text } END { printf "%s", last }' \
      >/etc/lattice/tls/ca.crt && [ -s /etc/lattice/tls/ca.crt ]; do sleep 5; done
fi
printf 'api_url: https://%s:8080\nca: /etc/lattice/tls/ca.crt\n' "$server" >/etc/lattice/config.yaml
