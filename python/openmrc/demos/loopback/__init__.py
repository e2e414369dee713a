"""A file on its way over many planes of this machine while planes and paths fail: ``openmrc demo``.

Two processes with a NIC each, packets through the kernel's loopback. Faults are made where packets leave
(:mod:`openmrc.testing`); the transport is not informed. Everything shown is measured at the receiver.
"""
