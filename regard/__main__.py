"""`python -m regard` is the `regard` command."""

from regard.cli import main

main()
