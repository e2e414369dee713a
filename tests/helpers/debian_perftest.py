"""Debian's perftest: where its servers listen, and what it prints."""

import re

PORT = 18515
"""Where a server of perftest listens."""


def rows(said):
    """The rows of figures: bytes, iterations, and the others."""
    return [
        [float(cell) for cell in line.split()]
        for line in said.splitlines()
        if re.match(r"^ \d+ +\d+ +[\d.]", line)
    ]
