"""Collective operations over MRC: all-reduce and its relatives between the ranks of a job.

Works on NumPy arrays, torch tensors in main memory, and anything with the buffer protocol. Ranks of one host
exchange through shared memory, ranks of different hosts by RDMA writes over all planes::

    from openmrc.collectives import Communicator

    with Communicator.from_environment() as comm:  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
        comm.all_reduce(gradients, op="avg")
"""

from openmrc.collectives.communicator import Communicator
from openmrc.collectives.records import OperationRecord
from openmrc.collectives.store import Store, TcpStore
from openmrc.collectives.work import Work

__all__ = ["Communicator", "OperationRecord", "Store", "TcpStore", "Work"]
