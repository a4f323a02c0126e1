"""Digits that belong to one number: thousands groups, decimal commas, spaces. Decided once, on the tokens."""

from __future__ import annotations

import re

Token = tuple[str, str, int]
"""(kind, value, space before it); the kinds are listed in `lexer.py`."""

_DIGITS3 = re.compile(r"\d{3}(?:\.\d*)?\Z")
_LEADING = re.compile(r"[1-9]\d{0,2}\Z")
_POINT_GROUPS = re.compile(r"[1-9]\d{0,2}\.\d{3}")
_POINT_GROUP = re.compile(r"\.\d{3}")


def join_digits(tokens: list[Token], commas: str) -> list[Token]:
    """Joins the digit groups of one number; see `tokenize` for `commas`."""
    out: list[Token] = []
    depth, i, size = 0, 0, len(tokens)
    while i < size:
        token = tokens[i]
        kind, value, space = token
        if kind in ("open", "close") and value not in ("{", "}"):
            depth += 1 if kind == "open" else -1
        if kind != "num":
            out.append(token)
            i += 1
            continue
        parts, i, separator = [value], i + 1, ""
        if _POINT_GROUPS.fullmatch(value):  # 1.234.567
            groups = i
            while (
                groups < size
                and tokens[groups][0] == "num"
                and not tokens[groups][2]
                and _POINT_GROUP.fullmatch(tokens[groups][1])
            ):
                groups += 1
            if groups > i:
                parts = ["".join(t[1] for t in tokens[i - 1 : groups]).replace(".", "")]
                i = groups
                separator = "space"
        while i < size:
            step = _separator(tokens, i, parts, separator, depth, commas)
            if not step:
                break
            separator, jump = step
            parts.append(tokens[i + jump - 1][1])
            i += jump
        out.append(("num", _joined(parts, separator), space))
    return out


def _separator(
    tokens: list[Token], i: int, parts: list[str], previous: str, depth: int, commas: str
) -> tuple[str, int] | None:
    """(kind of separator, tokens up to and including the next digits) when the number goes on at `i`."""
    kind, value, space = tokens[i]
    if "." in parts[-1] and not (previous == "" and "." in parts[0] and _european(tokens, i, parts)):
        return None
    grouping = _LEADING.match(parts[0]) and (len(parts) == 1 or _DIGITS3.match(parts[-1]))
    if previous == "decimal":
        return None
    if kind == "num":  # a space between digits
        if grouping and previous in ("", "space") and _DIGITS3.match(value) and space in (1, 2):
            return "space", 1
        return None
    if kind == "open" and value == "{" and [t[:2] for t in tokens[i + 1 : i + 3]] == [("sep", ","), ("close", "}")]:
        following = tokens[i + 3 : i + 4]
        if following and following[0][0] == "num" and not following[0][2]:
            group = grouping and _DIGITS3.match(following[0][1])
            if group and previous in ("", "comma"):
                return "comma", 4
            return ("decimal", 4) if previous in ("", "space") and "." not in following[0][1] else None
        return None
    if kind != "sep" or value != "," or i + 1 >= len(tokens) or tokens[i + 1][0] != "num":
        return None
    following_value, following_space = tokens[i + 1][1], tokens[i + 1][2]
    if following_space == 3 and grouping and previous in ("", "comma") and _DIGITS3.match(following_value):
        return "comma", 2
    if following_space or space or commas == "list":
        return None
    if commas == "decimal":
        return (
            ("decimal", 2)
            if previous in ("", "space")
            and following_value.isdigit()
            and (i + 2 >= len(tokens) or tokens[i + 2][0] != "sep")
            else None
        )
    if (
        grouping
        and previous in ("", "comma")
        and _DIGITS3.match(following_value)
        and (depth == 0 or following_value == "000")
    ):
        return "comma", 2
    last = i + 2 >= len(tokens) or tokens[i + 2][0] != "sep"
    if depth == 0 and previous == "space" and following_value.isdigit() and len(following_value) != 3 and last:
        return "decimal", 2
    if depth == 0 and previous == "" and parts[0] == "0" and following_value.isdigit() and last:
        return "decimal", 2
    if (
        depth == 0
        and previous == ""
        and re.fullmatch(r"\d{1,3}(\.\d{3})+", parts[0])
        and following_value.isdigit()
        and last
    ):
        return "decimal", 2
    return None


def _european(tokens: list[Token], i: int, parts: list[str]) -> bool:
    """`1.234,5`: points group, the comma is decimal."""
    return bool(re.fullmatch(r"\d{1,3}\.\d{3}", parts[0])) and tokens[i][:2] in (("sep", ","), ("open", "{"))


def _joined(parts: list[str], separator: str) -> str:
    if separator == "decimal":
        return "".join(parts[:-1]).replace(".", "") + "." + parts[-1]
    return "".join(parts)
