"""Recipes stay small enough to read."""

from __future__ import annotations

from pathlib import Path

from jurat.platform.config import key_paths, parts_of
from jurat.platform.recipe import Recipe, Stage


def test_fewer_than_220_keys_to_learn() -> None:
    """Each part once, every alternative counted; a stage repeats keys of the recipe (decisions/0007)."""
    keys = [f"{part.__name__}.{key}" for part in parts_of(Recipe) if part is not Stage for key in part.model_fields]
    assert len(keys) < 220, len(keys)


def test_a_key_path_is_listed_once() -> None:
    keys = key_paths(Recipe)
    assert len(set(keys)) == len(keys)


def test_batch_words() -> None:
    """Prompts, samples and tokens: no mini, micro or global batch sizes but tokens_per_microbatch."""
    assert [key for key in key_paths(Recipe) if "batch" in key and not key.endswith("tokens_per_microbatch")] == []


def test_no_package_host_or_machine_path_in_the_project(root: Path) -> None:
    """Where packages come from and where a checkout lies is the user's to say."""
    texts = [
        *root.glob("*.toml"),
        *root.glob("*.txt"),
        *root.glob("*.md"),
        root / "Makefile",
        *(root / ".ci").iterdir(),
    ]
    hosts = ("pypi.org/simple", "download.pytorch", "--extra-index-url", "/root/", "/home/", "/opt/")
    wrong = [
        f"{path.name}: {host}"
        for path in texts
        if path.is_file()
        for host in hosts
        if host in path.read_text(encoding="utf-8")
    ]
    assert wrong == []
