"""What the documents name exists: commands, options, make targets, files, extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from jurat.api.cli import app

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "decisions/*.md")


def pages(root: Path) -> list[tuple[str, str]]:
    found = [path for pattern in PAGES for path in sorted(root.glob(pattern))]
    return [(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in found]


def code(text: str) -> list[str]:
    """Lines of fenced blocks and inline code."""
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for block in fenced for line in block.splitlines()] + inline


def commands(node: Any, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command of the command line: its words to the command."""
    out = {prefix: node}
    for name, child in getattr(node, "commands", {}).items():
        out |= commands(child, (*prefix, name))
    return out


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], Any]:
    return commands(typer.main.get_command(app))


def unknown(text: str, known: dict[tuple[str, ...], Any]) -> list[str]:
    """Commands and options named in ``text`` that the command line does not have."""
    wrong = []
    for line in code(text):
        for words in re.findall(r"(?:^|[\s;(&|/])jurat ((?:-{0,2}[\w|.=*'-]+ ?)+)", line):
            path: tuple[str, ...] = ()
            options = []
            for word in words.split():
                alternatives = word.split("|")
                if word.startswith("-"):
                    options.append(word.split("=")[0])
                elif all((*path, each) in known for each in alternatives):
                    path = (*path, alternatives[0])
                elif hasattr(known[path], "commands") and not options:
                    wrong.append(f"{line.strip()!r}: no command {word!r}")
                    break
            parameters = [parameter for node in (known[()], known[path]) for parameter in node.params]
            there = {name for each in parameters for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
            wrong += [f"{line.strip()!r}: no option {option}" for option in options if option not in there]
    return wrong


def test_every_command_and_option_named_exists(root: Path, known: dict[tuple[str, ...], Any]) -> None:
    assert [(page, fault) for page, text in pages(root) for fault in unknown(text, known)] == []


def test_what_does_not_exist_is_seen(known: dict[tuple[str, ...], Any]) -> None:
    assert unknown("`jurat train tiny --set a=1` and `jurat runs ls`", known) == []
    assert len(unknown("`jurat trian tiny`", known)) == 1
    assert len(unknown("```\njurat runs lst   # no\njurat train tiny --steps 3\n```", known)) == 2


def test_every_make_target_named_exists(root: Path) -> None:
    there = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), flags=re.MULTILINE))
    named = {
        (page, target)
        for page, text in pages(root)
        for line in code(text)
        for target in re.findall(r"(?:^|[;&] ?)make ([a-z][a-z-]*)", line)
    }
    assert ("README.md", "train") in named
    assert {(page, target) for page, target in named if target not in there} == set()


def test_every_link_leads_somewhere(root: Path) -> None:
    wrong = []
    for page, text in pages(root):
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not link.startswith(("http:", "https:", "mailto:")) and not (root / page).parent.joinpath(link).exists():
                wrong.append(f"{page}: {link}")
    assert wrong == []


def test_every_extra_named_exists(root: Path) -> None:
    there = set(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page, text in pages(root):
        for extras in re.findall(r"jurat\[([\w,-]+)\]", text):
            assert set(extras.split(",")) <= there, f"{page}: jurat[{extras}]"


def test_the_first_lines_of_the_readme(root: Path) -> None:
    lines = [line.split("#")[0].strip() for line in (root / "README.md").read_text().splitlines()]
    assert [line for line in lines[:6] if line.startswith("make")] == ["make train", "make test"]
