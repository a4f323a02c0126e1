"""Which levels hold on this machine: found by setting each up once, as settings say too little. Kept per process."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import get_args

from jurat.verifiers.sandbox.attacks import LETHAL, QUIET
from jurat.verifiers.sandbox.program import Level, Limits, Program
from jurat.verifiers.sandbox.slot import SandboxUnavailable

ORDER: tuple[Level, ...] = get_args(Level)
_FIXES = (
    ("user namespace", "sysctl user.max_user_namespaces=65536 and kernel.unprivileged_userns_clone=1; in a container: run it"
     " with --security-opt seccomp=unconfined, or as a pod whose profile allows user namespaces"),
    ("namespaces inside", "Ubuntu 24.04 and later: AppArmor restricts user namespaces: sysctl"
     " kernel.apparmor_restrict_unprivileged_userns=0, or a profile for this interpreter that allows userns"),
    ("private mounts", "AppArmor or the container's profile forbids mounts: sysctl"
     " kernel.apparmor_restrict_unprivileged_userns=0, or --security-opt apparmor=unconfined"),
    ("landlock", "boot with lsm=landlock,... on Linux 5.13 or later; in a container: a seccomp profile that knows Landlock"),
    ("seccomp", "a kernel with CONFIG_SECCOMP_FILTER, on x86-64 or 64-bit Arm"),
    ("become user", "start it with CAP_SETUID and CAP_SETGID, or as a normal user"),
    ("read /", "install the interpreter where every user may read it, or run the judge as the user who may"),
    ("OSError: RLIMIT", "ulimit -H: raise this limit of the judge, or ask for less"),
    ("bind", "install the interpreter where every user may read it"),
    ("does not hold", "report this with the output of `jurat doctor`; until then take another machine"),
    ("preload", "install the package in the judge's environment, or leave it out of preload"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Whether one level can be had, what was found, or what is missing and how to get it."""

    level: Level
    works: bool
    found: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    fix: str = ""


@functools.lru_cache(maxsize=64)
def probe(level: Level) -> Probe:
    """Set the level up once, and attack it (``attacks.py``): a level that lets one through does not work."""
    if sys.platform != "linux":
        why = f"{sys.platform}: levels ns and seccomp need Linux"
        return Probe(level=level, works=False, missing=why, fix="run the judge on Linux, or in a Linux container")
    try:
        with ThreadPoolExecutor(1) as thread:  # there may be an event loop in this one
            found = thread.submit(asyncio.run, _tried(level)).result()
    except (SandboxUnavailable, OSError) as fault:
        what = fault.what if isinstance(fault, SandboxUnavailable) else str(fault)
        return Probe(level=level, works=False, missing=what, fix=_fix(what))
    return Probe(level=level, works=True, found=found)


def choose(asked: Level | str, *, strict: bool) -> Probe:
    """The level to use: ``auto`` is the strongest that works. Raises SandboxUnavailable, with what is missing for each."""
    if asked == "auto":
        tried = []
        for level in ORDER[: None if not strict else ORDER.index("rlimits")]:
            found = probe(level)
            if found.works and level != "rlimits":
                return found
            tried.append(found)
        raise _unavailable(tried)
    if asked not in ORDER:
        raise SandboxUnavailable(f"no level {asked!r}", fix=f"one of auto, {', '.join(ORDER)}")
    if strict and asked == "rlimits":
        raise SandboxUnavailable(
            "level rlimits limits time and memory and keeps nothing apart", fix="level ns or seccomp, or strict=False"
        )
    found = probe(asked)
    if not found.works:
        raise _unavailable([found])
    return found


def table() -> list[Probe]:
    """Each level, strongest first, for ``jurat doctor``."""
    return [probe(level) for level in ORDER]


async def _tried(level: Level) -> dict[str, str]:
    """What was found. Raises SandboxUnavailable if it cannot be set up or does not hold."""
    from jurat.verifiers.sandbox.sandbox import Sandbox

    with Sandbox(level, strict=False, slots=1) as sandbox:
        sandbox._hold(level, {})
        limits = Limits(wall_seconds=20.0)
        quiet = await sandbox.run(Program(text=QUIET if level != "rlimits" else "print('done')"), limits)
        if quiet.ending == "infra_error":
            raise SandboxUnavailable(quiet.detail)
        worked = quiet.stdout.decode("ascii", "replace").split() if quiet.ending == "finished" else [quiet.detail]
        if level != "rlimits":
            for text in LETHAL:
                ending = (await sandbox.run(Program(text=text), limits)).ending
                worked += [f"{text.split()[-1]} ended as {ending}"] * (ending != "forbidden")
        zygote = sandbox._all[0].zygote
        if worked != ["done"] or zygote is None:
            raise SandboxUnavailable(f"does not hold: {', '.join(worked)}")
        return zygote.probes


def _unavailable(tried: list[Probe]) -> SandboxUnavailable:
    return SandboxUnavailable(
        "programs cannot be kept apart here: " + "; ".join(f"{p.level}: {p.missing}" for p in tried),
        where="sandbox", fix="; ".join(dict.fromkeys(p.fix for p in tried if p.fix)),
    )  # fmt: skip


def _fix(missing: str) -> str:
    return next((fix for start, fix in _FIXES if missing.startswith(start)), "")
