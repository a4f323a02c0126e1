"""``jurat serve`` whose runs are ``counter.py``: HOME PORT LEASE DATABASE."""

import sys
from pathlib import Path

from jurat.api.server import serving
from jurat.api.server.executor import LocalExecutor
from jurat.api.server.service import Settings

COMMAND = (sys.executable, str(Path(__file__).with_name("counter.py")))

if __name__ == "__main__":
    serving.LocalExecutor = lambda: LocalExecutor(COMMAND)  # type: ignore[assignment, misc]
    home, port, lease, database = sys.argv[1:]
    settings = Settings(home=Path(home), port=int(port), lease_seconds=float(lease), database=database)
    serving.run(settings, print, lambda _: None)
