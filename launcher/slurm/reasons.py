"""Why a job waits, in plain words, and whether waiting helps.

Slurm's own words are in its page "Job Reason Codes" (slurm.schedmd.com/job_reason_codes.html); which of them squeue
prints differs between versions, and so do blanks and underscores in the longer ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.slurm.queue import Job

WAITS, HELD, NEVER = "waits", "held", "never"
"""It can start by itself; somebody has to release it; it cannot start as things are."""


@dataclass(frozen=True)
class Wait:
    """Why a job waits."""

    kind: str
    words: str
    """Without Slurm's own word; empty where that says it all."""
    by_admin: bool = False
    """Of a held job: only an administrator may release it."""


_KNOWN = {
    "none": Wait(WAITS, "the scheduler has not looked at it yet"),
    "priority": Wait(WAITS, "behind jobs of higher priority"),
    "resources": Wait(WAITS, "waits for free nodes"),
    "dependency": Wait(WAITS, "waits for another job to end"),
    "dependencyneversatisfied": Wait(NEVER, "the job that it waits for did not end as it had to"),
    "begintime": Wait(WAITS, "its time to begin has not come"),
    "jobarraytasklimit": Wait(WAITS, "as many runs of its sweep go on as may at a time"),
    "cleaning": Wait(WAITS, "its last start is being cleaned up"),
    "prolog": Wait(WAITS, "its nodes are being prepared"),
    "licenses": Wait(WAITS, "waits for a licence"),
    "reservation": Wait(WAITS, "waits for its reservation to begin"),
    "reservationdeleted": Wait(NEVER, "its reservation was deleted"),
    "reqnodenotavail": Wait(WAITS, "a node that it asks for is down, drained or reserved"),
    "partitionnodelimit": Wait(WAITS, "its partition has not so many nodes for a job now"),
    "partitiontimelimit": Wait(NEVER, "its partition does not give a job so much time"),
    "partitionconfig": Wait(WAITS, "its partition does not give a job what it asks for now"),
    "partitiondown": Wait(WAITS, "its partition is down until an administrator opens it"),
    "partitioninactive": Wait(WAITS, "its partition is inactive until an administrator opens it"),
    "badconstraints": Wait(NEVER, "no node has all that it asks for"),
    "maxmemperlimit": Wait(NEVER, "it asks for more memory than a job may have there"),
    "deadline": Wait(NEVER, "it could not end before its deadline"),
    "accountnotallowed": Wait(NEVER, "its account may not use the partition"),
    "invalidaccount": Wait(NEVER, "its account is not valid"),
    "qosnotallowed": Wait(NEVER, "its QOS may not be used with the account or partition"),
    "invalidqos": Wait(NEVER, "its QOS is not valid"),
    "qosusagethreshold": Wait(WAITS, "the usage of its QOS is above the threshold"),
    "assocmaxjobslimit": Wait(WAITS, "as many of your jobs run as may at a time"),
    "jobheldadmin": Wait(HELD, "held by an administrator", by_admin=True),
    "jobhelduser": Wait(HELD, "held by its user"),
    "jobholdmaxrequeue": Wait(HELD, "held after too many requeues"),
    "jobrequeuedinheldstate": Wait(HELD, "requeued and held"),
    "launchfailedrequeuedheld": Wait(HELD, "requeued and held, as it could not be launched"),
    "userenvretrievalfailedrequeuedheld": Wait(HELD, "requeued and held, as its environment was not to be had"),
}
_PATTERNS = (
    (r"nodesrequiredforjobaredown\w*", Wait(WAITS, "nodes that it needs are down, drained or reserved")),
    (r"\w*held\w*|resv\w*hold", Wait(HELD, "held")),
    (r"(assoc|qos)grp\w*minutes\w*", Wait(WAITS, "the budget of its {group} is used up")),
    (r"(assoc|qos)grp\w*", Wait(WAITS, "its {group} uses all that it may at a time")),
    (r"(assoc|qos|)max\w*per(?:job|node)\w*", Wait(NEVER, "it asks for more than a job of its {group} may have")),
    (r"(assoc|qos|)min\w*", Wait(NEVER, "it asks for less than a job of its {group} has to")),
    (r"(?:assoc|qos|)max\w*per(?:user|account)\w*", Wait(WAITS, "your jobs use all that they may at a time")),
)
"""Limits of accounts and QOS have a hundred names, which are built alike."""
_GROUPS = {"assoc": "account", "qos": "QOS"}
_OF_STATES = {
    "REQUEUE_HOLD": Wait(HELD, "requeued and held"),
    "SPECIAL_EXIT": Wait(HELD, "requeued and held, as it ended in a special way"),
    "RESV_DEL_HOLD": Wait(HELD, "held, as its reservation was deleted"),
    "REQUEUED": Wait(WAITS, "is being requeued"),
    "CONFIGURING": Wait(WAITS, "its nodes are being made ready"),
}
"""States that say more than the reason, unless that holds the job."""


def wait_of(job: Job) -> Wait:
    """Why a queued job waits; of a reason that is not known only Slurm's own word."""
    if job.never:
        return Wait(NEVER, job.never)
    wait = _explained(re.sub(r"[\W_]", "", job.reason.partition(",")[0]).lower() or "none")
    return wait if wait.kind == HELD else _OF_STATES.get(job.state, wait)


def _explained(word: str) -> Wait:
    if word in _KNOWN:
        return _KNOWN[word]
    for pattern, wait in _PATTERNS:
        if match := re.fullmatch(pattern, word):
            group = _GROUPS.get("".join(match.groups()), "account or QOS")
            return Wait(wait.kind, wait.words.format(group=group))
    return Wait(WAITS, "")


def may_be_for_ever(job: Job) -> bool:
    """Whether what the partitions have could tell that a waiting job never starts."""
    return job.queued and job.reason in _OF_THE_PARTITION


_OF_THE_PARTITION = {"PartitionNodeLimit", "PartitionTimeLimit", "PartitionConfig", "BadConstraints"}
