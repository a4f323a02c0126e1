"""``python -m jurat``: the same as the command ``jurat``."""

from jurat.api.cli import main

if __name__ == "__main__":
    main()
