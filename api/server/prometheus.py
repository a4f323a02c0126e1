"""``GET /metrics``: what the service does, in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Those of their own label: anybody may send a method that he made up, and each label is kept for ever."""

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float]
"""Values by labels."""


@dataclass(slots=True)
class Requests:
    """Counts since the service began. Added to on the event loop alone, told from any thread."""

    answers: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """By method, route template and status."""
    buckets: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By method and route template: requests by the first bound that they kept; the last is without one."""
    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    """Recorded, by route template."""

    def answered(self, method: str, route: str, status: int, seconds: float, rows: int) -> None:
        """``seconds``: until the first byte of the answer, so that a stream counts as its beginning."""
        method = method if method in METHODS else "other"
        self.answers[method, route, status] += 1
        self.buckets.setdefault((method, route), [0] * (len(BOUNDS) + 1))[bisect_left(BOUNDS, seconds)] += 1
        self.seconds[method, route] += seconds  # type: ignore[assignment]
        if rows and status < 400:
            self.rows[route] += rows

    def exposition(self) -> Iterator[str]:
        answers: dict[Labels, float] = {
            (("method", method), ("route", route), ("status", str(status))): n
            for (method, route, status), n in list(self.answers.items())
        }
        yield from family("jurat_http_requests_total", "counter", "Answers.", answers)
        rows: dict[Labels, float] = {(("route", route),): n for route, n in list(self.rows.items())}
        yield from family("jurat_ingest_rows_total", "counter", "Metric points and facts that were recorded.", rows)
        name = "jurat_http_request_seconds"
        yield from family(name, "histogram", "Until the first byte of the answer.", {})
        for (method, route), counts in list(self.buckets.items()):
            labels, total = (("method", method), ("route", route)), 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
                total += count
                yield line(f"{name}_bucket", (*labels, ("le", bound)), total)
            yield line(f"{name}_sum", labels, self.seconds[method, route])
            yield line(f"{name}_count", labels, total)


def family(name: str, kind: str, about: str, samples: Samples) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples.items():
        yield line(name, labels, value)


def line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{told}}} {float(value):.10g}" if told else f"{name} {float(value):.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
