"""Runs: every ending, every limit, the channel, what is kept and what is left. And the traps, by attacks of our own."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from jurat.platform.errors import ConfigError
from jurat.verifiers.sandbox import Limits, Outcome, Program, Sandbox, SandboxUnavailable, attacks, levels, typed

SHORT = Limits(wall_seconds=0.3)
SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
LOOP = "while True: pass"


async def ran(sandbox: Sandbox, text: str, limits: Limits | None = None, stdin: bytes = b"") -> Outcome:
    return await sandbox.run(Program(text=text, stdin=stdin), limits)


def zygote_of(sandbox: Sandbox) -> int:
    zygote = sandbox._all[0].zygote
    assert zygote is not None
    return zygote.pid


@pytest.mark.parametrize(
    ("text", "ending", "detail"),
    [
        ("print(1)", "finished", ""),
        ("import sys; sys.exit()", "finished", ""),
        ("import os; os._exit(0)", "finished", ""),
        ("1/0", "exception", "ZeroDivisionError"),
        ("class E(Exception):\n def __str__(self): raise SystemExit(0)\nraise E", "exception", "E"),
        ("import sys; sys.exit('no')", "exception", "exit status 1"),
        ("import os; os._exit(7)", "exception", "exit status 7"),
        ("def f(:", "compile_error", "SyntaxError"),
        ("x = '\0'", "compile_error", "SyntaxError"),
        ("(" * 100_000, "compile_error", None),
        ("x = 1" + "+1" * 300_000, None, None),
        ("x = bytearray(3 << 30)", "memory_limit", "MemoryError"),
        ("import ctypes; ctypes.string_at(0)", "crash", "signal 11"),
        ("import os; os.abort()", "crash", "signal 6"),
        ("import ctypes; ctypes.CDLL(None).unshare(0)", "forbidden", None),
        ("import os; os.fork()", "exception", "PermissionError"),
        ("import os; os.execv('/bin/true', ['true'])", "exception", None),
        ("import socket; socket.socket()", "exception", "PermissionError"),
        (LOOP, "timeout", None),
        ("import time; time.sleep(60)", "timeout", None),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "output_limit", "stdout"),
    ],
)
async def test_endings(sandbox: Sandbox, text: str, ending: str | None, detail: str | None) -> None:
    limits = Limits(wall_seconds=0.5 if ending == "timeout" else 20.0)
    outcome = await ran(sandbox, text, limits)
    assert outcome.ending == (ending or outcome.ending) and outcome.ending != "infra_error", outcome
    assert detail is None or outcome.detail == detail
    assert (outcome.ending == "finished") == (outcome.exit_code == 0)
    after = await ran(sandbox, SUM, stdin=b"20 22\n")
    assert (after.ending, after.stdout) == ("finished", b"42\n")


async def test_cpu_limit(sandbox: Sandbox) -> None:
    ignoring = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + LOOP
    outcome = await ran(sandbox, ignoring, Limits(wall_seconds=30.0, cpu_seconds=1.0))
    assert outcome.ending == "cpu_limit"
    assert outcome.cpu_seconds >= 0.75


async def test_what_a_program_finds(sandbox: Sandbox) -> None:
    text = """
import os, sys, hashlib, json
names = sorted(name for name in globals() if not name.startswith("__") and name not in ("os", "sys", "hashlib", "json"))
print(json.dumps([names, __name__, sys.argv, sorted(os.environ), hash("a"), sys.stdout.encoding, len(sys.stdin.read())]))
"""
    first, second = [await ran(sandbox, text, stdin=b"x" * 3_000_000) for _ in range(2)]
    names, name, argv, environ, _, encoding, count = json.loads(first.stdout)
    assert (names, name, argv, encoding, count) == ([], "__main__", ["main.py"], "utf-8", 3_000_000)
    assert not [
        key for key in environ if key not in ("HOME", "TMPDIR", "LANG", "PYTHONHASHSEED") and "THREADS" not in key
    ]
    assert first.stdout == second.stdout
    assert first.isolation == second.isolation and first.isolation.fingerprint
    assert first.isolation.fingerprint != (await ran(sandbox, "", SHORT)).isolation.fingerprint


async def test_standard_error_keeps_both_ends(sandbox: Sandbox) -> None:
    outcome = await ran(sandbox, "import sys\nsys.stderr.write('first' + 'x' * 200_000 + 'last')")
    assert outcome.ending == "finished" and outcome.cut == ("stderr",)
    assert outcome.stderr.startswith(b"firstx") and outcome.stderr.endswith(b"xlast")
    assert len(outcome.stderr) < (64 << 10) + 100
    trace = await ran(sandbox, "def f(): return 1/0\nf()")
    assert b"worker.py" not in trace.stderr and b"main.py" in trace.stderr


async def test_exit_hooks_and_threads_end_as_in_the_interpreter(sandbox: Sandbox) -> None:
    text = """
