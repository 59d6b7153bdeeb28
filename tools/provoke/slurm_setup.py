"""A real Slurm inside the sandbox: munge, one controller, and two node daemons on one host."""

from __future__ import annotations

from case import Case

# No database, no systemd; accounting stays off. One host plays two nodes (slurmd -N).
UP = r"""
B=/tmp/slurm; mkdir -p $B/state $B/spool $B/log $B/munge; chmod 755 $B/munge
head -c 1024 /dev/urandom > $B/munge/key; chmod 400 $B/munge/key
munged --force --key-file=$B/munge/key --socket=$B/munge/sock --pid-file=$B/munge/pid --log-file=$B/munge/log \
  --seed-file=$B/munge/seed
cat > $B/slurm.conf <<CONF
ClusterName=lab
SlurmctldHost=node01(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=$B/munge/sock
CryptoType=crypto/munge
StateSaveLocation=$B/state
SlurmdSpoolDir=$B/spool/%n
SlurmctldPidFile=$B/slurmctld.pid
SlurmdPidFile=$B/slurmd-%n.pid
SlurmdLogFile=$B/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=TASKPLUGIN
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
KillWait=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
NodeName=n1 NodeHostname=node01 NodeAddr=127.0.0.1 Port=17001 CPUs=1 RealMemory=2000 State=UNKNOWN
NodeName=n2 NodeHostname=node01 NodeAddr=127.0.0.1 Port=17002 CPUs=1 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10
CONF
cat > $B/cgroup.conf <<CONF
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
CONF
export SLURM_CONF=$B/slurm.conf
(slurmctld -c -L $B/log/slurmctld.log; slurmd -N n1; slurmd -N n2) > $B/log/start 2>&1
for i in $(seq 100); do timeout 2 sinfo -h -o %T 2>/dev/null | grep -q idle && break; sleep 0.1; done
"""


def slurm_job(
    name: str,
    meanwhile: str,
    script: str,
    options: str = "-w n1",
    task_plugin: str = "task/none",
    step: str = "srun -n1 /usr/bin/python3 train.py",
    begun: str = "step     20",
    project: str = "/srv/project",
) -> Case:
    """
    A job that runs ``step`` in a batch script; the case ends with what the job's output file holds.

    :param meanwhile: what another user or the administrator does once the output holds ``begun``; the job's id is $J.
    :param task_plugin: ``task/cgroup`` lets the kernel enforce the job's memory.
    """
    batch = f"#!/bin/bash\n#SBATCH --job-name=pretrain\n{step}\n"
    setup = UP.replace("TASKPLUGIN", task_plugin)
    if task_plugin == "task/cgroup":
        setup = setup.replace("JobAcctGatherParams=OverMemoryKill\n", "")  # one watchman of memory is enough
    command = setup + (
        f"J=$(sbatch --parsable --mem=300 {options} -o out.log job.sbatch)\n"
        f"for i in $(seq 50); do grep -q '{begun}' out.log 2>/dev/null && break; sleep 0.2; done\n"
        f"{meanwhile}\n"
        "for i in $(seq 300); do\n"
        "  scontrol show job $J | grep -qE 'JobState=(RUNNING|PENDING|COMPLETING)' || break; sleep 0.3\n"
        "done\n"
        "sleep 1; cat out.log\n"
        "scontrol show job $J > state\n"
        # The node daemons leave their cgroups behind, and those are not in any namespace.
        "kill $(cat $B/slurmd-*.pid); sleep 0.5\n"
        "find /sys/fs/cgroup/*/slurm_n[12] -depth -type d -exec rmdir {} + 2> /dev/null\n"
        "code=$(grep -oE ' ExitCode=[0-9]+:[0-9]+' state | cut -d= -f2)\n"
        "[ ${code#*:} -gt 0 ] && exit $((128 + ${code#*:}))\n"
        "[ $code = 0:0 ] && ! grep -q JobState=COMPLETED state && exit 1  # as sbatch --wait does\n"
        "exit ${code%:*}\n"
    )
    files = {"job.sbatch": batch, "train.py": script}
    return Case(name, command, files, ("slurmctld", "slurmd", "munged"), project, timeout_s=150)
