"""``python -m raysim``: the command line."""

import sys

from raysim.cli import main

if __name__ == "__main__":
    sys.exit(main())
