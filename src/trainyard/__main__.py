"""The program `trainyard`, also as `python -m trainyard`."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the command line; Ctrl-C is answered in one line also while its modules are being imported."""
    try:
        from trainyard.cli import main

        return main()
    except KeyboardInterrupt:
        print("trainyard: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
