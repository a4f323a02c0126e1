"""Characters: what a text may hold, and one spelling for each sign.

`canonical` maps Unicode to LaTeX or ASCII by an explicit whitelist, removes dollars and outer markup, and refuses
characters that can deceive (NUL, lone surrogates, bidirectional overrides). It never changes what the mathematics
says; macros are the lexer's work.
"""

from __future__ import annotations

import re
import unicodedata

from jurat.verifiers.math.limits import MAX_ANSWER_CHARS, TooLarge, Unparseable

_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufff9-\uffff]"
)

_GREEK = {
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "δ": "delta",
    "ε": "epsilon",
    "ϵ": "epsilon",
    "ζ": "zeta",
    "η": "eta",
    "θ": "theta",
    "ϑ": "theta",
    "ι": "iota",
    "κ": "kappa",
    "λ": "lambda",
    "μ": "mu",
    "ν": "nu",
    "ξ": "xi",
    "ρ": "rho",
    "σ": "sigma",
    "τ": "tau",
    "υ": "upsilon",
    "φ": "phi",
    "ϕ": "phi",
    "χ": "chi",
    "ψ": "psi",
    "ω": "omega",
    "Γ": "Gamma",
    "Δ": "Delta",
    "Θ": "Theta",
    "Λ": "Lambda",
    "Ξ": "Xi",
    "Σ": "Sigma",
    "Φ": "Phi",
    "Ψ": "Psi",
    "Ω": "Omega",
    "π": "pi",
    "Π": "Pi",
    "∞": "infty",
    "√": "sqrt",
    "×": "times",
    "·": "cdot",
    "⋅": "cdot",
    "∙": "cdot",
    "•": "cdot",
    "÷": "div",
    "≤": "le",
    "≥": "ge",
    "⩽": "le",
    "⩾": "ge",
    "≦": "le",
    "≧": "ge",
    "≠": "ne",
    "≈": "approx",
    "≅": "cong",
    "≡": "equiv",
    "∼": "sim",
    "±": "pm",
    "∓": "mp",
    "∪": "cup",
    "∩": "cap",
    "∈": "in",
    "∉": "notin",
    "∅": "emptyset",
    "⊂": "subset",
    "⊆": "subseteq",
    "∖": "setminus",
    "→": "to",
    "⇒": "Rightarrow",
    "∑": "sum",
    "∏": "prod",
    "∫": "int",
    "∂": "partial",
    "∇": "nabla",
    "∠": "angle",
    "△": "triangle",
    "°": "degree",
    "º": "degree",
    "˚": "degree",
    "…": "ldots",
    "⋯": "ldots",
    "⌊": "lfloor",
    "⌋": "rfloor",
    "⌈": "lceil",
    "⌉": "rceil",
    "⟨": "langle",
    "⟩": "rangle",
    "〈": "langle",
    "〉": "rangle",
    "∧": "land",
    "∨": "lor",
    "⊥": "perp",
    "∥": "parallel",
    "∀": "forall",
    "∃": "exists",
    "¢": "cent",
    "∣": "mid",
    "⋆": "star",
    "∘": "circ",
}
_PLAIN = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "‒": "-", "﹣": "-", "➖": "-", "➕": "+", "✕": "*", "∗": "*",
    "⁄": "/", "∕": "/",
    "“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "′": "'",
    "″": "''", "‴": "'''", "`": " ", "´": "'", "、": ",", "。": ".", "，": ",",
    "；": ";", "：": ":", "（": "(", "）": ")", "［": "[", "］": "]", "｛": "\\{",
    "｝": "\\}", "＝": "=", "＜": "<", "＞": ">",
    "％": "%", "﹪": "%", "＋": "+", "－": "-", "＊": "*", "／": "/", "＾": "^",
    "＿": "_", "｜": "|", "∶": ":", "۔": ".",
    "【": "[", "】": "]",
    "€": "\\euro ", "£": "\\pounds ", "¥": "\\yen ", "￥": "\\yen ", "₹": "\\rupee ", "ℝ": "\\mathbb{R}",
    "ℤ": "\\mathbb{Z}",
    "ℚ": "\\mathbb{Q}", "ℕ": "\\mathbb{N}", "ℂ": "\\mathbb{C}", "ℓ": "l", "∛": "\\sqrt[3]", "∜": "\\sqrt[4]",
    "ℯ": "e", "ⅈ": "i",
    "或": " \\text{or} ", "和": " \\text{and} ", "且": " \\text{and} ", "\u0305": "\\recurring ", "\u2329": "\\langle ",
    "\u232a": "\\rangle ",
}  # fmt: skip
_SPACES = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2007\u2008\u205f\u3000"
_THIN = "\u2006\u2009\u200a\u202f"
_REMOVED = "\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u00ad\ufeff\ufe0f\ufe0e"
_SUPERSCRIPT = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
_SUBSCRIPT = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙₖₓ", "0123456789+-=()nkx", strict=True))

_TABLE: dict[int, str] = {ord(k): f"\\{v} " for k, v in _GREEK.items()}
_TABLE |= {ord(k): v for k, v in _PLAIN.items()}
_TABLE |= dict.fromkeys(map(ord, _SPACES), " ")
_TABLE |= dict.fromkeys(map(ord, _THIN), "\\,")
_TABLE |= dict.fromkeys(map(ord, _REMOVED), "")

