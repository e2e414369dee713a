"""Runs a script as the ranks of a job with torch."""

import textwrap

from tests.helpers import ranks

HEAD = """
    import os, sys, signal, datetime, warnings
    import torch, torch.distributed as dist, torch.nn as nn
    dist.init_process_group(os.environ.get("BACKEND", "mrc"), timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
"""


TAIL = """
    if dist.get_backend() == "gloo":
        # Its threads now and then abort the process when the other rank has gone
        # ("terminate called without an active exception").
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)
    dist.destroy_process_group()
"""


def start(script, size, **environment):
    variables = {"OMP_NUM_THREADS": "1", **environment}
    return ranks.start(script, size, head=HEAD, tail=textwrap.dedent(TAIL), **variables)


def run(script, size, **environment):
    return ranks.finish(start(script, size, **environment))
