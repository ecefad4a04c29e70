"""`python -m trainyard.cli` is `trainyard`."""

import sys

from trainyard.cli import main

if __name__ == "__main__":
    sys.exit(main())
