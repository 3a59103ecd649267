"""Run the command line: `python -m millpond` is the same as `millpond`."""

from millpond.cli import main

if __name__ == "__main__":
    main()
