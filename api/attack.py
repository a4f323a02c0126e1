"""``jurat sandbox attack``: programs that cheat, steal, break out or outlive their run, through the real judge.

Two processes. The *conductor* (this command) owns what the programs are after, the canaries: a secret file, sockets,
a listener on the loopback, a victim process, an empty folder for evidence. The *judge* is a child of it with a secret in its
environment; it holds a sandbox and runs the verifier ``code``, exactly as training does. So a program that takes the
judge down is seen and told like any other, and the conductor goes on with a new one.

A run is safe when the program got no reward, printed no ``PWNED``, left no evidence, file, process or descriptor, touched no
socket, changed nothing outside, stayed within time, output and memory, crashed neither the judge nor its report, and an honest
program passes right after it. Everything else is a *breach*.

The manifest's format is that of ``tests/verifiers/sandbox/manifest.json``: nothing here knows an attack by its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import queue
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from jurat.platform.errors import ConfigError, DataError, RunFailed

SECRET_VARIABLE = "SBX_CANARY_SECRET"
VICTIM = "sbx_victim"
MARK = b"PWNED"
SIBLING_MARK = "SBX_SIBLING" + "_MARK_7731"
SURVIVOR_SECONDS = 12.0
GRACE_SECONDS = 1.0
"""By how much a run may pass its limit."""
LATE_SECONDS = 3.0
"""By how much more it may, each time, on a machine that has more to do than CPUs: that is late, and no breach."""
SECONDS = 2.0
"""Wall and CPU limit of an attack's run."""
SETTLE_SECONDS = 1.0
"""How long after its verdict a run may take to vanish whole."""
JUDGE_GROWTH_BYTES = 64 << 20
"""By how much the judge's peak memory may grow in one attack."""
SILENCE_SECONDS = 90.0
"""A judge that says nothing for so long hangs."""
MODES = {"func": ("func",), "stdio": ("stdio",), "any": ("func", "stdio")}
LEVELS = ("ns", "seccomp", "rlimits")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the canaries are; the programs of a manifest know these names."""

    canary: Path = Path("/tmp/sbx_canary")
    evidence: Path = Path("/tmp/sbx_evidence")
    outside: Path = Path("/var/tmp")
    """As in ``canary``, nothing may appear, vanish or change in it."""
    droppings: tuple[Path, ...] = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
    """Where a program that got out may leave files called ``sbx_*``; they are removed after each run."""
    tcp: tuple[str, int] = ("127.0.0.1", 48731)
    udp: tuple[str, int] = ("127.0.0.1", 48732)
    abstract: str = "\0sbx_canary"


# ---- the manifest ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attack:
    """One program that must get nothing. Example: ``Attack("21_tmp_leftover", "leftover", "any", False, text)``."""

    id: str
    kind: str
    task: str
    unsafe: bool
    """Never to be run where no PID namespace, session and limit of processes hold it."""
    text: str


@dataclass(frozen=True, slots=True)
class Benign:
    """One honest program that must pass, with its cases as the verifier ``code`` takes them."""

    id: str
    text: str
    cases: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    path: Path
    attacks: tuple[Attack, ...]
    benign: tuple[Benign, ...]
    cases: Mapping[str, Mapping[str, Any]]
    """``func`` and ``stdio``: the cases of the task that no attack solves."""


def read_manifest(path: Path, only: Sequence[str] = ()) -> Manifest:
    """The manifest, with the programs of ``attacks/`` and ``benign/`` beside it. Raises ConfigError and DataError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        task, rows = raw["task"], raw["attacks"]
        cases = {
            "func": {"mode": "func", "entry": task["entry"], "tests": task["func_tests"]},
            "stdio": {"mode": "stdio", "tests": task["stdio_tests"]},
        }
        attacks = tuple(_attack(path.parent / "attacks", row) for row in rows)
        benign = tuple(_benign(file) for file in sorted((path.parent / "benign").glob("*.py")))
    except OSError as fault:
        raise ConfigError(f"cannot read: {fault.strerror}", where=str(fault.filename or path),
                          fix="name a manifest.json with a folder attacks/ beside it") from None  # fmt: skip
    except (KeyError, TypeError, ValueError) as fault:
        what = f"{fault} is missing" if isinstance(fault, KeyError) else str(fault)
        raise DataError(f"no manifest of attacks: {what}", where=str(path),
                        fix="it holds task {entry, func_tests, stdio_tests} and attacks [{id, kind, task, naive}]") from None  # fmt: skip
    if only:
        known = [*(a.id for a in attacks), *(b.id for b in benign)]
        strangers = [name for name in only if not any(item.startswith(name) for item in known)]
        if strangers:
            raise ConfigError(f"no program's id begins with {strangers[0]!r}", where=str(path),
                              fix="--only takes the beginning of an id, as in --only 21")  # fmt: skip
        attacks = tuple(a for a in attacks if a.id.startswith(tuple(only)))
        benign = tuple(b for b in benign if b.id.startswith(tuple(only)))
    return Manifest(path, attacks, benign, cases)


