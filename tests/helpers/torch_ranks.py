"""Runs a script as the ranks of a job with torch."""

from tests.helpers import ranks

HEAD = """
    import os, sys, signal, datetime, warnings
    import torch, torch.distributed as dist, torch.nn as nn
    dist.init_process_group(os.environ.get("BACKEND", "mrc"), timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
"""


def start(script, size, **environment):
    variables = {"OMP_NUM_THREADS": "1", **environment}
    return ranks.start(script, size, head=HEAD, tail="dist.destroy_process_group()", **variables)


def run(script, size, **environment):
    return ranks.finish(start(script, size, **environment))
