"""Secrets are blotted before they are kept, and taken out of a record that has some."""

from __future__ import annotations

import base64
import dataclasses
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.provenance import environment, record, secrets, versions
from jurat.platform.provenance.records import Ingredients
from jurat.platform.provenance.scrub import scrub
from jurat.platform.provenance.verify import verify
from jurat.platform.runs.store import Store

SECRETS = [
    "AKIAIOSFODNN7EXAMPLE", "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA1cD3eF5", "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH",
    "sk-proj-abcdefghijklmnopqrst", "xoxb-123456789012-abcdef", "jurat_0123456789ab_" + "x" * 43,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnopqrstuv",
    "wJalrXUtnFEMI7K7MDENGbPxRfiCYEXAMPLEKEY7", "pKx92LmQz8RtV4WnB6Yc3Hd5",
]  # fmt: skip
PLAIN = [
    "sha256:" + "0f" * 32, "r-20261130-k3xp", "HuggingFaceTB/SmolLM2-135M-Instruct", "token-mean", "generated:plain",
    "checkpoints/grpo/step-000100/policy/model.safetensors", "AReaL, arXiv 2505.24298, eq. 5", "2026-11-30T20:00:00Z",
    "VerifierVersion2WithALongName", "A word that is quite long: antidisestablishmentarianism", "1234567890" * 4,
    "jurat.verifiers.math:MathVerifierWithTwo2Names", "\\boxed{0.5} 1/2", "=" * 40, "https://example.org/a/b?c=d",
    "/mnt/A1/b2/C3/d4/E5/f6/G7/x", "runs/Q4/K5/v1/B2/X3/y7/W8.jsonl", "/data/of/us/long-name-of-x/A1/b2/c3",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_blotted_wherever_it_stands(secret: str) -> None:
    for text in (secret, f"--key {secret}", f'{{"a": "{secret}"}}', f"x={secret};"):
        assert secret not in secrets.blotted(text), text
    assert secrets.redacted({"a": [{"b": secret}], "n": 1}) == {"a": [{"b": secrets.BLOT}], "n": 1}


def test_random_keys_of_any_alphabet_are_seen() -> None:
    rng = random.Random(7)
    words = [
        base64.b64encode(rng.randbytes(size)).decode().rstrip("=") for size in (18, 24, 32, 48) for _ in range(200)
    ]
    missed = [word for word in words if secrets.blotted(word) == word]
    assert len(missed) <= len(words) // 50, missed


@pytest.mark.parametrize("text", PLAIN)
def test_plain_words_stay(text: str) -> None:
    assert secrets.blotted(text) == text


def test_names_tell() -> None:
    said = {"api_key": "x", "apikey": "y", "auth.token": "z", "db": {"password": "p", "user": "u"}, "tokens": "t", "n_token": 5,
            "aggregation": "token-mean", "secret": "", "per_token": "x", "token": "none", "passwd": "q", "max_new_tokens": "6"}  # fmt: skip
    blot = secrets.BLOT
    assert secrets.redacted(said) == {
        **said, "api_key": blot, "apikey": blot, "auth.token": blot, "db": {"password": blot, "user": "u"}, "passwd": blot,
    }  # fmt: skip
    assert secrets.blotted("postgresql://me:hush@host/db") == f"postgresql://{blot}@host/db"
    assert secrets.words(["train", "--api-key", "hush", "--set", "sampling.max_new_tokens=6", "TOKEN=hush", "x"]) == [
        "train", "--api-key", blot, "--set", "sampling.max_new_tokens=6", f"TOKEN={blot}", "x",
    ]  # fmt: skip


def test_what_a_recipe_goes_on_from_stays_and_a_key_in_its_place_does_not() -> None:
    names = ["/mnt/vol/aB3xK9pQ2zR7/M4", "DPO-8B-Q4-K5-v1-b2-X3", "lab/aB3xK9pQ2zR7-M4-w"]
    recipe = {"model": names[1], "data": {"train": {"source": names[0]}}, "verifiers": names,
              "stages": [{"data": {"held_out": {"source": names[2]}}}]}  # fmt: skip
    assert secrets.redacted(recipe) == recipe
    assert secrets.redacted(names[0], "data.train.source") == names[0]  # as a parameter that is searched for
    assert secrets.redacted({"other": names}) == {"other": [secrets.BLOT] * 3}
    for secret in SECRETS:
        assert secrets.redacted({"model": secret, "verifiers": [secret]}) == {
            "model": secrets.BLOT, "verifiers": [secrets.BLOT],
        }  # fmt: skip
    assert secrets.redacted({"source": f"s3://key:{SECRETS[8]}@host/data"}) == {
        "source": f"s3://{secrets.BLOT}@host/data"
    }


def _repository(folder: Path) -> None:
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *words], check=True)


