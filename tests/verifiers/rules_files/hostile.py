"""A user's verifiers that misbehave on request: the completion says how."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import jurat


def _misbehave(word):
    if word == "loop_c":
        ctypes.PyDLL(None).pause()  # holds the interpreter's lock: no thread or signal handler can run
    elif word == "sleep":
        time.sleep(1000)
    elif word.startswith("wait "):
        begun = Path(word.removeprefix("wait "))
        begun.touch()
        while not begun.with_suffix(".go").exists():
            time.sleep(0.01)
    elif word == "exit":
        os._exit(0)
    elif word == "sys_exit":
        sys.exit(3)
    elif word == "fork":
        if os.fork() == 0:
            time.sleep(1000)
    elif word == "fork_returns":
        os.fork()
    elif word == "daemon":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
    elif word == "ignore_term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
    elif word == "memory":
        hold = []
        while True:
            hold.append(bytearray(2**24))
    elif word == "print":
        for _ in range(2**20):
            print("x" * 1023)
    elif word == "segv":
        ctypes.string_at(0)
    elif word == "raise":
        raise ValueError("no such luck")
    elif word == "deep":
        return _misbehave(word)
    elif word == "nan":
        return float("nan")
    elif word == "two":
        return 2.0
    elif word == "string":
        return "correct"
    elif word == "none":
        return None
    elif word == "half":
        return 0.5
    elif word == "bad_verdict":
        return jurat.Verdict(status="correct", score=0.3)
    elif word == "kill_group":
        os.killpg(0, signal.SIGKILL)
    elif word == "close_pipes":
        os.closerange(0, 4096)
    return None


@jurat.verifier("hostile", deadline=1.0)
def hostile(problem, completion):
    if completion.startswith("!"):
        return _misbehave(completion[1:].strip())
    return completion.strip() == problem.reference


@jurat.verifier("hostile_batch", deadline=1.0, batch=True)
def hostile_batch(problems, completions):
    out = []
    for problem, completion in zip(problems, completions, strict=True):
        if completion == "!short":
            return out
        out.append(hostile(problem, completion))
    return out


@jurat.verifier("hostile_policy", deadline=0.5, blame="policy")
def hostile_policy(problem, completion):
    time.sleep(1000)


@jurat.verifier("hostile_async")
async def hostile_async(problem, completion):
    import asyncio

    await asyncio.sleep(0)
    return hostile(problem, completion)


@jurat.verifier("counter", deterministic=False)
class Counter:
    def __init__(self, start=0):
        self.count = start

    def __call__(self, problem, completion):
        self.count += 1
        return jurat.Verdict.of("partial", self.count / 1000)


@jurat.verifier("told", version="2")
def told(problem, completion, *, finish, scale=1.0):
    return scale if finish == "stop" else 0.0