_RUNS = re.compile(
    "(?P<sup>[" + "".join(_SUPERSCRIPT) + "]+)|(?P<sub>[" + "".join(_SUBSCRIPT) + "]+)|(?P<vulgar>[¼-¾⅐-⅞↉])"
)
_ODD = re.compile(r"[^\x09-\x7e]")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z{}%$,;!])")
_DOLLARS = re.compile(r"(?<!\\)\$")
_MANGLED = re.compile(r"\\?\x0c(?=rac\b|rac[^a-z])")
_SPACE = re.compile(r"\s+")
_CHOOSE = re.compile(
    r"(?<![\w}])(?:\{\s*\})?\s*[_^]\s*\{?\s*(\w{1,6})\s*\}?\s*(?:C|\\mathrm\{C\}|\\text\{C\})\s*_\s*\{?\s*(\w{1,6})\s*\}?(?![\w])"
)
_APOSTROPHES = re.compile(r"(?<=\d)'(?=\d{3}(?!\d))")
_US_DOLLAR = re.compile(r"\bUS\s?\\?\$")
_BASE = re.compile(r"\(\s*base\s+(\w+)\s*\)")
_MODULO = re.compile(
    r"\(\s*(?:\\(?:text|mathrm|operatorname)\s*\{\s*mod\s*\}|\\?mod\b)\s*(?:\\[,; ]\s*)?(\w{1,9})\s*\)"
)
_TAGS = re.compile(r"</?(?:b|i|u|em|strong|span|p|sup|code|mark|center)(?:\s[^<>]{0,80})?>", re.IGNORECASE)
_BOLD = re.compile(r"(?<![\w)\]}])\*\*([^*]{1,400})\*\*(?![\w(])")


def canonical(raw: str) -> str:
    """One spelling of a bare answer.

    Raises:
        TooLarge: longer than `MAX_ANSWER_CHARS`.
        Unparseable: forbidden or unknown characters, or nothing left.
    """
    if len(raw) > MAX_ANSWER_CHARS:
        raise TooLarge("length")
    text = raw
    if "\x0c" in text:  # "\f" of "\frac" eaten by an unescaped string literal
        text = _MANGLED.sub(r"\\f", text)
    if _FORBIDDEN.search(text):
        raise Unparseable("forbidden_character")
    if not text.isascii():
        text = to_ascii(text)
    if "\\\\" in text and "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    if "$" in text:
        text = _without_dollars(text)
    if text.count("**") > 1 and not text.lstrip()[:1].isalnum():
        text = _BOLD.sub(r"\1", text)
    if "C" in text and "_" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    if "'" in text:
        text = _APOSTROPHES.sub("", text)
    if "US" in text:
        text = _US_DOLLAR.sub(r"\\$", text)
    if "base" in text:
        text = _BASE.sub(r" base \1", text)
    if "mod" in text:
        text = _MODULO.sub(r"\\pmod{\1}", text)
    if "</" in text:
        text = _TAGS.sub(lambda m: "^" if m[0].lower().startswith("<sup") else "", text)
    text = _SPACE.sub(" ", text).strip()
    while text:
        if text[-1] in ".,;:" and not text.endswith(("\\,", "\\;", "\\:", "\\.", "..")):
            text = text[:-1].rstrip()
        elif text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1].rstrip()
        elif text.endswith("\\\\"):
            text = text[:-2].rstrip()
        elif len(text) > 1 and text[0] == text[-1] and text[0] in "\"'`*":
            text = text[1:-1].strip()
        elif len(text) > 4 and text.startswith("__") and text.endswith("__") and text[2] not in "_{":
            text = text[2:-2].strip()
        else:
            break
    if not text:
        raise Unparseable("empty")
    return text


def to_ascii(text: str) -> str:
    """Non-ASCII characters by the whitelist; letters of words stay as they are."""
    text = _RUNS.sub(_run, text).translate(_TABLE)
    return _ODD.sub(_other, text) if not text.isascii() else text


def _run(match: re.Match[str]) -> str:
    run = match.group()
    if match.lastgroup == "sup":
        return "^{" + "".join(_SUPERSCRIPT[c] for c in run) + "}"
    if match.lastgroup == "sub":
        return "_{" + "".join(_SUBSCRIPT[c] for c in run) + "}"
    top, bottom = unicodedata.normalize("NFKC", run).split("\u2044")
    return f"\\frac{{{top}}}{{{bottom}}}"


def _other(match: re.Match[str]) -> str:
    char = match.group()
    if unicodedata.category(char) == "Nd":
        return str(unicodedata.digit(char))
    plain = unicodedata.normalize("NFKC", char)
    if plain.isascii() and len(plain) == 1:  # full-width forms, mathematical alphabets
        return plain
    if char.isalpha():
        return char
    raise Unparseable(f"unknown_character:U+{ord(char):04X}")


def _without_dollars(text: str) -> str:
    """Math delimiters go; a dollar which is money becomes `\\$`."""
    marks = [m.start() for m in _DOLLARS.finditer(text)]
    if not marks:
        return text
    size = len(text)
    if len(marks) % 2 or "$$" in text:
        single = "$$" not in text
        before_digit = [single and i + 1 < size and (text[i + 1].isdigit() or text[i + 1] == ".") for i in marks]
        money = set(marks) if all(before_digit) else set()
        if not money and single and len(marks) == 1 and marks[0] and text[: marks[0]].rstrip()[-1:].isdigit():
            money = set(marks)
    else:
        money = set(marks) if all(_is_price(text, i) for i in marks) and not text.rstrip().endswith("$") else set()
    delimiters = set(marks)
    return "".join(("\\$" if i in money else " ") if i in delimiters else c for i, c in enumerate(text))


def _is_price(text: str, i: int) -> bool:
    return text[i + 1 : i + 2].isdigit()
