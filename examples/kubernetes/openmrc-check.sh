#!/bin/sh
# node-problem-detector: a custom plugin that says whether the fabric's controller finds this node good.
#
#     openmrc-check.sh unusable|degraded
#
# Exit codes are the detector's: 0 the condition is false, 1 it is true, 2 it is unknown. The line of output is the
# condition's message. OPENMRC_HOST and OPENMRC_CONTROLLER name the node's place in the fabric.
found=$(timeout 8 openmrc validate --hosts "$OPENMRC_HOST" --markdown 2>&1)
code=$?
why=$(printf '%s\n' "$found" | awk -F ' *[|] *' -v host="$OPENMRC_HOST" '$2 == host { print $4 }')
case $1:$code in
    *:0) echo "the fabric is good"; exit 0 ;;
    unusable:3) echo "$why"; exit 0 ;;
    unusable:4 | degraded:3 | degraded:4) echo "$why"; exit 1 ;;
    *) echo "${why:-$(printf '%s\n' "$found" | head -n 1)}"; exit 2 ;;
esac
