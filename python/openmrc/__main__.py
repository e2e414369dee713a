"""``python -m openmrc``: the program ``openmrc``."""

import sys

from openmrc.cli import script

if __name__ == "__main__":
    sys.exit(script())
