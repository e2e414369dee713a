#!/bin/sh
# Slurm: Prolog and Epilog of slurmd. A node that the fabric's controller finds failed is drained, with the reason.
#
# As Prolog it ends with 1 then, so that the job is requeued; as Epilog (name or link: openmrc-epilog.sh) with 0.
# A node that is degraded or unknown is used: a job must not wait because a controller is away.
#
# /etc/openmrc/environment names this node's place in the fabric:
#     OPENMRC_HOST=h12
#     OPENMRC_CONTROLLER=https://controller:18517
PATH=/usr/local/bin:/usr/bin:/bin
set -a
. "${OPENMRC_ENVIRONMENT:-/etc/openmrc/environment}" || exit 0
set +a
# Slurm reads lines of a prolog's output that begin with "print" or "export": nothing else may come out.
found=$(timeout 20 openmrc validate --hosts "$OPENMRC_HOST" --markdown 2>&1)
[ $? -eq 4 ] || exit 0
why=$(printf '%s\n' "$found" | awk -F ' *[|] *' -v host="$OPENMRC_HOST" '$2 == host { print substr($4, 1, 200) }')
scontrol update NodeName="$SLURMD_NODENAME" State=DRAIN Reason="openmrc: $why" >&2
case $0 in
    *epilog*) exit 0 ;;
esac
exit 1
