"""Two ways to live with the same broken links: ``openmrc lab demo``.

Eight hosts in two planes write to each other in a ring while links, a switch and a NIC port fail. First over
MRC and static source routes, then over BGP with BFD and ECMP (FRR) with TCP and UDP. What is shown is
measured where data arrive, and, for what still goes into a dead link, where hosts send.
"""