def _attack(folder: Path, row: Mapping[str, Any]) -> Attack:
    if row["task"] not in MODES:
        raise ValueError(f"{row['id']}: task {row['task']!r}, expected one of {', '.join(MODES)}")
    text = (folder / f"{row['id']}.py").read_bytes().decode("utf-8", "replace")
    return Attack(row["id"], row["kind"], row["task"], row.get("naive") == "unsafe", text)


def _benign(file: Path) -> Benign:
    cases = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    return Benign(file.stem, file.read_text(encoding="utf-8"), cases)


# ---- what was found ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing that a program got away with."""

    id: str
    kind: str
    mode: str
    what: str

    def as_json(self) -> dict[str, str]:
        return {"id": self.id, "kind": self.kind, "mode": self.mode, "what": self.what}


@dataclass(slots=True)
class Findings:
    """What one level let through."""

    level: str
    isolation: Mapping[str, Any] = field(default_factory=dict)
    unavailable: str = ""
    """Why this level does not work here; nothing was run then."""
    attacks: int = 0
    runs: int = 0
    breaches: list[Breach] = field(default_factory=list)
    late: list[Breach] = field(default_factory=list)
    """Runs that passed their limit each time, but not by much, on a machine that was busy before they began."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Program -> why it was not run."""
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Honest program -> what it got instead of a pass."""
    writers: list[str] = field(default_factory=list)
    """Honest programs that write files, where the level lets none be written."""
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        return bool(self.breaches or self.failed)

    def as_json(self) -> dict[str, Any]:
        return {
            "level": self.level, "available": not self.unavailable, "unavailable": self.unavailable,
            "isolation": self.isolation, "attacks": self.attacks, "runs": self.runs,
            "breached": sorted({b.id for b in self.breaches}), "breaches": [b.as_json() for b in self.breaches],
            "late": [b.as_json() for b in self.late], "skipped": self.skipped, "seconds": round(self.seconds, 1),
            "benign": {"passed": self.passed, "failed": self.failed, "write_files": self.writers},
        }  # fmt: skip


# ---- the canaries ------------------------------------------------------------------------------------------------


class Canaries:
    """What the programs are after, for as long as the ``with`` block lasts."""

    def __init__(self, places: Places, uid: int | None) -> None:
        self._at, self._uid = places, uid
        self.secret = f"SBX_CANARY_{secrets.token_hex(8)}"
        self.file_secret = f"SBX_FILE_{secrets.token_hex(8)}"
        self._contacts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._over = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Canaries:
        with contextlib.ExitStack() as stack:
            try:
                # The port is taken first: it also says that no other attack is under way on this machine.
                sockets = self._listen(stack, (socket.AF_INET, socket.SOCK_STREAM, self._at.tcp))
            except OSError as fault:
                raise ConfigError(
                    f"port {self._at.tcp[1]} cannot be listened on: {fault.strerror}", where=self._at.tcp[0],
                    fix="wait for another jurat sandbox attack to end",
                ) from None  # fmt: skip
            for folder in (self._at.canary, self._at.evidence):
                _empty(folder)
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            secret = self._at.canary / "secret.txt"
            secret.write_text(self.file_secret + "\n", encoding="utf-8")
            secret.chmod(0o644)
            if self._uid is not None:
                os.chown(secret, self._uid, -1)  # the judge's own file: the mode is no protection
            for kind, address in (
                (socket.SOCK_STREAM, self._at.abstract), (socket.SOCK_STREAM, str(self._at.canary / "sock")),
                (socket.SOCK_DGRAM, self._at.abstract + "_dgram"), (socket.SOCK_DGRAM, str(self._at.canary / "dgram")),
            ):  # fmt: skip
                sockets += self._listen(stack, (socket.AF_UNIX, kind, address))
                if not address.startswith("\0"):
                    os.chmod(address, 0o777)
            sockets += self._listen(stack, (socket.AF_INET, socket.SOCK_DGRAM, self._at.udp))
            for heard, name in sockets:
                ear = threading.Thread(target=self._hear, args=(heard, name), daemon=True)
                ear.start()
                stack.callback(ear.join)
            stack.callback(self._over.set)
            self._victim = self._bear()
            stack.callback(lambda: _end(self._victim))
            self._stack = stack.pop_all()
        self._seen = self._look()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._sweep()

    def _listen(self, stack: contextlib.ExitStack, how: tuple[int, int, Any]) -> list[tuple[socket.socket, str]]:
        family, kind, address = how
        made = stack.enter_context(socket.socket(family, kind))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        if kind == socket.SOCK_STREAM:
            made.listen(16)
        return [(made, repr(address))]

    def _hear(self, heard: socket.socket, name: str) -> None:
        """Answer whoever comes, and note that somebody did."""
        heard.settimeout(0.2)
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                if heard.type == socket.SOCK_DGRAM:
                    heard.recvfrom(64)
                    self._contacts.put(name)
                    continue
                peer, _ = heard.accept()
                self._contacts.put(name)
                with peer:
                    peer.settimeout(1.0)
                    peer.recv(4096)
                    peer.sendall(b"HTTP/1.0 200 OK\r\n\r\nSBX credentials\n")

    def _bear(self) -> subprocess.Popen[bytes]:
        # It lives as long as its standard input, so that it never outlives this process.
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", VICTIM], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env={}, cwd="/",
                **_as_user(self._uid),
            )  # fmt: skip
        except PermissionError:
            raise _may_not_run() from None

    def disturbed(self) -> Iterator[tuple[str | None, str]]:
        """What has happened since the last call: (the attack that said so itself, what). Then all is as before."""
        for file in sorted(self._at.evidence.iterdir()) if self._at.evidence.exists() else ():
            yield file.name, f"left evidence: {_shown(_read(file))}"
        contacts = set()
        with contextlib.suppress(queue.Empty):
            while True:
                contacts.add(self._contacts.get_nowait())
        for name in sorted(contacts):
            yield None, f"reached the socket {name}"
        now = self._look()
        for path in sorted({*now, *self._seen}):
            if now.get(path) != self._seen.get(path):
                how = "changed" if path in now and path in self._seen else "made" if path in now else "removed"
                yield None, f"{how} {path}"
        if self._victim.poll() is not None:
            yield None, "killed another process"
            self._victim = self._bear()
        _empty(self._at.evidence)
        self._sweep()
        self._seen = self._look()

    def _look(self) -> dict[str, tuple[int, ...]]:
        """What lies in the watched folders: path -> mode, owner, size, time of the last change."""
        found: dict[str, tuple[int, ...]] = {}
        for folder in (self._at.canary, self._at.outside):
            for path in folder.iterdir() if folder.exists() else ():
                with contextlib.suppress(FileNotFoundError):
                    at = path.lstat()
                    found[str(path)] = (at.st_mode, at.st_uid, at.st_nlink, at.st_size, at.st_mtime_ns)
        return found

    def _sweep(self) -> None:
        for folder in self._at.droppings:
            for path in folder.glob("sbx_*"):
                if path not in (self._at.canary, self._at.evidence):
                    with contextlib.suppress(OSError):
                        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in self._at.canary.iterdir() if self._at.canary.exists() else ():
            if path.name not in ("secret.txt", "sock", "dgram"):
                with contextlib.suppress(OSError):
                    path.unlink()


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o777, exist_ok=True)
    folder.chmod(0o777)


def _read(file: Path) -> bytes:
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            return stream.read(300)
    except OSError:
        return b"unreadable"


def _shown(raw: bytes) -> str:
    """The first line, cut."""
    return raw.decode("utf-8", "replace").strip().partition("\n")[0][:160]


def _as_user(uid: int | None) -> dict[str, Any]:
    """Arguments of Popen that make the child a normal user's."""
    if uid is None:
        return {}
    return {"user": uid, "group": pwd.getpwuid(uid).pw_gid, "extra_groups": []}


