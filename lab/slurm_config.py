"""The text of Slurm's configuration files. Pure: computes strings, touches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab import addresses
from lab.slurm_root import OWN_RELEASE

CLUSTER = "lab"
AUTHENTICATIONS = ("munge", "slurm")
"""What Slurm's daemons trust each other by; `slurm` needs a newer release."""
PARTITIONS = ("batch", "service", "interactive", "sensitive")
"""One for each kind of vCluster, `sensitive` too; the first is the default."""
GPUS = 4
SWITCHES = {"s1": ("n1", "n2"), "s2": ("n3", addresses.VM_NODE)}

_NODE_CPUS = 8
_NODE_MEMORY_MB = 4000
_VM_CPUS = 4
_VM_MEMORY_MB = 800
_ALL_NODES = ",".join([*addresses.NODES, addresses.VM_NODE])


@dataclass(frozen=True, slots=True)
class SlurmFiles:
    """Where Slurm keeps what, below the lab's folder."""

    state: Path

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def controller_state(self) -> Path:
        return self.state / "slurmctld"

    @property
    def munge(self) -> Path:
        return self.state / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "sock"

    @property
    def database(self) -> Path:
        return self.state / "mariadb"

    @property
    def jwt_key(self) -> Path:
        return self.etc / "jwt_hs256.key"

    @property
    def slurm_key(self) -> Path:
        """Where every daemon searches for it: beside slurm.conf."""
        return self.etc / "slurm.key"

    @property
    def devices(self) -> Path:
        return self.state / "dev"

    @property
    def job_tmp(self) -> Path:
        return self.state / "jobtmp"

    @property
    def rest(self) -> Path:
        return self.state / "rest"

    @property
    def rest_socket(self) -> Path:
        return self.rest / "sock"

    @property
    def rest_jwt_socket(self) -> Path:
        """Of the slurmrestd that judges tokens."""
        return self.rest / "jwt"

    def node(self, name: str) -> Path:
        return self.state / "nodes" / name


def slurm_conf(
    files: SlurmFiles, *, first_job_id: int, with_vm: bool = False, auth: str = "munge"
) -> str:
    return f"""\
ClusterName={CLUSTER}
SlurmctldHost={addresses.CONTROL_HOST}({addresses.CONTROL})
SlurmctldPort={addresses.SLURMCTLD_PORT}
SlurmdPort={addresses.SLURMD_PORT}
SlurmUser=slurm
FirstJobId={first_job_id}
{_authentication(files, auth)}
{_files(files)}
{_behaviour()}
{_accounting(files, auth)}
{_nodes(with_vm)}
"""


def _authentication(files: SlurmFiles, auth: str) -> str:
    credentials = "cred/munge" if auth == "munge" else "auth/slurm"
    return f"""\
{_trust(files, auth)}
CredType={credentials}
PrivateData=jobs"""


def _trust(files: SlurmFiles, auth: str) -> str:
    """For slurm.conf and slurmdbd.conf."""
    socket = f"AuthInfo=socket={files.munge_socket}\n" if auth == "munge" else ""
    return f"""\
AuthType=auth/{auth}
{socket}AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={files.jwt_key}"""


def _files(files: SlurmFiles) -> str:
    return f"""\
StateSaveLocation={files.controller_state}
SlurmctldPidFile={files.controller_state}/pid
SlurmctldLogFile={files.state}/log/slurmctld.log
SlurmdSpoolDir={files.state}/nodes/%n/spool
SlurmdPidFile={files.state}/nodes/%n/slurmd.pid
SlurmdLogFile={files.state}/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=verbose"""


def _behaviour() -> str:
    # config_overrides: the nodes claim more CPUs than this machine has.
    # Contain: the extern step, which a terminal session joins.
    return """\
SwitchType=switch/none
TopologyPlugin=topology/tree
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
InactiveLimit=0
KillWait=5
MinJobAge=600
UnkillableStepTimeout=30
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
PrologFlags=Alloc,Contain
JobContainerType=job_container/tmpfs
JobRequeue=1
PreemptType=preempt/qos
PreemptMode=REQUEUE
PreemptExemptTime=0
DefMemPerCPU=256
PropagateResourceLimits=NONE
DebugFlags=NO_CONF_HASH"""


def _accounting(files: SlurmFiles, auth: str) -> str:
    password = f"AccountingStoragePass={files.munge_socket}\n" if auth == "munge" else ""
    # AccountingStoragePass names the munge socket once more: slurmctld's link to slurmdbd does
    # not read AuthInfo.
    return f"""\
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=task=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={addresses.SLURMDBD_PORT}
{password}AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_script,job_env,job_comment
GresTypes=gpu"""


def _nodes(with_vm: bool) -> str:
    lines = [
        _node(name, address, _NODE_CPUS, _NODE_MEMORY_MB, "UNKNOWN")
        for name, address in addresses.NODES.items()
    ]
    # FUTURE: slurmctld hides the VM node until its slurmd registers.
    state = "UNKNOWN" if with_vm else "FUTURE"
    vm = _node(addresses.VM_NODE, addresses.VM_ADDRESS, _VM_CPUS, _VM_MEMORY_MB, state)
    lines.append(vm)
    for partition in PARTITIONS:
        default = "YES" if partition == PARTITIONS[0] else "NO"
        lines.append(
            f"PartitionName={partition} Nodes={_ALL_NODES} Default={default}"
            " MaxTime=INFINITE State=UP OverSubscribe=NO"
        )
    return "\n".join(lines)


def _node(name: str, address: str, cpus: int, memory_mb: int, state: str) -> str:
    return (
        f"NodeName={name} NodeHostname={name} NodeAddr={address} Port={addresses.SLURMD_PORT}"
        f" CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1"
        f" RealMemory={memory_mb} Gres=gpu:{GPUS} State={state}"
    )


def topology_conf() -> str:
    leafs = [f"SwitchName={name} Nodes={','.join(nodes)}" for name, nodes in SWITCHES.items()]
    return "\n".join([*leafs, f"SwitchName=root Switches={','.join(SWITCHES)}", ""])


def gres_conf(files: SlurmFiles) -> str:
    devices = f"{files.devices}/nvidia[0-{GPUS - 1}]"
    return f"AutoDetect=off\nNodeName={_ALL_NODES} Name=gpu File={devices}\n"


def cgroup_conf(release: str = OWN_RELEASE) -> str:
    """For the namespace nodes."""
    automount = "CgroupAutomount=no\n" if release == OWN_RELEASE else ""
    return f"""\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
{automount}\
ConstrainCores=no
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
ConstrainDevices=yes
"""


def cgroup_conf_v2() -> str:
    """For the VM node, which has no systemd to ask for a scope."""
    return """\
CgroupPlugin=cgroup/v2
IgnoreSystemd=yes
ConstrainCores=no
ConstrainRAMSpace=yes
ConstrainDevices=yes
"""


def job_container_conf(files: SlurmFiles) -> str:
    return f"AutoBasePath=true\nBasePath={files.job_tmp}\n"


def slurmdbd_conf(files: SlurmFiles, *, password: str, auth: str = "munge") -> str:
    return f"""\
{_trust(files, auth)}
PrivateData=jobs
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={addresses.SLURMDBD_PORT}
SlurmUser=slurm
DebugLevel=info
LogFile={files.state}/log/slurmdbd.log
PidFile={files.controller_state}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={addresses.MARIADB_PORT}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""