import atexit, threading, time
atexit.register(print, "hook")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
print("main")
"""
    assert (await ran(sandbox, text)).stdout.split() == [b"main", b"thread", b"hook"]
    kept = "out = open(1, 'w', closefd=False)\nout.write('kept')\nclass A:\n def __del__(self): print('gone')\na = A()"
    assert (await ran(sandbox, kept)).stdout in (b"keptgone\n", b"gone\nkept")


async def test_a_preloaded_package(sandbox: Sandbox) -> None:
    text = "import numpy as np\n\ndef f(n): return np.arange(n), np.linalg.inv(np.eye(2) * 4)[0, 0], np.bool_(True)"
    async with Sandbox(sandbox.isolation.level, slots=1, preload=("numpy",)) as own:
        run = await own.start(Program(text=text, role="serve", entry="f"), Limits(wall_seconds=20.0))
        await run.send({"args": [3]})
        assert await run.receive() == {"value": ([0, 1, 2], 0.25, True)}
        run.end()
        assert (await run.wait()).ending == "finished"
        other = await own.run(Program(text="import sympy"))
        assert other.ending == "exception"  # installed here, but not preloaded


# ---- the channel


async def test_serving(sandbox: Sandbox) -> None:
    text = """
import sys
assert sys.stdin.read() == ""
print("to stdout")
class Mine(KeyError): pass
class Solution:
    def __init__(self): self.n = 0
    def count(self): self.n += 1; return self.n
def f(a, *, by=0): a.sort(); a.append(by); return a, {1, 2}, {(1, 2): 3}, 10 ** 5000, float("inf")
def fails(a): a.clear(); raise Mine("why", 3)
def odd(): return object()
def inner(): raise SystemExit(0)
"""
    run = await sandbox.start(Program(text=text, role="serve", entry="f"))

    async def ask(**message: object) -> object:
        await run.send(message)
        return await run.receive()

    assert await ask(args=[[3, 1]], kwargs={"by": 9}, back=True) == {
        "value": ([1, 3, 9], {1, 2}, {(1, 2): 3}, 10**5000, float("inf")), "args": [[1, 3, 9]],
        "kwargs": {"by": 9},
    }  # fmt: skip
    assert await ask(entry="fails", args=[[1]], back=True) == {
        "error": "KeyError", "type": "Mine", "message": ["why", 3], "args": [[]], "kwargs": {},
    }  # fmt: skip
    assert [await ask(entry="Solution.count", args=[]) for _ in range(2)] == [{"value": 1}, {"value": 1}]
    for name in ("print", "__builtins__", "nothing", "Solution.nothing", "json", "candidate"):
        assert await ask(entry=name, args=[]) == {"missing": name}
    assert await ask(entry="odd", args=[]) == {"unsendable": "a value of type object"}
    run.end()
    outcome = await run.wait()
    assert (outcome.ending, outcome.stdout) == ("finished", b"to stdout\n")
    run = await sandbox.start(Program(text=text, role="serve", entry="inner"))
    await run.send({"args": []})
    with pytest.raises(EOFError):
        await run.receive()
    await run.wait()


async def relay(test: str, program: str) -> tuple[Outcome, Outcome]:
    """Two sandboxes: a test, and the program that it tests."""
    async with Sandbox(slots=2) as both:
        serving = await both.start(Program(text=program, role="serve", entry="f"))
        testing = await both.start(Program(text=test, role="test", entry="f"))
        try:
            while True:
                await serving.send(await testing.receive())
                try:
                    await testing.send(await serving.receive())
                except EOFError:
                    testing.end()
                    break
        except EOFError:
            pass
        serving.end()
        return await testing.wait(), await serving.wait()


@pytest.mark.parametrize(
    ("program", "ending", "detail"),
    [
        ("def f(a):\n a.sort()\n if not a: raise ValueError('empty')\n return a[0]", "finished", ""),
        ("def f(a): return 1", "exception", "AssertionError"),
        ("def f(a): raise SystemExit(0)", "exception", "NoAnswer"),
        ("import os\ndef f(a): os._exit(0)", "exception", "NoAnswer"),
        ("def f(a): raise KeyboardInterrupt", "exception", "RuntimeError"),
        ('import os\ndef f(a): os.write(0, b\'{"error":"SystemExit","message":[0]}\\n\')', "exception", "RuntimeError"),
        ("import os\ndef f(a): os.write(0, b'[[[\\n')", "exception", "NoAnswer"),
        ("class A:\n def __eq__(s, o): return True\ndef f(a): return A()", "exception", "unsendable"),
        ("def g(a): return 1", "exception", "missing"),
        ("", "exception", "missing"),
    ],
)
async def test_a_test_is_not_in_reach_of_what_it_tests(program: str, ending: str, detail: str) -> None:
    test = """
