"""Copying files over every plane at once: what ``openmrc serve`` and ``openmrc put`` are made of.

A TCP connection carries what is said about files (:mod:`~openmrc.transfer.protocol`); their bytes are RDMA
writes into a ring of registered memory at the receiver (:mod:`~openmrc.transfer.ring`), which hashes them,
stores them (:mod:`~openmrc.transfer.store`) and gives the room back.
"""
