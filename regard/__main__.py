"""`regard` and `python -m regard`: the command line, which may be left while it is being loaded."""

import os
import sys


def main() -> None:
    """Load the command line, which takes a second or two, and run it."""
    open_streams()
    try:
        from regard.cli import main as run
        from regard.commands.printing import crash
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
    sys.excepthook = crash
    run()


def open_streams() -> None:
    """Standard streams that came closed, as under some daemons: nothing to read, nowhere to write.

    Else the next file that is opened would have their number, and what is printed would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    main()