a = [3, 2]
assert candidate(a) == 2 and a == [2, 3]
try:
    f([])
except ValueError as fault:
    assert str(fault) == "empty"
else:
    assert False
"""
    # Refused by the decoder of whoever relays: the test is told nothing and ends.
    outcome = (await relay_hostile(test, program)) if "[[[" in program else (await relay(test, program))[0]
    assert (outcome.ending, outcome.detail) == (ending, detail)


async def relay_hostile(test: str, program: str) -> Outcome:
    async with Sandbox(slots=2) as both:
        serving = await both.start(Program(text=program, role="serve", entry="f"))
        testing = await both.start(Program(text=test, role="test", entry="f"))
        await serving.send(await testing.receive())
        with pytest.raises(typed.Untyped):
            await serving.receive()
        testing.end()
        serving.kill()
        await serving.wait()
        return await testing.wait()


async def test_a_flooded_channel_is_cut(sandbox: Sandbox) -> None:
    run = await sandbox.start(Program(text="import os\nwhile True: os.write(0, b'x' * 65536)", role="serve", entry="f"))
    with pytest.raises(EOFError):
        await run.receive()
    outcome = await run.wait()
    assert (outcome.ending, outcome.detail, outcome.cut) == ("output_limit", "channel", ("channel",))


async def test_a_program_that_does_not_read_does_not_block_the_judge(sandbox: Sandbox) -> None:
    run = await sandbox.start(Program(text="import time; time.sleep(60)", role="serve", entry="f"), SHORT)
    for _ in range(8):
        await run.send({"args": ["x" * 1_000_000]})
    assert (await run.wait()).ending == "timeout"


# ---- what is kept apart


async def test_nothing_passes_from_one_run_to_the_next(sandbox: Sandbox) -> None:
    """Trap 4: a program's text, input, output and exceptions are not in the heap that later runs are copies of."""
    mark = "SBX" + "_OWN_" + "MARK_5519"
    text = f"class {mark}(Exception): pass\nx = input()\nprint(x)\nraise {mark}('{mark}')\n#" + "y" * 9_000
    await ran(sandbox, text, stdin=f"{mark}\n".encode())
    run = await sandbox.start(Program(text=f"def {mark}(x): return x", role="serve", entry=mark))
    await run.send({"args": [mark]})
    assert await run.receive() == {"value": mark}
    run.end()
    await run.wait()
    hunt = """
import ctypes, re
libc = ctypes.CDLL(None); libc.sbrk.restype = ctypes.c_void_p
pattern = re.compile(rb"SBX_OWN_MAR[K]_551[9]")
top, step = libc.sbrk(0), 1 << 16
seen, found = 0, False
while libc.msync(ctypes.c_void_p((top - step) & ~4095), ctypes.c_size_t(step), 1) == 0:
    top -= step
    seen += step
    found = found or bool(pattern.search(ctypes.string_at(top, step)))
import gc
for held in gc.get_objects():
    if type(held) is str and len(held) > 5 and "OWN_MA" + "RK" in held: found = True
print(seen > 1 << 20, found)
"""
    assert (await ran(sandbox, hunt)).stdout == b"True False\n"


