"""The requirements of some extras, from pyproject.toml: ``requirements.py train,dev`` prints one a line.

``--digest`` prints instead a digest of them, of constraints.txt and of the interpreter: the name of an environment.
Standard library only: it runs before anything is installed.
"""

import hashlib
import platform
import re
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def requirements(extras: list[str]) -> list[str]:
    """Core, build system and ``extras``, with ``jurat[train]`` replaced by what it stands for."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = config["project"]["optional-dependencies"]
    out = set(config["build-system"]["requires"]) | set(config["project"]["dependencies"])
    todo = list(extras)
    while todo:
        extra = todo.pop()
        if extra not in known:
            sys.exit(f"EXTRAS: {extra!r} is none of {', '.join(sorted(known))}")
        for line in known[extra]:
            own = re.fullmatch(r"jurat\[(.+)\]", line)
            if own:
                todo += own[1].split(",")
            else:
                out.add(line)
    return sorted(out)


def main() -> None:
    digest, *names = sys.argv[1:] if sys.argv[1:2] == ["--digest"] else ["", *sys.argv[1:]]
    lines = requirements([name for name in ",".join(names).split(",") if name])
    if not digest:
        print("\n".join(lines))
        return
    where = [platform.python_version(), sysconfig.get_platform()]
    text = "\n".join([*lines, *where, (ROOT / "constraints.txt").read_text()])
    print(hashlib.sha256(text.encode()).hexdigest()[:16])


main()