def user_id(name: str | None) -> int | None:
    """The number of a user who is named or numbered; raises ConfigError."""
    if name is None:
        return None
    try:
        uid = pwd.getpwnam(name).pw_uid if not name.isdigit() else pwd.getpwuid(int(name)).pw_uid
    except KeyError:
        raise ConfigError(
            f"no user {name!r}", where="--user", fix="name a user of this machine, such as nobody"
        ) from None
    if uid == os.getuid():
        return None
    if os.getuid() != 0:
        raise ConfigError(
            f"only root may become {name}", where="--user", fix=f"run this as root, or as {name} without --user"
        )
    return uid


def _may_not_run() -> ConfigError:
    return ConfigError(
        f"that user may not run {sys.executable}", where="--user",
        fix="use a Python outside of a private home folder, with PYTHONPATH set to where jurat is installed",
    )  # fmt: skip


def _end(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


# ---- the judge, seen from outside --------------------------------------------------------------------------------


class JudgeDied(Exception):
    """It ended or fell silent in the middle of a run."""


class JudgeProcess:
    """A child that holds a sandbox and answers one JSON line for each that it gets."""

    def __init__(self, secret: str, uid: int | None) -> None:
        # Importable from wherever the conductor is, with no current folder in the path.
        env = {key: value for key, value in os.environ.items() if not key.startswith("JURAT_")}
        env |= {SECRET_VARIABLE: secret, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from jurat.api.attack import serve; serve()"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=env, cwd="/",
                start_new_session=True, **_as_user(uid),
            )  # fmt: skip
        except PermissionError:
            raise _may_not_run() from None
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, **message: Any) -> dict[str, Any]:
        """Raises JudgeDied."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=SILENCE_SECONDS)
        except (BrokenPipeError, queue.Empty):
            line = None
        if line is None:
            raise JudgeDied(self._epitaph())
        return json.loads(line)

    def _epitaph(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=1.0)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._errors.seek(0)
            last = (self._errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines() or [""])[-1]
            return f"it ended with {how}" + (f": {last}" if last else "")
        return f"it said nothing for {SILENCE_SECONDS:.0f} s"

    def close(self) -> None:
        """End it and all that it started."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
            _end(self._process)
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        _end(self._process)
        self._errors.close()