async def test_files_are_gone_with_their_run(sandbox: Sandbox) -> None:
    text = """
import os
for path in ("/tmp/left", "left2", "/dev/shm/left", "/var/tmp/left"):
    print(os.path.exists(path))
    try: open(path, "w").write("x")
    except OSError: pass
"""
    assert [(await ran(sandbox, text)).stdout.split() for _ in range(2)] == [[b"False"] * 4, [b"False"] * 4]
    assert not any(os.path.exists(path) for path in ("/tmp/left", "/dev/shm/left", "/var/tmp/left"))


@pytest.mark.usefixtures("needs_ns")
async def test_a_folder_of_its_own_has_a_quota() -> None:
    fill = """
import os
n = 0
try:
    for i in range(100):
        with open(f"f{i}", "wb", buffering=0) as file:
            for _ in range(4): n += file.write(b"x" * (1 << 20))
except OSError as fault: print(fault.errno)
print(n >> 20)
"""
    with Sandbox("ns", slots=1) as own:
        outcome = await ran(own, fill)
        assert outcome.stdout.split() == [b"28", b"16"]
        read_only = await ran(own, "open('x', 'w')", Limits(writable=False))
        assert read_only.ending == "exception"
        many = "import os\nfor i in range(600): os.close(os.open(f'{i}', os.O_CREAT | os.O_WRONLY))"
        assert (await ran(own, many)).detail == "OSError"


async def test_a_limit_of_threads_holds_as_root_too(sandbox: Sandbox) -> None:
    """Trap 1: the limit is not enforced for user 0."""
    text = """
import threading, time
threading.stack_size(1 << 16)
n = 0
try:
    for _ in range(30_000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        n += 1
except RuntimeError: pass
print(n)
import os, sys
sys.stdout.flush()
os._exit(0)
"""
    outcome = await ran(sandbox, text, Limits(wall_seconds=20.0, processes=8))
    assert outcome.ending == "finished", outcome
    if sandbox.isolation.level == "ns":
        assert int(outcome.stdout) < 8
    else:  # all tasks of the user count, of which the machine's are a bound
        assert int(outcome.stdout) <= 8 + len([t for p in psutil.process_iter() for t in p.threads()]) + 200


async def test_signals_reach_nobody_else(sandbox: Sandbox) -> None:
    """Trap 2: a PID namespace does not contain kill(0)."""
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        for call in (
            "os.kill(0, 9)",
            "os.kill(-1, 9)",
            f"os.kill({victim.pid}, 9)",
            f"os.killpg({os.getpgrp()}, 9)",
            "os.kill(os.getppid(), 9)",
        ):
            await ran(sandbox, f"import os\n{call}")
        own = f"import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, {victim.pid})"
        assert (await ran(sandbox, own)).ending == "exception"
        assert (await ran(sandbox, f"import os\nos.sched_setaffinity({os.getpid()}, [0])")).ending == "exception"
        assert victim.returncode is None and psutil.pid_exists(victim.pid)
    finally:
        victim.kill()
        await victim.wait()
    assert (await ran(sandbox, SUM, stdin=b"1 1\n")).stdout == b"2\n"


