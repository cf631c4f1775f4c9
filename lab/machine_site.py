"""Slurm on a whole machine, as an administrator has it before Lattice: accounting and a user."""

from __future__ import annotations

from lab.machine import ADDRESS, NAME, Machine

USER = "alice"
_SLURM_CONF = f"""ClusterName=site
SlurmctldHost={NAME}({ADDRESS})
AuthType=auth/munge
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
JobAcctGatherType=jobacct_gather/cgroup
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
SelectType=select/cons_tres
PrologFlags=contain
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={NAME} NodeAddr={ADDRESS} CPUs=2 RealMemory=1500
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""
_CGROUP_CONF = """CgroupPlugin=cgroup/v2
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainDevices=yes
"""
_DBD_CONF = """AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=site
LogFile=/var/log/slurm/slurmdbd.log
"""


def prepare(machine: Machine) -> None:
    """Bring Slurm up; it has one node, one partition and the user `alice`."""
    _write(machine, "/etc/slurm/slurm.conf", _SLURM_CONF)
    _write(machine, "/etc/slurm/cgroup.conf", _CGROUP_CONF)
    _write(machine, "/etc/slurm/slurmdbd.conf", _DBD_CONF)
    machine.run(
        f"""set -e
        useradd -m -s /bin/bash {USER}
        [ -s /etc/munge/munge.key ] || runuser -u munge -- mungekey -c
        install -d -o slurm -g slurm /var/lib/slurm/slurmctld /var/log/slurm
        install -d /var/lib/slurm/slurmd
        chown slurm /etc/slurm/slurmdbd.conf; chmod 600 /etc/slurm/slurmdbd.conf
        systemctl restart munge mariadb
        mysql -e "create database slurm_acct_db; create user slurm@localhost identified by 'site';
          grant all on slurm_acct_db.* to slurm@localhost"
        systemctl restart slurmdbd
        for _ in $(seq 120); do sacctmgr -n show cluster >/dev/null 2>&1 && break; sleep 1; done
        sacctmgr -i add cluster site || true
        sacctmgr -i add account physics
        sacctmgr -i add account research parent=physics
        sacctmgr -i add user {USER} account=research
        systemctl restart slurmctld slurmd
        for _ in $(seq 120); do [ "$(sinfo -h -o %t)" = idle ] && exit 0; sleep 1; done
        sinfo >&2; exit 1
        """,
        timeout_s=900,
    )


def _write(machine: Machine, path: str, text: str) -> None:
    machine.run(f"mkdir -p $(dirname {path}); cat >{path} <<'END'\n{text}END\n")
