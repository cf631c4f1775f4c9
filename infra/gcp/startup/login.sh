#!/usr/bin/env bash
# Each boot of the login node: MUNGE, slurm.conf, and the address of Lattice's server.
# shellcheck source=infra/gcp/startup/common.sh
source /usr/local/lib/lattice-cloud.sh
only_root_asks
begin_slurm
server=$(attribute lattice-server)
# The server put its authority into Secret Manager. What answers on its port is not asked: it could
# be anybody.
if [ ! -s /etc/lattice/tls/ca.crt ]; then
  install -d -m 755 /etc/lattice/tls
  until secret "$(attribute authority-secret)" >/etc/lattice/tls/ca.crt.new &&
    openssl x509 -in /etc/lattice/tls/ca.crt.new -noout; do sleep 5; done
  mv /etc/lattice/tls/ca.crt.new /etc/lattice/tls/ca.crt
fi
printf 'api_url: https://%s:8080\nca: /etc/lattice/tls/ca.crt\n' "$server" >/etc/lattice/config.yaml
