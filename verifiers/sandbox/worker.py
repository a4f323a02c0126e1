"""What runs in the child, last: takes away what setting up needed, then runs the program as ``__main__``.

Nothing here is trusted once the program runs. It may read and change all of this process; what it can reach by that is
to give other answers, or none. It has no descriptor but 0, 1 and 2; for ``serve`` and ``test`` 0 is the channel, both
ways, and ``sys.stdin`` is empty.

Channel, one typed JSON line each (``typed.py``)::

    serve  <-  {"entry": "f", "args": [...], "kwargs": {...}, "back": true}     all but ``args`` may be missing
           ->  {"value": ..., "args": [...], "kwargs": {...}}    both as they are afterwards, where ``back`` asked
           ->  {"error": "ValueError", "type": "MyError", "message": [...], "args": [...]}
                                                      the nearest built-in class, its own, what it was made with
           ->  {"missing": "f"}                       the program defines no such thing
           ->  {"unsendable": "a value of type P"}    no plain data
    test   ->  a call, as serve reads it; <- an answer, as serve writes it
"""

from __future__ import annotations

import builtins
import contextlib
import json
import mmap
import os
import resource
import signal
import sys
from typing import Any

from . import landlock, syscalls, typed

HEAD = 256
"""Bytes in front of the payload into which a run writes how it ended: untrusted, read by the judge."""
COMPILE, RAISED, MEMORY, LEFT = b"C", b"E", b"M", b"X"

_close, _exit, _read, _write, _getpid = os.close, os._exit, os.read, os.write, os.getpid
_Json = dict[str, Any]
_encode, _decode, _Untyped = typed.encode, typed.decode, typed.Untyped
_TYPES = [kind for kind in vars(builtins).values() if isinstance(kind, type)]
_BASES = {kind.__name__: kind for kind in _TYPES if issubclass(kind, BaseException)}
_CHANNEL = 0
_PROMISED = ("CPU", "FSIZE", "NOFILE", "AS")
"""What a program is told that it may use."""
_NODES, _DEPTH, _SIZE = typed.MAX_NODES, typed.MAX_DEPTH, 64 << 20


def live(payload: int, report: int, limits: _Json, box: Any) -> None:
    """Never returns. ``payload`` and ``report`` are descriptors; ``report`` gets one byte when all that is ours is done."""
    os.setsid()
    if box.level != "rlimits":
        drop(box)
    task, page = _payload(payload)
    _limit(limits, box)
    if box.level != "rlimits":
        syscalls.call("prctl", 4, 0)  # PR_SET_DUMPABLE: a crash starts no collector of cores, whatever RLIMIT_CORE
        syscalls.call("prctl", 38, 1)  # PR_SET_NO_NEW_PRIVS
        if box.ruleset is not None:
            landlock.enter(box.ruleset)
        box.last(_getpid()).install()
    os.write(report, b"S")
    _close_all()
    if task["role"] != "script":
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 for as long as the program runs
    _run(task, page)


def drop(box: Any) -> None:
    """All capabilities but what reading the interpreter takes, where it lies in a folder of another user."""
    import ctypes
    import struct

    head = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    kept = box.kept
    sets = ctypes.create_string_buffer(struct.pack("=6I", kept, kept, 0, 0, 0, 0))
    syscalls.call("capset", ctypes.addressof(head), ctypes.addressof(sets))


def _payload(fd: int) -> tuple[_Json, mmap.mmap]:
    size = os.fstat(fd).st_size
    text = os.pread(fd, size - HEAD, HEAD)
    page = mmap.mmap(fd, HEAD)
    split = text.index(b"\n")
    task: _Json = json.loads(text[:split])
    task["text"] = text[split + 1 :]
    return task, page


def _limit(limits: _Json, box: Any) -> None:
    for name, value in (
        ("CORE", 0), ("CPU", limits["cpu"]), ("FSIZE", limits["file_bytes"]), ("NOFILE", limits["open_files"]),
        ("NPROC", limits["processes"] + box.others()), ("AS", limits["memory_bytes"] + box.mapped),
        ("STACK", 64 << 20), ("MEMLOCK", 0), ("MSGQUEUE", 0), ("SIGPENDING", 256),
    ):  # fmt: skip
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue
        had = resource.getrlimit(which)[1]
        if had != resource.RLIM_INFINITY and value > had:
            if name in _PROMISED:  # less would make right programs wrong, for no fault of theirs
                raise OSError(f"RLIMIT_{name} of the judge is {had}: {value} is wanted")
            value = had
        resource.setrlimit(which, (value, value))  # of CPU, the hard limit kills at once; a soft one could be ignored


