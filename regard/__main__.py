"""`regard` and `python -m regard`: the command line, which may be left while it is being loaded."""

import os
import sys


def main() -> None:
    """Load the command line, which takes a second or two, and run it."""
    open_streams()
    leave_current_folder()
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


def leave_current_folder() -> None:
    """Import nothing from the current folder, nor let helpers: it may be an archive just unpacked.

    `python -m` and an empty entry of PYTHONPATH put it before everything that is installed. It
    stays where Regard itself was started from it.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # the folder was removed
        return
    foreign = {here} - {os.path.dirname(os.path.dirname(os.path.realpath(__file__)))}
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) not in foreign]
    if named := os.environ.get("PYTHONPATH"):
        kept = [one for one in named.split(os.pathsep) if os.path.realpath(one) not in foreign]
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


if __name__ == "__main__":
    main()
