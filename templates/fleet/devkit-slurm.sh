#!/bin/sh
# Slurm's HealthCheckProgram drains a node with a problem, and resumes it once that is fixed; as Prolog it exits with 1,
# so Slurm drains the node and requeues the job. In slurm.conf:
#     HealthCheckProgram=/etc/slurm/devkit-slurm.sh
#     HealthCheckInterval=300
#     Prolog=/etc/slurm/devkit-slurm.sh
# Slurm ends the health check after 60 s. Nodes that someone else drained stay drained.
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
line=$(@COMMAND@ doctor --format line --timeout 15 2>/dev/null)
if [ -n "${SLURM_JOB_ID:-}" ]; then
    case $line in problems:*) echo "$line"; exit 1 ;; esac
    exit 0
fi
node=${SLURMD_NODENAME:-$(hostname -s)}
reason=$(scontrol --oneliner show node "$node" | sed -n 's/.* Reason=\(devkit: \).*/\1/p')
case $line in
    problems:*) [ -n "$reason" ] || scontrol update NodeName="$node" State=DRAIN Reason="devkit: ${line#problems: }" ;;
    healthy:* | warnings:*) [ -z "$reason" ] || scontrol update NodeName="$node" State=RESUME ;;
esac
