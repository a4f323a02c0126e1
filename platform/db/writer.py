"""One writer for many callers: a thread that takes what waits, in one transaction, and answers after the commit.

::

    submit(job) ─> bounded queue ─> writer thread: BEGIN IMMEDIATE; job; job; ...; COMMIT ─> futures
      │ full: Busy                                 │ one raised: all of it again, each job in a savepoint

A job that raises is undone alone, and its caller gets the exception; the others of its group are kept. A commit that
fails, or a deadlock, fails or repeats all of them. So a job may be called more than once, and touches the database alone.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from jurat.platform.db.engine import nested, writing
from jurat.platform.db.wal import WriteAheadLog
from jurat.platform.errors import JuratError
from jurat.platform.faults import point

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[sa.Connection], Any]

Finish = Callable[[sa.Connection], None]


class _Task(NamedTuple):
    job: Job
    finish: Finish | None
    done: Future[Any]


GROUP = 64
"""Jobs of one transaction at most."""
TRIES = 5
"""Of a group that PostgreSQL refused as a deadlock or a serialisation failure."""


class Busy(JuratError):
    """The writer's queue is full: ask again in a moment (429 over HTTP)."""


class Writer:
    """Safe to use from any thread. ``close`` writes what waits and stops the thread."""

    def __init__(self, engine: sa.Engine, *, queue: int = 256, group: int = GROUP) -> None:
        self._engine, self._limit, self._group = engine, queue, group
        self._wake = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._closing = False
        self._log = WriteAheadLog(engine)
        self.commits = 0
        """Transactions so far."""
        self._thread = threading.Thread(target=self._work, name="jurat-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[sa.Connection], T], finish: Finish | None = None) -> Future[T]:
        """The job's answer, once it is committed. Raises Busy where too many wait, or the writer is closed.

        ``finish``: writes what the job only gathered; called once for neighbours in the queue that have the same one.
        """
        done: Future[T] = Future()
        with self._wake:
            if self._closing or self._log.full or len(self._waiting) >= self._limit:
                said = (
                    "is closed" if self._closing
                    else "waits for a reader that holds an old state" if self._log.full
                    else f"has {len(self._waiting)} jobs waiting"
                )  # fmt: skip
                raise Busy(f"the database's writer {said}", where="writer", fix="try again in a moment")
            self._waiting.append(_Task(job, finish, done))
            self._wake.notify()
        return done

    def leave(self, job: Job, what: str) -> None:
        """``submit`` what nobody waits for; if it fails, the log says so. Raises Busy."""

        def told(done: Future[Any]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("%s failed: %s", what, error)

        self.submit(job).add_done_callback(told)

    def call(self, job: Callable[[sa.Connection], T]) -> T:
        """``submit``, and wait."""
        return self.submit(job).result()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closing, timeout=self._log.pause())
                taken = [self._waiting.popleft() for _ in range(min(self._group, len(self._waiting)))]
                if self._closing and not taken:
                    return
            if taken := [task for task in taken if task.done.set_running_or_notify_cancel()]:
                self._answer(taken)
            self._log.tend()

    def _answer(self, taken: Sequence[_Task]) -> None:
        together = True
        for attempt in range(1, TRIES + 1):
            try:
                answers = self._commit(taken, together=together)
            except Exception as error:
                if attempt < TRIES and _passes(error):
                    time.sleep(random.uniform(0, 0.01 * 2**attempt))
                    continue
                if attempt < TRIES and together and len(taken) > 1:
                    together = False
                    continue
                for task in taken:
                    task.done.set_exception(error)
            else:
                for task, (answer, failed) in zip(taken, answers, strict=True):
                    if failed is not None:
                        task.done.set_exception(failed)
                    else:
                        task.done.set_result(answer)
            return

    def _commit(self, taken: Sequence[_Task], *, together: bool) -> list[tuple[Any, Exception | None]]:
        """(answer, error) of each job. ``together``: the first error is raised, and all is undone."""
        answers: list[tuple[Any, Exception | None]] = []
        with writing(self._engine) as connection:
            unfinished: Finish | None = None
            for job, finish, _ in taken:
                if unfinished is not None and unfinished is not finish:
                    unfinished(connection)
                    unfinished = None
                if together:
                    answers.append((job(connection), None))
                    unfinished = finish
                    continue
                try:
                    with nested(connection):
                        answer = job(connection)
                        if finish is not None:
                            finish(connection)
                except Exception as error:
                    if _passes(error):
                        raise
                    answers.append((None, error))
                else:
                    answers.append((answer, None))
            if unfinished is not None:
                unfinished(connection)
            point("service.before_commit")
        point("service.before_answer")
        self.commits += 1
        return answers


def _passes(error: Exception) -> bool:
    """A serialisation failure or a deadlock: the transaction is to be tried again, as PostgreSQL says."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return isinstance(error, DBAPIError) and state in {"40001", "40P01"}