# ---- the conductor -----------------------------------------------------------------------------------------------


def conduct(
    manifest: Manifest,
    levels: Sequence[str],
    *,
    uid: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
    places: Places = Places(),
) -> list[Findings]:
    """Every program of the manifest at every level, one after another. ``tell`` hears of each before it starts."""
    if not sys.platform.startswith("linux"):
        raise RunFailed(f"no sandbox on {sys.platform}", where="jurat sandbox attack", fix="run it on Linux")
    with _stopped_by_sigterm(), Canaries(places, uid) as canaries:
        return [_Level(level, manifest, canaries, uid, tell).run() for level in levels]


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, so that nothing is left lying about."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Level:
    def __init__(
        self, level: str, manifest: Manifest, canaries: Canaries, uid: int | None, tell: Callable[[str], None]
    ) -> None:
        self._level, self._manifest, self._canaries, self._uid, self._tell = level, manifest, canaries, uid, tell
        self._found = Findings(level)
        self._honest = {
            "func": "def {entry}(a, b): return a + b\n".format(**manifest.cases["func"]),
            "stdio": "a, b = map(int, input().split())\nprint(a + b)\n",
        }

    def run(self) -> Findings:
        found, began = self._found, time.monotonic()
        self._judge = JudgeProcess(self._canaries.secret, self._uid)
        try:
            opened = self._open()
            if "error" in opened:
                found.unavailable = opened["error"]
                return found
            found.isolation = opened["isolation"]
            self._attack_all()
            self._try_benign()
        finally:
            self._judge.close()
            list(self._canaries.disturbed())
            found.seconds = time.monotonic() - began
        return found

    def _open(self, preload: Sequence[str] = ()) -> dict[str, Any]:
        return self._judge.ask(do="open", level=self._level, preload=list(preload))

    def _attack_all(self) -> None:
        survivors = [a for a in self._manifest.attacks if a.kind == "survive"]
        others = [a for a in self._manifest.attacks if a.kind != "survive"]
        wait_from = 0.0
        for attack in (*survivors, *others):
            if attack.unsafe and self._level == "rlimits":
                self._found.skipped[attack.id] = "nothing at this level holds its processes"
                continue
            self._found.attacks += 1
            for mode in MODES[attack.task]:
                self._attack(attack, mode)
            if attack.kind == "survive":
                wait_from = time.monotonic()
        if wait_from:
            self._tell("waiting for survivors")
            time.sleep(max(0.0, wait_from + SURVIVOR_SECONDS - time.monotonic()))
            self._note(Attack("", "survive", "any", False, ""), "")

    def _attack(self, attack: Attack, mode: str) -> None:
        self._tell(f"{self._level}: {attack.id} ({mode})")
        self._load = os.getloadavg()[0]  # before it runs: what it adds itself is no excuse
        if attack.kind == "leftover":  # what an earlier program held, in its text and in its input, then itself
            self._breach(attack, mode, self._grade(_sibling(self._honest[mode]), mode, stamp=SIBLING_MARK), reward=1.0)
            self._breach(attack, mode, self._grade(attack.text, mode))
        # What only takes time is not given it again for each case.
        self._breach(attack, mode, self._grade(attack.text, mode, whole=attack.kind != "resource"))
        after = self._grade(self._honest[mode], mode, seconds=0.0)
        if after.get("score") != 1.0:
            said = f"{after.get('status', after)}: {after.get('why', '')}"
            self._add(attack, mode, f"an honest program after it got {said}")
        self._note(attack, mode)  # last, as who was called needs a moment to hear it

    def _grade(
        self, text: str, mode: str, *, stamp: str = "", whole: bool = True, seconds: float = SECONDS
    ) -> dict[str, Any]:
        """The judge's answer; one that dies is a breach of its own, and another takes its place."""
        self._found.runs += 1
        cases = dict(self._manifest.cases[mode])
        if stamp and mode == "stdio":
            cases["tests"] = [{**test, "stdin": test["stdin"] + f"\n# {stamp}\n"} for test in cases["tests"]]
        try:
            return self._judge.ask(do="grade", text=text, cases=cases, seconds=seconds, whole=whole)
        except JudgeDied as death:
            self._judge.close()
            self._judge = JudgeProcess(self._canaries.secret, self._uid)
            self._open()
            return {"died": str(death)}

    def _breach(self, attack: Attack, mode: str, said: dict[str, Any], *, reward: float = 0.0) -> None:
        # A machine that is busy with other work stalls now and then: a limit is not kept if it is passed each time.
        took = [said.get("slowest", 0.0)]
        while took[-1] > SECONDS + GRACE_SECONDS and not reward and len(took) < 3:
            took.append(self._grade(attack.text, mode, whole=False).get("slowest", took[-1]))
        if "slowest" in said:
            said |= {"slowest": took[-1]}
        if not reward and only_late(took, self._load, os.cpu_count() or 1):
            what = f"each of {len(took)} runs was late, the last by {took[-1] - SECONDS:.2f} s; load {self._load:.1f}"
            self._found.late.append(Breach(attack.id, attack.kind, mode, what))
            said |= {"slowest": 0.0}
        for what in wrong_with(said, reward=reward, secrets=(self._canaries.secret, self._canaries.file_secret)):
            self._add(attack, mode, what)

    def _note(self, attack: Attack, mode: str) -> None:
        kinds = {a.id: a for a in self._manifest.attacks}
        for author, what in self._canaries.disturbed():
            self._add(kinds.get(author or "", attack), mode, what)

    def _add(self, attack: Attack, mode: str, what: str) -> None:
        breach = Breach(attack.id, attack.kind, mode, what)
        if breach not in self._found.breaches:
            self._found.breaches.append(breach)

    def _try_benign(self) -> None:
        needed = sorted({need for b in self._manifest.benign for need in _needs(b)})
        have = [name for name in needed if importable(name)]
        trouble = self._open(have).get("error", "") if have else ""
        if trouble:
            self._open()
        for benign in self._manifest.benign:
            if missing := [need for need in _needs(benign) if need not in have]:
                self._found.skipped[benign.id] = f"needs {', '.join(missing)}"
                continue
            if trouble and _needs(benign):
                self._found.failed[benign.id] = trouble
                continue
            self._tell(f"{self._level}: {benign.id} (benign)")
            try:
                said = self._judge.ask(do="grade", text=benign.text, cases=dict(benign.cases), seconds=0)
            except JudgeDied as death:
                said = {"score": None, "status": "the judge died", "why": str(death)}
                self._judge = JudgeProcess(self._canaries.secret, self._uid)
                self._open(() if trouble else have)
            if said.get("score") == 1.0:
                self._found.passed.append(benign.id)
            elif said.get("denied_file") and self._level == "seccomp":
                self._found.writers.append(benign.id)
            else:
                self._found.failed[benign.id] = f"{said.get('status', said.get('error'))}: {said.get('why', '')}"


