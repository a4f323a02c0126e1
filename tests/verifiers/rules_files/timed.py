"""Verifiers that take their time, or whose process is killed, when the completion says so."""

import os
import signal
import subprocess
import time
from pathlib import Path

import jurat


@jurat.verifier("timed", deadline=20.0)
def timed(problem, completion):
    word, _, rest = completion.partition(" ")
    if word == "sleep":
        time.sleep(0.3)
    elif word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "once":
        if not Path(rest).exists():
            Path(rest).write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return True
    elif word == "leave":
        how, _, mark = rest.partition(" ")
        # Twice a new session, and the parent in between gone.
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                os.execvp("sleep", ["sleep", mark])
            os._exit(0)
        subprocess.Popen(["sleep", mark], start_new_session=True)
        time.sleep(0.1)
        if how == "exit":
            os._exit(3)
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "crash":
            os.abort()
        time.sleep(100)
    return completion == problem.reference


@jurat.verifier("timed_too", deadline=20.0)
def timed_too(problem, completion):
    return completion == problem.reference


@jurat.verifier("timed_batch", batch=True, deadline=20.0)
def timed_batch(problems, completions):
    return [completion == problem.reference for problem, completion in zip(problems, completions, strict=True)]
