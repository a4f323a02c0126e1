"""The drift report as one page of HTML: no script, no link, nothing loaded. Whatever models and data wrote is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from jurat.api.cli_rescore import name_of, score, summary
from jurat.api.terminal import clean

_STYLE = """\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:.5rem 0}th,td{border:1px solid #888;padding:.2rem .6rem;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #888;
padding:.5rem;max-height:20rem;overflow:auto}details{margin:.5rem 0}summary{cursor:pointer}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
"""As the page says of itself, and as the service sends with it."""


def page(report: Mapping[str, Any]) -> str:
    title = f"{name_of(report['from'])} to {name_of(report['to'])}: {report['verdict']['word']}"
    body = [
        f"<h1>{_text(title)}</h1>",
        f"<p>Re-scoring {_text(report['id'])} of {_text(', '.join(run['id'] for run in report['runs']))}</p>",
        _table(("", ""), summary(report)),
        "<h2>Statuses</h2>",
        _table(("was", "is", "rollouts"), [(was, now, n) for was, row in report["statuses"].items() for now, n in row.items()]),
        "<h2>Where it changes</h2>",
    ]  # fmt: skip
    for kind, rows in report["strata"].items():
        shown = [
            (row["stratum"], row["n"], row["up"], row["down"], f"{row['flip_rate']:.3%}",
             f"{row['low']:.3%} to {row['high']:.3%}", "" if row["mean_shift"] is None else f"{row['mean_shift']:+.4f}")
            for row in rows
        ]  # fmt: skip
        body.append(_table((kind, "n", "0 to 1", "1 to 0", "flips", "95 %", "mean shift"), shown))
    body.append(f"<h2>Largest disagreements ({len(report['worst'])})</h2>")
    body += [_disagreement(each) for each in report["worst"]]
    affected = report["affected"]
    body.append("<h2>Affected by the old version</h2>")
    body.append(_table(("run",), [(run,) for run in affected["runs"]]))
    rows = [(each["run"], each["step"], each["digest"]) for each in affected["checkpoints"]]
    body.append(_table(("run", "step", "checkpoint"), rows))
    body.append("<h2>How it is judged</h2>")
    limits = report["verdict"]["thresholds"]
    body.append(
        _table(("metric", *limits), [(name, *(limits[word][name] for word in limits)) for name in limits["minor"]])
    )
    body += [f"<p>Note: {_text(fault)}</p>" for fault in report["faults"]]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{escape(POLICY)}"><meta name="viewport" content="width=device-width"><title>{_text(title)}</title>'
        f"<style>{_STYLE}</style></head><body><main>\n" + "\n".join(body) + "\n</main></body></html>\n"
    )


def _disagreement(each: Mapping[str, Any]) -> str:
    said = f"{each['rollout']}: {score(each['old'])} to {score(each['new'])}, step {each['step'] + 1} of {each['run']}"
    keys = ("status", "score", "read", "why", "certified", "flags", "evidence")
    cut = f" (the last part: {each['text_cut']} characters are cut)" if each["text_cut"] else ""
    return (
        f"<details><summary>{_text(said)}</summary><p>Reference</p><pre>{_text(each['reference'])}</pre>"
        f"<p>Prompt</p><pre>{_text(each['prompt'])}</pre><p>Answer{cut}</p><pre>{_text(each['text'])}</pre>"
        + _table(("", "old", "new"), [(key, each["old"][key], each["new"][key]) for key in keys])
        + "</details>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    top = "".join(f'<th scope="col">{_text(name)}</th>' for name in head)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'<td class="n">{value:g}</td>' if number else f"<td>{_text(value)}</td>"


def _text(value: Any) -> str:
    """Escaped, and what would turn the direction of text or hide in it is shown."""
    return escape(clean("" if value is None else value))
