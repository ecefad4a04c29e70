"""`python -m trainyard` is `trainyard`."""

from trainyard.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
