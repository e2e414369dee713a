"""Bandwidth and latency of RDMA writes as perftest measures them: write-bw and write-lat.

A server waits for a client over TCP; the client says what is measured. The loops themselves run in Rust,
without the GIL; here the two ends meet, agree, and turn counts into figures.
"""
