"""The configuration files of the sandbox, as text. Pure functions of the settings."""

from __future__ import annotations

from .settings import LOGIN_NODE, LOGS, STATE, Settings


def files(settings: Settings, now: float) -> dict[str, str]:
    """Every file of the configuration directory: name and content."""
    return {
        "slurm.conf": slurm_conf(settings, first_job_id(now)),
        "gres.conf": gres_conf(settings),
        # slurmd looks for a cgroup plugin even with proctrack/linuxproc; naming one stops the search.
        "cgroup.conf": f"CgroupPlugin=cgroup/v1\nConstrainRAMSpace={'yes' if settings.memory_limits else 'no'}\n",
        "slurmdbd.conf": slurmdbd_conf(),
        "hosts": hosts(settings),
    }


def first_job_id(now: float) -> int:
    """Job ids must not repeat from one sandbox to the next: a result left under an earlier job's id would pass for
    the new job's. Ids of a sandbox follow its start time in 1/100 s (few enough jobs start in that time) and come
    round again after a week; Slurm's largest is 0x03FF_FFFF."""
    return 1000 + int(now * 100) % 67_000_000


def slurm_conf(settings: Settings, first_job_id: int) -> str:
    return "\n".join(
        [
            _DAEMONS.format(
                ctl=LOGIN_NODE,
                state=STATE,
                logs=LOGS,
                timeout=settings.slurmd_timeout,
                task="task/cgroup" if settings.memory_limits else "task/none",
            ),
            _SCHEDULING.format(first_job_id=first_job_id),
            _accounting(settings),
            _gres_types(settings),
            settings.extra_conf,
            _node_line(settings),
            _PARTITIONS.format(grace=settings.grace),
        ]
    )


def gres_conf(settings: Settings) -> str:
    """GPUs need device files here: with a type and a count alone slurmd reports none, and the node becomes invalid."""
    devices = ",".join(str(STATE / "dev" / f"gpu{number}") for number in range(settings.gpus))
    if not devices:
        return ""
    return f"NodeName={','.join(settings.nodes)} Name=gpu Type={settings.gpu_type} File={devices}\n"


def slurmdbd_conf() -> str:
    return f"""\
AuthType=auth/munge
DbdHost={LOGIN_NODE}
DbdPort=6819
SlurmUser=root
LogFile={LOGS}/slurmdbd.log
PidFile={STATE}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_accounting
"""


def hosts(settings: Settings) -> str:
    addresses = {"localhost": "127.0.0.1", LOGIN_NODE: "10.77.0.1"}
    addresses |= {node: settings.address(node) for node in settings.nodes}
    return "".join(f"{address} {name}\n" for name, address in addresses.items())


def names_from_files_only(nsswitch: str) -> str:
    """nsswitch.conf without DNS: no server can be reached, and torch's reverse look-ups would wait 10 s for each."""
    other = [line for line in nsswitch.splitlines() if not line.startswith("hosts:")]
    return "\n".join([*other, "hosts: files", ""])


def _accounting(settings: Settings) -> str:
    if not settings.accounting:
        return "AccountingStorageType=accounting_storage/none"
    tres = f"AccountingStorageTRES=gres/gpu,gres/gpu:{settings.gpu_type}\n" if settings.gpus else ""
    return f"{tres}{_ACCOUNTING.format(ctl=LOGIN_NODE)}"


def _gres_types(settings: Settings) -> str:
    return "GresTypes=gpu" if settings.gpus else ""


def _node_line(settings: Settings) -> str:
    gres = f" Gres=gpu:{settings.gpu_type}:{settings.gpus}" if settings.gpus else ""
    cpus = f"CPUs={settings.cpus} Sockets=1 CoresPerSocket={settings.cpus} ThreadsPerCore=1"
    return f"NodeName={','.join(settings.nodes)} {cpus} RealMemory={settings.memory_mb}{gres} State=UNKNOWN"


_DAEMONS = """\
ClusterName=sandbox
SlurmctldHost={ctl}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job may not start before its old credential has expired, by default after two minutes.
AuthInfo=cred_expire=5
CredType=cred/munge
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/spool/%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/slurmd.%n.log
SlurmctldSyslogDebug=quiet
SlurmdSyslogDebug=quiet
MailProg=/bin/true
# The nodes are bigger than this machine: believe this file, not the hardware.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
MpiDefault=none
SwitchType=switch/none
PropagateResourceLimits=NONE
# A node that comes back, for whatever reason it was down, is used again.
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={timeout}
MessageTimeout=10
KillWait=5
InactiveLimit=0
"""

_SCHEDULING = """\
FirstJobId={first_job_id}
MinJobAge=3600
JobRequeue=1
DefMemPerCPU=100
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=5,batch_sched_delay=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""

_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={ctl}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=30
"""

_PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES DefaultTime=60 MaxTime=INFINITE State=UP PriorityTier=1 \
PreemptMode=REQUEUE GraceTime={grace}
PartitionName=high Nodes=ALL DefaultTime=60 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
