"""Filters: a subset of AIP-160, read into a tree and compiled to bound parameters. Nothing a user writes becomes SQL.

    filter  = or ;             or  = and { "OR" and } ;        and = not { "AND" not } ;
    not     = [ "NOT" ] not | "(" or ")" | term ;
    term    = field ( "=" | "!=" | "<" | "<=" | ">" | ">=" | ":" | "LIKE" ) value | field "IN" "[" value { "," value } "]" ;
    field   = word { "." ( word | quoted ) } ;                 value = number | quoted | word ;

A term is true or false, never unknown: where the field is absent it is false, but ``!=`` is true.
``:`` asks whether a text holds another; ``LIKE`` takes ``%``, ``_`` and ``\\`` before them. Both, and ``=`` of no other
kind, ignore case. Words may hold letters, digits and ``_ - / @``.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from jurat.api.server.problems import Problem
from jurat.platform.db.keyset import Key
from jurat.platform.errors import nearest

MAX_LENGTH = 4096
"""Bytes of UTF-8."""
MAX_TERMS = 64
MAX_DEPTH = 16
MAX_LISTED = 100
"""Values of one IN."""
MAX_WILDCARDS = 8
"""Of one LIKE: matching takes time that grows with each."""

NO_TIME = 'expected a time, as in "2026-11-30T12:00:00Z", or microseconds since 1970'

Op = Literal["=", "!=", "<", "<=", ">", ">=", ":", "LIKE", "IN"]
WHOLE = frozenset({"=", "!=", "IN"})
"""Operators that compare whole values."""
Value = str | float | int | bool | None


# ---- the tree ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    field: tuple[str, ...]
    op: Op
    values: tuple[Value, ...]
    """One, or those of IN."""
    at: int
    """Where it begins, in characters."""
    value_at: int
    quoted: bool
    """The first value was in quotes: a text, whatever it looks like."""


@dataclass(frozen=True, slots=True)
class Not:
    item: Tree


@dataclass(frozen=True, slots=True)
class And:
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Or:
    items: tuple[Tree, ...]


Tree = Term | Not | And | Or


def fault(text: str, at: int, said: str, kind: str = "bad-filter", parameter: str = "filter") -> Problem:
    """What is wrong, with the place under a caret."""
    begin = max(0, at - 40)
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text[begin : at + 40])
    detail = f"{said}, at character {at + 1}\n{shown}\n{' ' * (at - begin)}^"
    return Problem(kind, detail, errors=[{"pointer": parameter, "code": kind, "message": said}])


# ---- reading -----------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w/@]))
    | (?P<op><=|>=|!=|=|<|>|:)
    | (?P<mark>[()\[\],.])
    | (?P<word>[A-Za-z0-9_][\w/@-]*)
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | '(?P<single>(?:[^'\\]|\\.)*)'
    )""",
    re.X | re.A,
)
_ESCAPED = re.compile(r"\\(.)", re.S)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise fault(text, start, "an unexpected character" if text[start] not in "\"'" else "a quote is not closed")
        kind = match.lastgroup or ""
        value = match.group(kind)
        if kind in ("double", "single"):
            found.append(_Token("quoted", _ESCAPED.sub(r"\1", value), match.start(kind) - 1))
        else:
            found.append(_Token(kind, value, match.start(kind)))
        at = match.end()
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.place = 0
        self.terms = 0

    def peek(self) -> _Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else _Token("end", "", len(self.text.rstrip()))

    def take(self) -> _Token:
        token = self.peek()
        self.place += 1
        return token

    def keyword(self, word: str) -> bool:
        token = self.peek()
        if token.kind == "word" and token.text.upper() == word:
            self.place += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        token = self.take()
        if (token.kind, token.text) != ("mark", mark):
            raise self.wrong(token, f"expected {mark!r}")

    def wrong(self, token: _Token, said: str) -> Problem:
        return fault(self.text, token.at, said if token.kind != "end" else f"{said}, but the filter ends")

    def whole(self) -> Tree:
        tree = self.any_of(0)
        if self.peek().kind != "end":
            raise self.wrong(self.peek(), "expected AND, OR or the end")
        return tree

    def any_of(self, depth: int) -> Tree:
        items = [self.all_of(depth)]
        while self.keyword("OR"):
            items.append(self.all_of(depth))
        return items[0] if len(items) == 1 else Or(tuple(items))

    def all_of(self, depth: int) -> Tree:
        items = [self.negated(depth)]
        while self.keyword("AND"):
            items.append(self.negated(depth))
        return items[0] if len(items) == 1 else And(tuple(items))

    def negated(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise self.wrong(self.peek(), f"nested more than {MAX_DEPTH} deep")
        if self.keyword("NOT"):
            return Not(self.negated(depth + 1))
        token = self.peek()
        if (token.kind, token.text) == ("mark", "("):
            self.take()
            tree = self.any_of(depth + 1)
            self.expect(")")
            return tree
        return self.term()

    def term(self) -> Term:
        self.terms += 1
        first = self.peek()
        if self.terms > MAX_TERMS:
            raise self.wrong(first, f"more than {MAX_TERMS} terms")
        field = read_field(self)
        token = self.take()
        value_at = self.peek().at
        if token.kind == "op":
            values = [self.value()]
        elif token.kind == "word" and token.text.upper() == "LIKE":
            values = [self.value()]
        elif token.kind == "word" and token.text.upper() == "IN":
            values = self.listed()
        else:
            raise self.wrong(token, "expected one of = != < <= > >= : LIKE IN")
        return Term(field, token.text.upper(), tuple(v for v, _ in values), first.at, value_at, values[0][1])  # type: ignore[arg-type]

    def listed(self) -> list[tuple[Value, bool]]:
        self.expect("[")
        values = [self.value()]
        while (self.peek().kind, self.peek().text) == ("mark", ","):
            self.take()
            values.append(self.value())
            if len(values) > MAX_LISTED:
                raise self.wrong(self.peek(), f"more than {MAX_LISTED} values")
        self.expect("]")
        return values

    def value(self) -> tuple[Value, bool]:
        token = self.take()
        if token.kind == "number":
            number = float(token.text) if re.search(r"[.eE]", token.text) else int(token.text)
            if not math.isfinite(number) or (abs(number) > 1 << 62 and isinstance(number, int)):
                raise self.wrong(token, "the number is too large")
            return number, False
        if token.kind == "quoted":
            return token.text, True
        if token.kind == "word":
            named: dict[str, Value] = {"true": True, "false": False, "null": None}
            return named.get(token.text.lower(), token.text), False
        raise self.wrong(token, "expected a value")


def read_field(reader: _Reader) -> tuple[str, ...]:
    token = reader.take()
    if token.kind != "word" or token.text.upper() in ("AND", "OR", "NOT", "IN", "LIKE"):
        raise reader.wrong(token, "expected the name of a field")
    parts = [token.text]
    while (reader.peek().kind, reader.peek().text) == ("mark", "."):
        reader.take()
        token = reader.take()
        if token.kind not in ("word", "quoted", "number"):
            raise reader.wrong(token, "expected the rest of the field's name")
        parts.append(token.text)
    return tuple(parts)


def parse(text: str) -> Tree | None:
    """The tree of a filter; None for one that is empty. Raises Problem, which shows the place."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_LENGTH:
        raise fault(text[:80], 0, f"the filter is longer than {MAX_LENGTH} bytes")
    if "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise fault(text, 0, "the filter holds a character that no text has")
    return _Reader(text).whole() if text.strip() else None


def parse_order(text: str) -> list[tuple[tuple[str, ...], bool, int]]:
    """``field [asc|desc], ...`` as (field, descending, where). Raises Problem."""
    try:
        if len(text) > 512:
            raise fault(text[:80], 0, "the order is longer than 512 characters")
        reader, made = _Reader(text), []
        while reader.peek().kind != "end":
            at = reader.peek().at
            field = read_field(reader)
            descending = reader.keyword("DESC")
            if not descending:
                reader.keyword("ASC")
            made.append((field, descending, at))
            if reader.peek().kind != "end":
                reader.expect(",")
        if len(made) > 4:
            raise fault(text, made[4][2], "more than four keys")
        return made
    except Problem as problem:
        raise Problem(
            "bad-order",
            problem.detail,
            errors=[{**e, "pointer": "order_by", "code": "bad-order"} for e in problem.errors],
        ) from None


# ---- compiling ---------------------------------------------------------------------------------------------------

Kind = Literal["text", "number", "time", "flag"]


@dataclass(frozen=True, slots=True)
class Operand:
    """What a field is in SQL."""

    column: sa.ColumnElement[Any]
    kind: Kind
    among: tuple[str, ...] = ()
    """All values that it may have; (): any."""


class Fields:
    """The allow-list of one kind of resource: names as they are, and families such as ``metrics.NAME``."""

    def __init__(
        self,
        names: Mapping[str, Operand],
        families: Mapping[str, Callable[[tuple[str, ...]], Operand | None]] | None = None,
    ) -> None:
        self.names, self.families = names, families or {}

    def find(
        self, field: tuple[str, ...], text: str, at: int, *, kind: str = "bad-filter", parameter: str = "filter"
    ) -> Operand:
        found = self.names.get(".".join(field))
        if found is None and len(field) > 1 and field[0] in self.families:
            found = self.families[field[0]](field[1:])
        if found is None:
            known = [*self.names, *(f"{name}.NAME" for name in self.families)]
            said = f"there is no field of that name.{nearest('.'.join(field), known)} Fields: {', '.join(known)}"
            raise fault(text, at, said, kind, parameter)
        return found


def compile_filter(text: str, fields: Fields) -> sa.ColumnElement[bool] | None:
    """The condition of a filter; None for an empty one. Every value is a bound parameter. Raises Problem."""
    tree = parse(text)
    return None if tree is None else _compile(tree, text, fields)


def _compile(tree: Tree, text: str, fields: Fields) -> sa.ColumnElement[bool]:
    if isinstance(tree, Not):
        return sa.not_(_compile(tree.item, text, fields))
    if isinstance(tree, And):
        return sa.and_(*(_compile(item, text, fields) for item in tree.items))
    if isinstance(tree, Or):
        return sa.or_(*(_compile(item, text, fields) for item in tree.items))
    operand = fields.find(tree.field, text, tree.at)
    return _condition(operand, tree, text)


def _condition(operand: Operand, term: Term, text: str) -> sa.ColumnElement[bool]:
    column, kind = operand.column, operand.kind
    if None in term.values:
        if term.op not in ("=", "!="):
            raise fault(text, term.value_at, "null is compared by = and != alone")
        return column.is_(None) if term.op == "=" else column.is_not(None)
    values = [_typed(kind, value, term, text) for value in term.values]
    if operand.among and term.op in WHOLE:
        for value in values:
            refuse_absent(value, operand.among, text, term.value_at)
    there = column.is_not(None)
    if term.op == "IN":
        return sa.and_(there, column.in_(values))
    if term.op in (":", "LIKE"):
        if kind != "text" or not isinstance(values[0], str):
            raise fault(text, term.value_at, f"{term.op} compares texts")
        return sa.and_(there, _like(column, values[0], whole=term.op == "LIKE", text=text, at=term.value_at))
    compare: dict[str, Callable[[object], sa.ColumnElement[bool]]] = {
        "=": column.__eq__, "!=": column.__ne__, "<": column.__lt__, "<=": column.__le__, ">": column.__gt__,
        ">=": column.__ge__,
    }  # type: ignore[dict-item]  # fmt: skip
    if kind == "flag" and term.op not in ("=", "!="):
        raise fault(text, term.value_at, "a flag is compared by = and != alone")
    made = compare[term.op](values[0])
    return sa.or_(sa.not_(there), made) if term.op == "!=" else sa.and_(there, made)


def _like(column: sa.ColumnElement[Any], value: str, *, whole: bool, text: str, at: int) -> sa.ColumnElement[bool]:
    if whole:
        refuse_pattern(value, text, at)
        pattern = value
    else:
        pattern = "%" + re.sub(r"([\\%_])", r"\\\1", value) + "%"
    lowered = sa.func.lower(sa.cast(column, sa.Text))
    return lowered.like(sa.func.lower(sa.literal(pattern, sa.Text)), escape="\\")


def refuse_absent(value: Value, among: Sequence[str], text: str, at: int) -> None:
    """Raises Problem for a value that its field never has: the term would silently be false of all."""
    if value not in among:
        said = f"there is no {str(value)[:80]!r}.{nearest(str(value)[:80], among)} There are {', '.join(among)}"
        raise fault(text, at, said)


def refuse_pattern(pattern: str, text: str, at: int) -> None:
    """Raises Problem for a LIKE that would take long, or that SQL cannot read."""
    if len(re.findall(r"(?<!\\)[%_]", pattern)) > MAX_WILDCARDS:
        raise fault(text, at, f"more than {MAX_WILDCARDS} wildcards")
    if re.search(r"(?:^|[^\\])(?:\\\\)*\\$", pattern):
        raise fault(text, at, "the pattern ends in a lone backslash")


def _typed(kind: Kind, value: Value, term: Term, text: str) -> Value:
    if kind == "text":
        if isinstance(value, str):
            return value
        return str(value).lower() if isinstance(value, bool) else str(value)
    if kind == "flag":
        if isinstance(value, bool):
            return value
        raise fault(text, term.value_at, "expected true or false")
    if kind == "time":
        if isinstance(value, str):
            try:
                return micros(value)
            except ValueError:
                pass
        elif isinstance(value, int) and not isinstance(value, bool):
            return value
        raise fault(text, term.value_at, NO_TIME)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise fault(text, term.value_at, "expected a number")


def micros(text: str) -> int:
    """UTC epoch microseconds of an ISO 8601 time; without an offset it is UTC. Raises ValueError."""
    found = datetime.datetime.fromisoformat(text)
    found = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    return round(found.timestamp() * 1_000_000)


def terms(tree: Tree | None) -> Iterator[Term]:
    """Every term of a tree, from left to right."""
    if isinstance(tree, Term):
        yield tree
    elif isinstance(tree, Not):
        yield from terms(tree.item)
    elif isinstance(tree, (And, Or)):
        for item in tree.items:
            yield from terms(item)


# ---- order ---------------------------------------------------------------------------------------------


def compile_order(text: str, fields: Fields, *, default: Sequence[Key], last: Key) -> list[Key]:
    """The keys of ``order_by``, ``last`` breaking ties. Raises Problem."""
    keys = []
    for field, descending, at in parse_order(text):
        operand = fields.find(field, text, at, kind="bad-order", parameter="order_by")
        keys.append(Key(operand.column, descending))
    return [*(keys or default), last]
