#!/usr/bin/env bash
# Each boot of a compute node: slurmd, and the agent with the join key that the server made.
# shellcheck source=infra/gcp/startup/common.sh
source /usr/local/lib/lattice-cloud.sh
only_root_asks
begin_slurm
systemctl enable --now slurmd
if [ ! -e /var/lib/lattice-agent/identity.json ]; then
  umask 077
  until secret "$(attribute join-key-secret)" >/etc/lattice/join.key; do sleep 5; done
fi
systemctl enable --now lattice-enrol lattice-helper.socket lattice-agent