async def test_metadata_of_the_hosts_files_stays(sandbox: Sandbox, tmp_path: Path) -> None:
    """Landlock knows no chmod and no utime; the level without a mount namespace must refuse them otherwise."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o777)
    secret.chmod(0o666)
    before = secret.stat()
    for call in (
        "os.chmod(p, 0)",
        "os.utime(p, (1, 1))",
        "os.truncate(p, 0)",
        "os.unlink(p)",
        "os.rename(p, p + 'x')",
        "open(p).read()",
    ):
        assert (await ran(sandbox, f"import os\np = {str(secret)!r}\n{call}")).ending == "exception", call
    after = secret.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_size) == (before.st_mode, before.st_mtime_ns, before.st_size)


async def test_the_attacks_on_a_level_see_a_level_that_keeps_nothing_apart() -> None:
    with Sandbox("rlimits", strict=False, slots=1) as open_:
        outcome = await ran(open_, attacks.QUIET.replace('os.execv("/bin/sh", ["sh"])', "None"))
        worked = outcome.stdout.split()
    assert worked[-1] == b"done" and len(worked) > 8
    assert not os.path.exists(f"{os.path.dirname(os.__file__)}/jurat-attack") or os.geteuid() == 0
    for folder in ("/", "/var/tmp", "/dev/shm", os.path.dirname(os.__file__)):
        Path(folder, "jurat-attack").unlink(missing_ok=True)


async def test_installed_packages_are_out_of_reach(sandbox: Sandbox) -> None:
    """The judge's own packages, and the answers that lie in them, are not the program's to read."""
    text = """
import glob, os
library = os.path.dirname(os.__file__)
print(len(os.listdir(library)) > 100)
for folder in (library + "/site-packages", "/usr/lib/python3/dist-packages", "/usr/local/lib"):
    for path in glob.glob(folder + "/**/*.py", recursive=True):
        try: open(path).close()
        except OSError: continue
        print(path)
"""
    assert (await ran(sandbox, text, Limits(wall_seconds=30.0))).stdout == b"True\n"


# ---- the judge


def snapshot() -> dict[str, object]:
    me = psutil.Process()
    return {
        "fds": me.num_fds(),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "children": sorted(child.pid for child in me.children(recursive=True)),
    }  # fmt: skip


async def test_nothing_is_left(sandbox: Sandbox) -> None:
    await ran(sandbox, SUM, stdin=b"1 2\n")
    before = snapshot()
    tried = [
        SUM,
        "1/0",
        "import os; os.fork()",
        "import ctypes; ctypes.CDLL(None).ptrace(0)",
        "import os; os.kill(0, 9)",
    ]
    zygote = psutil.Process(zygote_of(sandbox))
    fds, rss = zygote.num_fds(), zygote.memory_info().rss
    for i in range(60):
        await ran(sandbox, tried[i % len(tried)], stdin=b"1 2\n")
    for _ in range(2):
        task = asyncio.create_task(ran(sandbox, LOOP))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert snapshot() == before
    assert zygote.num_fds() == fds and zygote.memory_info().rss - rss < 2 << 20


async def test_a_flood_does_not_grow_the_judge(sandbox: Sandbox) -> None:
    before = psutil.Process().memory_info().rss
    for stream in (1, 2):
        text = f"import os\nfor _ in range(1024): os.write({stream}, b'x' * (1 << 20))"
        assert (await ran(sandbox, text, Limits(wall_seconds=20.0))).ending == "output_limit"
    assert psutil.Process().memory_info().rss - before < 32 << 20


async def test_a_killed_zygote_is_our_trouble_and_the_run_is_tried_again(sandbox: Sandbox) -> None:
    first = await sandbox.start(Program(text=LOOP), Limits(wall_seconds=20.0))
    pid = zygote_of(sandbox)
    inside = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    outcome = await first.wait()
    assert (outcome.ending, outcome.detail) == ("infra_error", "the zygote died")
    psutil.wait_procs(inside, timeout=5.0)
    assert not [left for left in inside if left.is_running() and left.status() != psutil.STATUS_ZOMBIE]

    async def murder() -> None:
        while not (slot := sandbox._all[0]).zygote or slot.run is None:
            await asyncio.sleep(0.001)
        os.kill(slot.zygote.pid, signal.SIGKILL)

    task = asyncio.create_task(ran(sandbox, "import time; time.sleep(0.2); print(input())", stdin=b"again\n"))
    await murder()
    assert (await task).stdout == b"again\n"


async def test_batches_lose_nothing_and_come_as_they_end() -> None:
    programs = [Program(text=f"import time; time.sleep({0.3 if i == 0 else 0}); print({i})") for i in range(30)]
    with Sandbox(slots=2, runs_per_zygote=7) as own:
        seen = [(i, outcome.stdout) async for i, outcome in own.run_batch(programs)]
        assert sorted(seen) == [(i, b"%d\n" % i) for i in range(30)]
        assert seen[0][0] != 0
        batch = own.run_batch([Program(text=LOOP)] * 3)
        task = asyncio.create_task(anext(batch))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await ran(own, SUM, stdin=b"1 2\n")).stdout == b"3\n"


def test_event_loops_and_threads_share_one_sandbox() -> None:
    with Sandbox(slots=2) as own:
        made: collections.Counter[bytes] = collections.Counter()

        def work(n: int) -> None:
            for i in range(5):
                made[own.run_sync(Program(text=SUM, stdin=b"%d %d\n" % (n, i))).stdout] += 1

        threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == {b"%d\n" % (100 * n + i): 1 for n in range(4) for i in range(5)}

        async def abandons() -> None:  # its loop ends under a run
            await own.start(Program(text=LOOP))

        for _ in range(2):
            asyncio.run(abandons())
        assert own.run_sync(Program(text=SUM, stdin=b"1 2\n")).stdout == b"3\n"


async def test_a_closed_sandbox_ends_its_runs_and_takes_no_more() -> None:
    own = Sandbox(slots=1)
    run = await own.start(Program(text=LOOP))
    pid = zygote_of(own)
    own.close()
    assert (await run.wait()).ending == "infra_error"
    assert not psutil.pid_exists(pid)
    with pytest.raises(SandboxUnavailable, match="closed"):
        await own.start(Program(text=SUM))


@pytest.mark.parametrize(
    "wrong", [{"wall_seconds": 0.0}, {"wall_seconds": float("inf")}, {"processes": -1}, {"cpu_seconds": float("nan")}]
)
def test_a_limit_that_is_none_is_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Limits(**wrong)


def test_levels_are_refused_by_name() -> None:
    with pytest.raises(SandboxUnavailable, match="keeps nothing apart") as caught:
        levels.choose("rlimits", strict=True)
    assert "strict=False" in caught.value.fix
    with pytest.raises(SandboxUnavailable, match="no level 'nsx'"):
        levels.choose("nsx", strict=True)
    assert levels.choose("rlimits", strict=False).level == "rlimits"
    for found in levels.table():
        assert found.works or (found.missing and found.level)


JUDGE = """
import asyncio, os, sys
from jurat.verifiers.sandbox import Program, Sandbox