def wrong_with(said: Mapping[str, Any], *, reward: float = 0.0, secrets: Sequence[str] = ()) -> Iterator[str]:
    """What a program got away with, as far as the judge itself can tell: nothing, if the sandbox holds."""
    if "died" in said:
        yield f"the judge died: {said['died']}"
        return
    if "error" in said:
        yield f"the judge failed: {said['error']}"
        return
    if said["score"] != reward:
        yield f"score {said['score']} ({said['status']}: {said['why']}), expected {reward:g}"
    yield from (f"printed {line}" for line in said["pwned"])
    for secret in secrets:
        if secret in said["report"]:
            yield "the report holds a secret"
    if said["raw"]:
        yield "the report holds raw control characters"
    if said["report"] == "":
        yield "the report is no JSON"
    if said["slowest"] > SECONDS + GRACE_SECONDS:
        yield f"a run took {said['slowest']:.2f} s with a limit of {SECONDS:g} s"
    if said["kept_bytes"] > said["cap_bytes"]:
        yield f"{said['kept_bytes']:,} bytes of output were kept, the cap is {said['cap_bytes']:,}"
    if said["grown_bytes"] > JUDGE_GROWTH_BYTES:
        yield f"the judge grew by {said['grown_bytes'] >> 20} MiB"
    if said["left"]:
        yield f"left processes: {', '.join(said['left'])}"
    if said["descriptors"] > 0:
        yield f"left {said['descriptors']} open descriptors in the judge"


