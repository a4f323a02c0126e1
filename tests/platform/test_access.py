"""Keys, idempotent requests, audit; on both databases."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from jurat.platform import access
from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError, RunFailed
from jurat.platform.runs.store import Store


def test_keys(store: Store) -> None:
    assert store.read(access.any_key) is False
    key, text = store.write(lambda c: access.make_key(c, "ann", ["runs:read"], seconds=60))
    assert text.startswith(f"jurat_{key.key_id}_") and len(text) == 6 + 12 + 1 + 43
    assert store.read(lambda c: access.check_key(c, text)) == key
    secret = text.rpartition("_")[2] if "_" not in text[19:] else text[19:]
    kept = store.read(lambda c: c.execute(sa.select(t.api_key)).mappings().one())
    assert secret not in str(dict(kept))
    wrong = text[:-1] + ("a" if text[-1] != "a" else "b")
    for bad in ("", "x", wrong, text + "x", text.upper(), f"jurat_{'0' * 12}_{'a' * 43}", "\x00"):
        assert store.read(lambda c, b=bad: access.check_key(c, b)) is None
    token, said = store.write(lambda c: access.make_key(c, "run", ["runs:write"], run_id="r", epoch=3, seconds=-1))
    assert (token.run_id, token.epoch) == ("r", 3)
    assert store.read(lambda c: access.check_key(c, said)) is None  # expired
    assert [k.key_id for k in store.read(access.keys)] == [key.key_id]
    store.write(lambda c: access.note_use(c, key.key_id))
    used = store.read(access.keys)[0].last_used
    store.write(lambda c: access.note_use(c, key.key_id))
    assert used is not None and store.read(access.keys)[0].last_used == used
    assert store.write(lambda c: access.revoke(c, key.key_id)) is True
    assert store.write(lambda c: access.revoke(c, key.key_id)) is False
    assert store.read(lambda c: access.check_key(c, text)) is None
    assert store.read(access.any_key) is False
    with pytest.raises(ConfigError, match="no scope is called 'all'"):
        store.write(lambda c: access.make_key(c, "x", ["all"]))


def test_a_request_is_answered_once(store: Store) -> None:
    def begin(key: str = "k", **more: float) -> access.Answer | None:
        return store.write(lambda c: access.begin_request(c, "ann", key, route="POST /runs", body_sha256="b", **more))

    assert begin() is None
    second = begin()
    assert second is not None and second.status is None
    store.write(lambda c: access.answer_request(c, "ann", "k", status=201, headers={"ETag": "1"}, body=b"{}"))
    again = begin()
    assert again is not None and (again.status, again.headers, again.body) == (201, {"ETag": "1"}, b"{}")
    store.write(lambda c: access.drop_request(c, "ann", "k"))
    assert begin() is not None  # what was answered stays
    assert begin("f", seconds=-1) is None
    assert begin("f") is None  # forgotten
    store.write(lambda c: access.drop_request(c, "ann", "f"))
    assert begin("f") is None


def test_what_a_service_that_died_had_begun_is_asked_for_again_and_made_once(store: Store) -> None:
    def begin(key: str, by: str = "here") -> access.Answer | None:
        return store.write(lambda c: access.begin_request(c, "ann", key, route="POST /runs", body_sha256="b", by=by))

    assert begin("begun") is begin("made") is begin("elsewhere", "there") is begin("answered") is None
    store.write(lambda c: access.note_made(c, "ann", "made", "r-1"))
    store.write(lambda c: access.answer_request(c, "ann", "answered", status=201, headers={}, body=b""))
    store.write(lambda c: access.drop_open(c, "here"))
    store.write(lambda c: access.drop_request(c, "ann", "made"))
    assert begin("begun") is None
    made, elsewhere, answered = begin("made"), begin("elsewhere"), begin("answered")
    assert made is not None and (made.status, made.made) == (None, "r-1")
    assert elsewhere is not None and (elsewhere.status, elsewhere.made) == (None, None)  # its own service may go on
    assert answered is not None and (answered.status, answered.made) == (201, None)


def test_of_two_services_one_is_first(store: Store) -> None:
    def begin(c: sa.Connection) -> bool:
        return access.begin_request(c, "ann", "k", route="POST /runs", body_sha256="b") is None

    ready, firsts = threading.Barrier(4), list[bool]()

    def service() -> None:
        ready.wait(20)
        firsts.append(store.write(begin))

    racing = [threading.Thread(target=service) for _ in range(4)]
    [thread.start() for thread in racing]
    [thread.join() for thread in racing]
    assert sorted(firsts) == [False, False, False, True]


def test_the_audit_trail_is_not_changed(store: Store) -> None:
    row = {"principal": "p", "action": "a", "target": "t\x00", "request_id": "i", "outcome": "x" * 900}
    store.write(lambda c: access.audit(c, **row))
    assert len(store.read(lambda c: c.execute(sa.select(t.audit.c.outcome)).scalar_one())) == 500
    with pytest.raises(RunFailed, match="never changes"):
        store.write(lambda c: c.execute(sa.text("DELETE FROM audit")))