sandbox = Sandbox(slots=1)
answer = lambda: sandbox.run_sync(Program(text="print(input())", stdin=b"yes\\n")).stdout
assert answer() == b"yes\\n"
copy = os.fork()
if copy == 0:
    os._exit(0 if answer() == b"yes\\n" else 1)
assert os.waitpid(copy, 0)[1] == 0 and answer() == b"yes\\n"

async def forever():
    await sandbox.start(Program(text="while True: pass"))
    print(sandbox._all[0].zygote.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(forever())
"""


async def test_what_the_judge_ignores_or_hides_is_not_handed_down() -> None:
    mask, ignored = os.umask(0o077), signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])
    try:
        async with Sandbox(slots=1) as own:
            text = "import os, signal\nprint(signal.pthread_sigmask(0, []), signal.getsignal(17) == signal.SIG_DFL)"
            assert (await ran(own, text)).stdout == b"set() True\n"
            assert (await ran(own, "1/0")).detail == "ZeroDivisionError"
    finally:
        os.umask(mask)
        signal.signal(signal.SIGCHLD, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_a_judge_that_forks_and_one_that_is_killed() -> None:
    sources = str(Path(__file__).parents[3] / "src")
    environment = {**os.environ, "PYTHONPATH": sources}
    with subprocess.Popen([sys.executable, "-c", JUDGE], env=environment, stdout=subprocess.PIPE) as judge:
        assert judge.stdout is not None
        zygote = psutil.Process(int(judge.stdout.readline()))
        while not zygote.children():
            time.sleep(0.01)
        left = [zygote, *zygote.children(recursive=True)]
        judge.kill()
    _, alive = psutil.wait_procs(left, timeout=10.0)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
