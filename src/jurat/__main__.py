"""``python -m jurat``: the command line."""

from jurat.api.cli import main

main()
