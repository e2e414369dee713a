"""Two transports over the same broken links: ``openmrc lab demo``.

Eight hosts in two planes write to each other in a ring while links, a switch and a NIC port fail. First over
MRC and static source routes, then as TCP and UDP behind BGP with BFD and ECMP (FRR). Goodput is measured
where data arrive; what is still sent into a dead link is measured where hosts send.
"""
