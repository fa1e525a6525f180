"""``python -m convertkit``: the same command as ``convertkit``."""

import sys

from convertkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