def only_late(took: Sequence[float], load: float, cpus: int) -> bool:
    """Whether runs of these seconds passed the limit, but by little, where a machine of ``cpus`` had a ``load`` above them."""
    return load > cpus and all(0.0 < each - SECONDS - GRACE_SECONDS < LATE_SECONDS for each in took)


def _needs(benign: Benign) -> list[str]:
    needs = benign.cases.get("needs") or []
    return [needs] if isinstance(needs, str) else list(needs)


def importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def _sibling(honest: str) -> str:
    """The honest program, 9 kB long, with a mark that nobody after it may find."""
    return honest + "# " + "x" * 9000 + f"\n# {SIBLING_MARK}\n"


# ---- for people --------------------------------------------------------------------------------------------------


def report(found: Sequence[Findings]) -> None:
    """What each level let through, on stdout."""
    from jurat.api import terminal

    def row(f: Findings) -> list[str]:
        if f.unavailable:
            return [f.level, "-", "-", "-", "-", "not here: " + f.unavailable]
        through = {b.id for b in f.breaches}
        benign = f"{len(f.passed)} of {len(f.passed) + len(f.failed) + len(f.writers)}"
        notes = [f"{len(f.skipped)} skipped"] if f.skipped else []
        notes += [f"{len(f.late)} late"] if f.late else []
        notes += [f"write files: {', '.join(f.writers)}"] if f.writers else []
        return [f.level, str(f.attacks), str(len(through)), benign, f"{f.seconds:.0f}", "; ".join(notes)]

    terminal.print_table(
        ["level", "attacks", "got through", "honest pass", "s", "note"], map(row, found), right=[1, 2, 3, 4]
    )
    rows = [(f.level, b.id, b.kind, b.mode, b.what) for f in found for b in f.breaches]
    rows += [(f.level, name, "honest", "", why) for f in found for name, why in f.failed.items()]
    if rows:
        sys.stdout.write("\n")
        terminal.print_table(["level", "program", "kind", "as", "what got through"], rows)
    late = [(f.level, b.id, b.kind, b.mode, b.what) for f in found for b in f.late]
    if late:
        sys.stdout.write("\n")
        terminal.print_table(["level", "late on a busy machine", "kind", "as", "no breach"], late)
    skipped = [(f.level, name, why) for f in found for name, why in f.skipped.items()]
    if skipped:
        sys.stdout.write("\n")
        terminal.print_table(["level", "skipped", "why"], skipped)


