"""What ``openmrc demo`` and ``openmrc lab demo`` run: one on loopback, one in the lab."""
