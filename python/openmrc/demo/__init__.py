"""A file on its way over many planes of this machine while planes and paths fail: ``openmrc demo``.

Two processes, a NIC each, packets through the kernel's loopback. Faults are made where packets leave
(:mod:`openmrc.testing`); nobody is told of them. What is shown is measured at the receiver.
"""