# ---- the judge ---------------------------------------------------------------------------------------------------


def serve() -> None:
    """What the child runs: one JSON line in, one out."""
    import asyncio
    import ctypes

    # What a program leaves behind becomes a child of this process, and so is seen.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    judge = Judge()
    with os.fdopen(os.dup(1), "wb", buffering=0) as out, asyncio.Runner() as runner:
        os.dup2(2, 1)
        for line in sys.stdin.buffer:
            message = json.loads(line)
            try:
                said = runner.run(judge.open(**message) if message.pop("do") == "open" else judge.grade(**message))
            except Exception as fault:
                said = {"error": f"{type(fault).__name__}: {fault}"}
            out.write(json.dumps(said).encode() + b"\n")
        judge.close()


class _Recorder:
    """A Runner that keeps what every run came to."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox
        self._started: list[Any] = []
        self.outcomes: list[Any] = []

    @property
    def isolation(self) -> Any:
        return self._sandbox.isolation

    async def start(self, program: Any, limits: Any = None) -> Any:
        self._started.append(await self._sandbox.start(program, limits))
        return self._started[-1]

    async def run(self, program: Any, limits: Any = None) -> Any:
        self.outcomes.append(await self._sandbox.run(program, limits))
        return self.outcomes[-1]

    async def settle(self) -> None:
        for running in self._started:
            running.kill()
            self.outcomes.append(await running.wait())


class Judge:
    """A sandbox, and the verifier ``code`` on top of it."""

    SLOTS = 2

    def __init__(self) -> None:
        self._sandbox: Any = None
        self._told: set[int] = set()
        """Processes that were there before, or that an earlier run left and that were told then."""
        self._zygotes: set[int] = set()
        """Process ids of all zygotes so far."""

    async def open(self, level: str, preload: Sequence[str]) -> dict[str, Any]:
        import asyncio
        from dataclasses import asdict

        import psutil

        from jurat.verifiers.sandbox import Program, Sandbox, SandboxUnavailable

        self.close()
        self._told |= {process.pid for process in psutil.Process().children(recursive=True)}
        self._sandbox = Sandbox(level, strict=level != "rlimits", slots=self.SLOTS, preload=tuple(preload))
        self._preload = tuple(preload)
        try:
            await asyncio.gather(*(self._sandbox.run(Program(text="pass")) for _ in range(self.SLOTS)))
        except SandboxUnavailable as fault:
            return {"error": f"{fault.what}. {fault.fix}"}
        return {"isolation": asdict(self._sandbox.isolation)}

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    async def grade(self, text: str, cases: Mapping[str, Any], seconds: float, whole: bool = True) -> dict[str, Any]:
        """The verdict on a completion that holds ``text``, and what its runs used, kept and left. ``seconds``: of one run, 0
        for the default. ``whole``: every case is tried, else up to the first that is not passed."""
        from jurat.verifiers.code.cases import parse
        from jurat.verifiers.code.extract import extract
        from jurat.verifiers.code.running import Bench, results_of
        from jurat.verifiers.code.verifier import verdict_of
        from jurat.verifiers.sandbox import Limits
        from jurat.verifiers.sandbox.streams import STDERR_BYTES
        from jurat.verifiers.verdicts import verdict_to_json

        limits = Limits(wall_seconds=seconds, cpu_seconds=seconds) if seconds else Limits()
        fence = "`" * (3 + text.count("```"))
        found = extract(f"Here it is.\n\n{fence}python\n{text}\n{fence}\n", finish="stop")
        recorder = _Recorder(self._sandbox)
        held, peak = self._descriptors(), _peak()
        if found.program is None:
            raise ValueError(f"no program in the completion: {found.why}")
        parsed = parse(json.dumps(cases))
        bench = Bench(runner=recorder, limits=limits, deadline=time.monotonic() + 60.0, stop=not whole)
        results = await results_of(bench, parsed.prompt + found.program, parsed)
        await recorder.settle()
        verdict = verdict_of(results, parsed, "all")
        left = await self._left()
        streams = [stream for outcome in recorder.outcomes for stream in (outcome.stdout, outcome.stderr)]
        lines = [line for outcome in recorder.outcomes for line in outcome.stdout.split(b"\n") if MARK in line]
        try:
            report = json.dumps(verdict_to_json(verdict), ensure_ascii=False, allow_nan=False)
            report.encode()
        except (TypeError, ValueError):
            report = ""
        return {
            "score": verdict.score, "status": verdict.status, "why": verdict.why, "report": report,
            "raw": _raw_controls(verdict_to_json(verdict)), "pwned": sorted({_shown(line) for line in lines})[:5],
            "slowest": max((outcome.seconds for outcome in recorder.outcomes), default=0.0),
            "kept_bytes": max(map(len, streams), default=0), "cap_bytes": max(limits.output_bytes, STDERR_BYTES),
            "grown_bytes": _peak() - peak, "left": left, "descriptors": self._descriptors() - held,
            "denied_file": any(word in outcome.stderr for outcome in recorder.outcomes for word in _DENIED),
        }  # fmt: skip

    async def _left(self) -> list[str]:
        """Processes below this one that are no zygote, once they have had time to go."""
        import asyncio

        import psutil

        until = time.monotonic() + SETTLE_SECONDS
        while True:
            own = set(self._sandbox.processes)
            self._zygotes |= own
            found = []
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                    if process.status() == psutil.STATUS_ZOMBIE and process.pid not in self._zygotes:
                        os.waitpid(process.pid, os.WNOHANG)  # an orphan, elsewhere init's to bury
                    elif process.pid not in own | self._told:
                        found.append(f"{process.pid} {process.name()}")
            if not found or time.monotonic() > until:
                self._told |= {int(line.split()[0]) for line in found}
                return found
            await asyncio.sleep(0.02)

    def _descriptors(self) -> int:
        """Open in this process, less one for each zygote: they come and go."""
        return len(os.listdir("/proc/self/fd")) - len(self._sandbox.processes)


_DENIED = (b"PermissionError", b"Read-only file system", b"No usable temporary directory")


def _raw_controls(value: Any) -> bool:
    """Whether any text in it holds a control character that a terminal or a log obeys."""
    if isinstance(value, str):
        return any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in value)
    if isinstance(value, Mapping):
        return any(_raw_controls(part) for part in (*value, *value.values()))
    return isinstance(value, (list, tuple)) and any(map(_raw_controls, value))


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
