#!/usr/bin/env bash
# First boot of the server: slurmdbd, slurmctld, then Lattice as docs/operate/install.md has it.
# shellcheck source=infra/gcp/startup/common.sh
source /usr/local/lib/lattice-cloud.sh
only_root_asks
[ ! -e /var/lib/lattice-cloud.done ] || exit 0
begin_slurm
password=$(head -c 18 /dev/urandom | base64)
mariadb <<SQL
CREATE DATABASE slurm_acct_db;
CREATE USER slurm@localhost IDENTIFIED BY '$password';
GRANT ALL ON slurm_acct_db.* TO slurm@localhost;
SQL
install -m 600 -o slurm -g slurm /dev/stdin /etc/slurm/slurmdbd.conf <<CONF
AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=$password
LogFile=/var/log/slurm/slurmdbd.log
CONF
systemctl enable --now slurmdbd
until sacctmgr -i add cluster "$(attribute lattice-server | sed 's/-server$//')"; do sleep 2; done
systemctl enable --now slurmctld
until scontrol ping | grep -q UP; do sleep 2; done

lattice-server setup --yes --operator --host "$(hostname -s)" \
  --host "$(meta instance/network-interfaces/0/access-configs/0/external-ip)"
add_secret "$(attribute authority-secret)" </etc/lattice/tls/ca.crt
systemctl enable --now lattice-server lattice-gate
until lattice login; do sleep 2; done
lattice admin enrol "$(attribute lattice-nodes)" --for 7d | add_secret "$(attribute join-key-secret)"
touch /var/lib/lattice-cloud.done