def _close_all() -> None:
    try:
        syscalls.call("close_range", 3, 0xFFFFFFFF, 0)
    except OSError:
        os.closerange(3, 4096)


def _run(task: _Json, page: mmap.mmap) -> None:
    import gc

    # What is called is imported, as it were: a ``__main__`` block that reads input or leaves is no part of it.
    made = type(sys)("program" if task["role"] == "serve" else "__main__")
    names = made.__dict__
    names["__builtins__"] = builtins
    sys.modules["__main__"] = sys.modules[made.__name__] = made
    for name in [name for name in sys.modules if name.split(".")[0] == "_jurat_box"]:
        del sys.modules[name]
    sys.argv = ["main.py"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.enable()
    try:
        code = compile(task["text"], "main.py", "exec", 0, True)
    except MemoryError:
        _end(page, MEMORY, "MemoryError", 1)
    except BaseException as fault:
        _print(fault)
        _end(page, COMPILE, type(fault).__name__, 1)
    task["text"] = b""
    if task["role"] == "test":
        for name in ["candidate", *(part for part in task["entry"].split(",") if part)]:
            names[name] = _proxy(name if name != "candidate" else task["entry"].split(",")[0], page)
    try:
        exec(code, names)  # noqa: S102 the purpose of this process
        if task["role"] == "serve":
            _serve(names, task["entry"])
    except BaseException as fault:
        _fail(page, fault)
    _end(page, b"\0", "", 0)


def _fail(page: mmap.mmap, fault: BaseException) -> None:
    kind = type(fault)
    if issubclass(kind, SystemExit):
        status = fault.code  # type: ignore[attr-defined]
        if status is None or type(status) is int:
            status = (status or 0) & 0xFF
            _end(page, LEFT if status else b"\0", "SystemExit", status)
        _print_text(status)
        _end(page, LEFT, "SystemExit", 1)
    name = type.__dict__["__name__"].__get__(kind)
    if issubclass(kind, MemoryError):
        _end(page, MEMORY, name, 1)
    _print(fault)
    _end(page, RAISED, name, 1)


def _print(fault: BaseException) -> None:
    with contextlib.suppress(BaseException):  # the program's own hooks may run
        trace = fault.__traceback__
        BaseException.with_traceback(fault, trace and trace.tb_next)  # without the frame of this file
        sys.excepthook(type(fault), fault, fault.__traceback__)


def _print_text(status: Any) -> None:
    with contextlib.suppress(BaseException):  # the program's own ``__str__`` runs
        print(status, file=sys.stderr)


def _end(page: mmap.mmap, kind: bytes, name: str, status: int) -> None:
    """As the interpreter ends: threads, exit hooks, buffers; then without its long goodbye."""
    page[: len(kind)] = kind
    text = name.encode("ascii", "replace")[: HEAD - 8]
    page[1 : 1 + len(text)] = text
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()  # type: ignore[attr-defined]
        import atexit

        atexit._run_exitfuncs()
        if threading is None or threading.active_count() == 1:
            # Files that the program left open write what they hold when they go.
            sys.modules.pop("__main__").__dict__.clear()
    except BaseException as fault:
        _print(fault)
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        try:
            if stream is not None:
                stream.flush()
        except BaseException:
            status = status or 120
    _exit(status)


# ---- the channel -------------------------------------------------------------------------------------------------


class _Lines:
    def __init__(self) -> None:
        self._held = b""

    def next(self) -> bytes | None:
        parts = [self._held]
        while b"\n" not in parts[-1]:
            got = _read(_CHANNEL, 1 << 16)
            if not got:
                return None
            parts.append(got)
        line, _, self._held = b"".join(parts).partition(b"\n")
        return line


def _say(line: bytes) -> None:
    view = memoryview(line + b"\n")
    while view:
        view = view[_write(_CHANNEL, view) :]


def _typed(message: _Json) -> bytes:
    return _encode(message, depth=_DEPTH, nodes=_NODES)


def _serve(names: _Json, entry: str) -> None:
    lines = _Lines()
    while (line := lines.next()) is not None:
        message = _decode(line, size=_SIZE, depth=_DEPTH, nodes=_NODES)
        _say(_answer(names, message.get("entry") or entry, message))


def _answer(names: _Json, entry: str, message: _Json) -> bytes:
    args, kwargs = list(message.get("args") or ()), dict(message.get("kwargs") or {})
    back: _Json = {}
    try:
        called = _find(names, entry)
    except (KeyError, AttributeError):
        return _typed({"missing": entry})
    except BaseException as fault:
        return _raised(fault, back)
    try:
        value = called(*args, **kwargs)
    except SystemExit:
        raise
    except BaseException as fault:
        if message.get("back"):
            back = {"args": args, "kwargs": kwargs}
        return _raised(fault, back)
    if message.get("back"):
        back = {"args": args, "kwargs": kwargs}
    try:
        return _typed({"value": value, **back})
    except _Untyped as fault:
        return _typed({"unsendable": str(fault)})


def _find(names: _Json, entry: str) -> Any:
    """``f``, or ``Solution.f`` of a fresh instance: what the program itself defines, never a built-in."""
    first, *rest = entry.split(".")
    found = names[first]
    if first.startswith("__"):
        raise KeyError(first)
    for name in rest:
        if isinstance(found, type):
            found = found()
        found = getattr(found, name)
    return found


def _raised(fault: BaseException, back: _Json) -> bytes:
    kind = type(fault)
    base = next((k.__name__ for k in type.mro(kind) if _BASES.get(k.__name__) is k), "Exception")
    own = type.__dict__["__name__"].__get__(kind)
    answer = {"error": base, "type": own[:100]}
    for more in ({"message": list(BaseException.args.__get__(fault)), **back}, back, {}):  # type: ignore[attr-defined]
        with contextlib.suppress(_Untyped):
            return _typed({**answer, **more})
    return _typed(answer)


def _proxy(entry: str, page: mmap.mmap) -> Any:
    """What a test calls: sends the call, gives back what came, raises what was raised, changes what was changed.

    An answer is hostile: it may raise no more than an Exception, as ``SystemExit`` would end the test as if it had
    passed. Where there is no answer the test ends at once, as a test that expects an exception must not take it for one.
    """
    lines = _LINES

    def candidate(*args: Any, **kwargs: Any) -> Any:
        _say(_typed({"entry": entry, "args": list(args), "kwargs": kwargs, "back": True}))
        line = lines.next()
        answer: Any = None
        if line is not None:
            with contextlib.suppress(_Untyped):
                answer = _decode(line, size=_SIZE, depth=_DEPTH, nodes=_NODES)
        if type(answer) is not dict or not ("value" in answer or "error" in answer):
            _end(page, RAISED, "NoAnswer" if type(answer) is not dict else next(iter(answer), "NoAnswer"), 1)
        back = answer.get("args")
        for old, new in zip(args, back if type(back) is list else (), strict=False):
            _change(old, new)
        named = answer.get("kwargs")
        for name, old in kwargs.items() if type(named) is dict else ():
            _change(old, named.get(name))
        if "value" in answer:
            return answer["value"]
        kind = _BASES.get(answer["error"]) if type(answer["error"]) is str else None
        message = answer.get("message")
        raise _exception(kind, message if type(message) is list else [])

    return candidate


_LINES = _Lines()


def _exception(kind: Any, message: list[Any]) -> Exception:
    # What ends an iteration would end that of the test: ``all(map(candidate, cases))`` would hold.
    if kind is not None and issubclass(kind, Exception) and not issubclass(kind, StopIteration | StopAsyncIteration):
        with contextlib.suppress(Exception):
            made: Exception = kind(*message)
            return made
    return RuntimeError("the program under test raised what is no Exception")


def _change(old: Any, new: Any) -> None:
    if type(old) is not type(new) or old == new:
        return
    if type(old) is list:
        old[:] = new
    elif type(old) is dict or type(old) is set:
        old.clear()
        old.update(new)