def test_a_patch_is_kept_without_secrets_and_not_at_all_with_a_private_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _repository(tmp_path)
    (tmp_path / "a.py").write_text(f'API_KEY = "hush-hush"\nkeep = "me"\nx = "{SECRETS[0]}"\n')
    kept = environment.describe(tmp_path, package=tmp_path).patch
    assert b"hush" not in kept and SECRETS[0].encode() not in kept and b'keep = "me"' in kept
    (tmp_path / "b.py").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    found = environment.describe(tmp_path, package=tmp_path)
    assert (found.patch, found.attrs["patch_left_out"]) == (b"", "it holds a private key")
    monkeypatch.setenv("JURAT_KEEP_SECRETS", "1")
    assert (
        b"OPENSSH" in environment.describe(tmp_path, package=tmp_path).patch
        and b"hush-hush" in environment.describe(tmp_path, package=tmp_path).patch
    )


def _made(patch: bytes, argv: list[str]) -> Ingredients:
    here = environment.describe(Path("/nowhere"))
    held = dataclasses.replace(here, digest="sha256:env", patch=patch, attrs={**here.attrs, "argv": argv})
    return Ingredients(reward="sha256:r", spec={}, verifiers=(), datasets={}, environment=held,
                       model="", model_name="")  # fmt: skip


def test_scrub(store: Store, recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "/mnt/aB3xK9pQ2zR7/M4/vol"  # looks like a secret, and a resume needs it
    meta = {"note": SECRETS[0], "base": base}
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta=meta, run_id="r",
                           tags={"api_key": "hush", "good": "yes"})  # fmt: skip
    read = lambda: store.read(lambda c: str(record.read(c, store.run("r"))))
    assert "hush" not in read() and SECRETS[0] not in read()  # was never kept
    assert store.run("r").meta == {"note": secrets.BLOT, "base": base, "home": store.home_id}
    monkeypatch.setenv("JURAT_KEEP_SECRETS", "1")  # a record of before there was this
    store.write(lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == run.pk).values(meta=meta)))
    store.write(lambda c: c.execute(sa.update(t.run_label).where(t.run_label.c.key == "api_key").values(text="hush")))
    store.start_segment(run, first_step=0, made_of=_made(b'token = "hush-hush"\n+keep = 1\n', ["--password", "hush"]))
    store.add_event(run, "said", {"secret": "hush"})
    monkeypatch.delenv("JURAT_KEEP_SECRETS")
    done = store.write(lambda c: scrub(c, store.run("r")))
    assert set(done.changed) == {"meta", "tag api_key", "environment sha256:env..."}
    said = next(event for event in store.events(run) if event.kind == "said")
    assert done.left == (f"event {said.seq} (said)",)
    assert read().count("hush") == 1 and "keep = 1" not in read() and store.run("r").meta["base"] == base
    patch = store.read(lambda c: c.execute(sa.select(t.blob.c.content)).scalars().all())
    assert patch == [b'token = "[redacted]"\n+keep = 1\n']
    assert store.events(run)[-1].kind == "scrubbed" and verify(store, store.run("r")).faults == ()
    again = store.write(lambda c: scrub(c, store.run("r")))
    assert again.changed == () and again.left == done.left
    assert store.read(lambda c: versions.versions(c)) == []
