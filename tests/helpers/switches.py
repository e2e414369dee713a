"""A switch's scripts in a network namespace of this machine."""

import os
import shutil
import stat
import subprocess
import uuid
from contextlib import contextmanager

TC = """#!/bin/sh
# Runs the real tc. A kernel without a queueing discipline or classifier answers with exit code 2. A word
# that tc does not accept ends with exit code 1 before the kernel is asked.
"{tc}" "$@" 2>"{log}.err"
status=$?
echo "$status tc $* $(tr "\\n" " " <"{log}.err")" >>"{log}"
[ "$status" -eq 2 ] && exit 0
cat "{log}.err" >&2
exit "$status"
"""


@contextmanager
def namespace(ports):
    """A network namespace with these ports."""
    space = f"openmrc-{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        for port in ports:
            subprocess.run(["ip", "-n", space, "link", "add", port, "type", "ifb"], check=True)
        yield space
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)


def kernel_has_the_queues():
    """Whether this kernel has the queueing disciplines and the classifier of qos.sh."""
    with namespace(["x"]) as space:
        commands = (
            "qdisc add dev x root handle 1: prio bands 2",
            "filter add dev x parent 1: protocol ipv6 prio 1 handle 1 flower ip_tos 0x10/0xfc classid 1:1",
            "qdisc add dev x parent 1:2 red limit 400000 min 30000 max 100000 avpkt 1000 bandwidth 1000mbit",
        )
        runs = [subprocess.run(["tc", "-n", space, *c.split()], capture_output=True) for c in commands]
        return all(run.returncode == 0 for run in runs)


def run_in(space, script, tmp_path, **variables):
    """Runs a script with more variables; returns it and, if the kernel lacks queues, the commands of tc."""
    tools, log = tmp_path / "bin", tmp_path / "tc.log"
    tools.mkdir(exist_ok=True)
    if not kernel_has_the_queues():
        wrapper = tools / "tc"
        wrapper.write_text(TC.format(tc=shutil.which("tc"), log=log))
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **variables}
    run = subprocess.run(
        ["ip", "netns", "exec", space, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return run, log.read_text().splitlines() if log.exists() else None
