"""The texts for Slurm's reasons why an allocation waits or ended. Pure.

Simple codes are in a table. The about 150 codes of limits are built from parts (`AssocGrpCpuLimit`,
`QOSMaxGRESPerUser`, `MaxJobsPerAccount`), so a grammar covers them. Any other code is shown
unchanged.
"""

from __future__ import annotations

import re

from lattice.domain.allocation import Reason

_TEXTS = {
    "None": "Slurm has not looked at it yet",
    "Priority": "jobs with a higher priority come first",
    "Resources": "waiting for enough free resources; it is next in line for them",
    "Dependency": "waiting for another job it depends on",
    "DependencyNeverSatisfied": "a job it depends on ended so that it can never start",
    "BeginTime": "its start time has not come yet",
    "JobHeldUser": "held by its owner; release it to let it start",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "held because it was requeued too many times",
    "JobArrayTaskLimit": "its array already runs as many tasks at once as it allows itself",
    "Licenses": "waiting for licences",
    "Reservation": "waiting for its reservation to begin",
    "ReservationDeleted": "the reservation it asked for was deleted",
    "ReservationInvalid": "the reservation it asked for is not valid",
    "ReqNodeNotAvail": "a node it asked for is down, drained, reserved or otherwise not available",
    "NodeDown": "a node it needs is down",
    "FrontEndDown": "no front end node is available to run it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition does not start jobs at the moment",
    "PartitionNodeLimit": "it asks for more nodes than its partition allows, or too few",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionConfig": "its partition is not set up for what it asks for",
    "BadConstraints": "no nodes can ever satisfy what it asks for",
    "Constraints": "no nodes satisfy what it asks for",
    "AccountNotAllowed": "its account may not use this partition or QOS",
    "AccountingPolicy": "an accounting policy holds it back",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "QOSNotAllowed": "its QOS may not be used in this partition or by this account",
    "QOSUsageThreshold": "its owner's usage is past the threshold of the QOS",
    "QOSJobLimit": "the QOS allows no more jobs now",
    "QOSResourceLimit": "the QOS allows no more resources now",
    "QOSTimeLimit": "it asks for more time than the QOS allows",
    "QOSMinCpuNotSatisfied": "it asks for fewer CPUs than the QOS demands",
    "AssociationJobLimit": "its account or owner may run no more jobs now",
    "AssociationResourceLimit": "its account or owner may use no more resources now",
    "AssociationTimeLimit": "its account or owner has used up its time",
    "MaxMemPerLimit": "it asks for more memory for each node or CPU than the partition allows",
    "Cleaning": "its last run is still being cleaned up",
    "Prolog": "the prolog still runs on its nodes",
    "BurstBufferResources": "waiting for room in the burst buffer",
    "BurstBufferStageIn": "its data is being copied into the burst buffer",
    "BurstBufferOperation": "a burst buffer operation failed",
    "PowerNotAvail": "not enough power is available",
    "PowerReserved": "the power it needs is reserved",
    "FedJobLock": "waiting for the other clusters of the federation to agree",
    "SchedDefer": "it asked to start at once, and Slurm defers such requests",
    "SystemFailure": "Slurm, a file system or the network failed",
    "JobLaunchFailure": "it could not be launched on a node, or its script was killed there",
    "NonZeroExitCode": "it ended with an exit code that is not zero",
    "RaisedSignal": "it was ended by a signal",
    "TimeLimit": "it reached its time limit",
    "InactiveLimit": "it was inactive for too long",
    "DeadLine": "it can't finish before its deadline",
    "OutOfMemory": "it used more memory than it was given",
}

_ENDINGS = frozenset(
    {
        "BadConstraints",
        "BurstBufferOperation",
        "DeadLine",
        "DependencyNeverSatisfied",
        "InactiveLimit",
        "InvalidAccount",
        "InvalidQOS",
        "JobLaunchFailure",
        "NodeDown",
        "NonZeroExitCode",
        "OutOfMemory",
        "RaisedSignal",
        "SystemFailure",
        "TimeLimit",
    }
)

_WHAT = {
    "cpu": "CPUs",
    "mem": "memory",
    "memory": "memory",
    "node": "nodes",
    "gres": "GPUs or other generic resources",
    "license": "licences",
    "bb": "burst buffer",
    "energy": "energy",
    "billing": "billing units",
    "jobs": "running jobs",
    "submitjob": "queued and running jobs",
    "submitjobs": "queued and running jobs",
    "wall": "wall time",
    "wallduration": "wall time",
    "unknown": "a resource Slurm does not name",
}
_LIMIT = re.compile(
    r"(?P<holder>Assoc|QOS)?(?P<kind>Grp|Max|Min)"
    r"(?P<what>Cpu|Memory|Mem|Node|GRES|License|BB|Energy|Billing|SubmitJobs|SubmitJob|Jobs|"
    r"WallDuration|Wall|Unknown)"
    r"(?P<minutes>Minutes|RunMinutes)?(?P<per>PerJob|PerUser|PerNode|PerAccount)?(?:Limit)?",
    re.IGNORECASE,
)
_HOLDERS = {"assoc": "the limit of its account or owner", "qos": "the limit of the QOS"}
_GROUP_HOLDERS = {"assoc": "all jobs under its account", "qos": "all jobs in the QOS"}
_PER = {
    "perjob": "for one job",
    "peruser": "for one user",
    "pernode": "on one node",
    "peraccount": "for one account",
}


def reason_of(code: str | None, description: str = "") -> Reason | None:
    """The reason with its text, or None if Slurm gives no code."""
    if not code:
        return None
    text = _TEXTS.get(code) or _limit(code) or f"Slurm gives {code} as the reason"
    if description and description != code:
        text = f"{text} ({description})"
    return Reason(code, text)


def ending_reason(code: str | None, description: str = "") -> Reason | None:
    """Why it ended. A reason for waiting that is still in the record is ignored."""
    return reason_of(code, description) if code in _ENDINGS else None


def _limit(code: str) -> str | None:
    match = _LIMIT.fullmatch(code)
    if match is None:
        return None
    part = {key: (value or "").lower() for key, value in match.groupdict().items()}
    # MaxCpuPerAccount and similar codes have no prefix; they are limits of the QOS.
    holder = part["holder"] or "qos"
    what = _WHAT[part["what"]]
    if part["minutes"]:
        running = " of running jobs" if part["minutes"].startswith("run") else ""
        what = f"minutes of {what}{running}"
    if part["kind"] == "min":
        return f"it asks for less than the QOS demands: {what}"
    if part["kind"] == "grp":
        return f"{_GROUP_HOLDERS[holder]} together have reached their limit: {what}"
    per = f" {_PER[part['per']]}" if part["per"] else ""
    return f"{_HOLDERS[holder]} is reached: {what}{per}"
