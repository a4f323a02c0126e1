"""Whether the words around a value assert it: denials, bounds, choices, and later corrections.

The answer of a sentence is what it asserts. "7, not 8" asserts 7; "not 8 but 7" asserts 7; "at most 7", "6 or 7",
"half of 7" and "anything but 7" assert no 7. Approximations ("about 7") count as hedges. All patterns look at a
bounded stretch of text beside the value.
"""

from __future__ import annotations

import re

_REACH = 90
_SENTENCE = 400
_VALUE = r"[$*(\\]{0,6}-?(?:\\?[A-Za-z{}]{0,12}[.,/^{}]{0,4}\d[\d.,/^{}]{0,40}|[A-Z])[)}$*\\]{0,6}"
_FAULT = (
    r"(?:wrong|incorrect|false|untrue|impossible|invalid|mistaken|unlikely|inadmissible|extraneous"
    r"|too\s+(?:big|large|small|low|high|many|few))"
)
_NOT_RIGHT = (
    r"(?:(?:is|was|are|would\s+be)(?:n['’]t|\s+not)\s+(?:the\s+|a\s+|my\s+)?"
    r"(?:\w+\s+)?(?:correct|right|answer|true|valid|possible|solution|it)"
    r"|(?:does|do|did|can|could|will|would)(?:n?['’]t|\s+not|not)\s+(?:\w+\s+)?(?:work|hold|fit|be|satisfy|count)"
    r"|cannot\s+be|fails?\b|(?:is|are|can\s+be)\s+ruled\s+out)"
)
_FAULTED = rf"(?:(?:is|was|are|were|would\s+be|seems|looks)\s+(?:\w+\s+)?{_FAULT}\b|{_NOT_RIGHT})"

_ASIDE = re.compile(
    rf"\s*[,;(]?\s*\b(?:and\s+|but\s+)?(?:not|never|instead\s+of|rather\s+than|as\s+opposed\s+to|unlike)\s+(?:the\s+)?{_VALUE}\)?"
    rf"(?=\s*(?:[.,;!)]|$))"
    rf"|\s*[,;(]\s*(?:and\s+|but\s+|since\s+|because\s+|as\s+|while\s+)?{_VALUE}\s+{_FAULTED}[^.;\n)]{{0,40}}\)?",
    re.IGNORECASE,
)
_PERHAPS = re.compile(
    r"not\b|['’]t\b|never|instead|rather|opposed|unlike|wrong|rue|false|rrect|valid|possible|mistake|likely|missible"
    r"|extran|too\s|fail|ruled",
    re.IGNORECASE,
)
"""A word that every aside has: the cheap test before the full pattern."""
_INSTEAD = re.compile(
    rf"\s*(?:certainly\s+|definitely\s+)?not\s+{_VALUE}\s*[,;]?\s*(?:but(?:\s+rather)?|it\s+is|it['’]s|instead|rather)\s+(?=\S)",
    re.IGNORECASE,
)
_REASON = re.compile(r"(?<=[\d$*})])\s*,?\s+(?:since|because)\s", re.IGNORECASE)
_BOUNDARY = re.compile(
    r"\n|[.;:!?](?=\s|$)|,\s|\b(?:(?<!not\s)so|since|because|then|hence|thus|therefore|which|but|and)\b(?!\s+not\b)",
    re.IGNORECASE,
)
_RELATIVE = re.compile(
    r"\b(?:that|who|which|whom)\s+(?:\w+\s+){0,2}?(?:not|never|neither|cannot|\w+n['’]t)\b", re.IGNORECASE
)
"""A denial inside "the people who did not vote": it is about them, not about the value."""
_WITH_ITS_VALUE = re.compile(rf"\b(?:not|never)\s+{_VALUE}\s+(?:it\s+is|it['’]s|but)\s", re.IGNORECASE)
"""What follows is asserted in the place of the denied value."""
_DENIED_BEFORE = re.compile(
    r"\b(?:not|never|neither|nor|cannot|nobody|no\s+one|except|excluding|besides|hardly|scarcely|barely|unlikely"
    r"|refuse\w*|ignor(?:e|es|ed|ing)|rul(?:e|es|ed|ing)\s+out|reject\w*|doubt(?:s|ed|ful)?|den(?:y|ies)"
    r"|incorrectly|wrongly|mistakenly|falsely"
    r"|(?:(?<!none\s)other|different|far|instead|rather)\s+(?:than|from|of))\b"
    rf"|\w+n['’]t\b|\b{_FAULT}\s+(?:\w+\s+)?(?:answers?|values?|results?|numbers?|solutions?|is|are|to|if)\b|^\s*{_FAULT}\s*$",
    re.IGNORECASE,
)
_ALL_BUT = re.compile(r"\b(?:any|every|no|all|none)\w*\s+(?:\w+\s+)?but\s+[$*\\({\s]*$", re.IGNORECASE)
_CHANGED_BEFORE = re.compile(
    r"(?:\b(?:at\s+(?:most|least)|(?!other)\w+(?:er|more|less)\s+than|more\s+than|less\s+than|up\s+to|approximately|about|roughly|almost|nearly"
    r"|close\s+to|maybe|perhaps|possibly|probably|(?:might|could|may|can)\s+be|(?:one|any|some)\s+of(?:\s+[^.;\n]{1,40},)?"
    r"|between\s+\S{1,20}\s+(?:and|to)|from\s+\S{1,20}\s+to|candidates?:?(?:\s+[^.;\n]{1,40},)?"
    r"|half(?:\s+of)?|twice|double|triple|thrice|(?:square|cube)(?:\s+root)?\s+of|factorial\s+of|absolute\s+value\s+of"
    r"|(?:reciprocal|inverse|opposite|negative|negation)\s+of|minus|negative|plus|times)"
    r"|(?<=\d)\s%)\s*(?:the\s+|a\s+|an\s+)?[$*\\({\s]*\Z",
    re.IGNORECASE,
)
_CHANGED_AFTER = re.compile(
    r"[$*)}\\]*(?:!(?=\s*(?:[.,;)]|$))|\s+(?:squared|cubed|factorial|(?:plus|minus|times)(?=\s+(?:[$*\\(-]*\d|one|two|three|four|five|six|seven|eight|nine|ten))"
    r"|(?:or|and)\s+(?:more|less|fewer|above|below|something|any\w*|some\w*))\b|\s*\(?\s*or\s+(?:maybe\s+|possibly\s+)?[$*\\({]*-?\d)",
    re.IGNORECASE,
)
_COMPARED_AFTER = re.compile(r"[$*)}\\]*\s+(?:more|less|fewer|greater|larger|smaller)\s+than\b", re.IGNORECASE)
_COMPUTED = re.compile(r"=\s*[$*\\(]*\Z")
_DENIED_AFTER = re.compile(rf"[$*)}}\\\].,]{{0,4}}\s*(?:\w+\s+)?{_FAULTED}", re.IGNORECASE)
_DOUBTED = re.compile(
    r"[$*)}\]\s]{0,4}\?+\s*(?:no\b|not\b|wrong\b|I\s+(?:doubt|don['’]t|do\s+not))"
    r"|[^.\n]{0,10}\bbut\s+I\s+(?:have\s+no\s+idea|do\s+not\s+know|don['’]t\s+know|changed\s+my\s+mind|am\s+not\s+sure|doubt)",
    re.IGNORECASE,
)
_OPENER = re.compile(
    r"[\s$*)}\].,;:!?—–-]{0,8}(?:(?:hmm+|oops|wait|actually|sorry|well|oh)\b[\s,.:;!—–-]*){0,3}"
    r"(?P<hard>(?:no\s*[,.;:!—–-]|no\s+wait|no\s*$|correction\b|scratch\s+that|retract\w*|never\s*mind|strike\s+that|I\s+take\s+(?:that|it)\s+back"
    r"|that(?:['’]s|\s+is|\s+was)\s+(?:\w+\s+)?(?:wrong|incorrect|not\s+right|a\s+mistake|false)"
    r"|(?:but\s+)?I\s+(?:changed\s+my\s+mind|made\s+a\s+mistake|was\s+wrong|give\s+up)))",
    re.IGNORECASE,
)
_CORRECTED = re.compile(
    r"(?:\bit(?:\s+is|['’]s|\s+should\s+be|\s+must\s+be)|\banswer(?:\s+is|:)|\bmake\s+(?:it|that)|\bcorrection\s*:|\bI\s+mean)\s*",
    re.IGNORECASE,
)


def asserted(sentence: str) -> str:
    """The sentence without what it sets aside: "7, not 8" -> "7"; "not 8 but 7" -> "7"; "7, since 8 is too large"
    -> "7"."""
    if len(sentence) > _SENTENCE:
        return sentence
    instead = _INSTEAD.match(sentence)
    if instead:
        sentence = sentence[instead.end() :]
    elif _PERHAPS.search(sentence):
        aside = _ASIDE.search(sentence)
        if aside is not None and any(c.isdigit() for c in sentence[: aside.start()]):
            sentence = sentence[: aside.start()] + sentence[aside.end() :]
    reason = _REASON.search(sentence)
    return sentence[: reason.start()] if reason else sentence


_FALSE_FIRST = re.compile(rf"\W*{_FAULT}\b[^.\n]*\d", re.IGNORECASE)


def opens_with_denial(content: str) -> bool:
    """The answer is "false: 7"."""
    return _FALSE_FIRST.match(content) is not None


def asserted_here(text: str) -> str:
    """`text` with what its last sentence sets aside blanked out, so that positions stay."""
    if _PERHAPS.search(text, max(0, len(text) - 2 * _REACH)) is None:
        return text
    aside = None
    for aside in _ASIDE.finditer(text, max(0, len(text) - 2 * _REACH)):  # noqa: B007
        pass
    if (
        aside is None
        or text[aside.end() :].strip(" .!)\n")
        or not any(c.isdigit() for c in text[max(0, aside.start() - _REACH) : aside.start()])
    ):
        return text
    return text[: aside.start()] + " " * (aside.end() - aside.start()) + text[aside.end() :]


def clause_before(text: str, start: int) -> str:
    """The words of the clause before `start`."""
    stretch = text[max(0, start - _REACH) : start]
    at = 0
    for match in _BOUNDARY.finditer(stretch):
        at = match.end()
    return stretch[at:]


def denied_before(text: str, start: int) -> bool:
    stretch = text[max(0, start - _REACH) : start]
    clause = _RELATIVE.sub(" ", clause_before(text, start))
    turned = _WITH_ITS_VALUE.search(clause)
    clause = clause[turned.end() :] if turned else clause
    return _DENIED_BEFORE.search(clause) is not None or _ALL_BUT.search(stretch) is not None


def doubted(text: str, start: int, end: int) -> bool:
    """Whether the words beside text[start:end] deny, bound or change that value."""
    before, after = text[max(0, start - _REACH) : start], text[end : end + _REACH]
    return (
        denied_before(text, start)
        or _CHANGED_BEFORE.search(before) is not None
        or _CHANGED_AFTER.match(after) is not None
        or (_COMPARED_AFTER.match(after) is not None and _COMPUTED.search(before) is None)
        or denied_after(text, end)
    )


def denied_after(text: str, end: int) -> bool:
    after = text[end : end + _REACH]
    return _DENIED_AFTER.match(after) is not None or _DOUBTED.match(after) is not None


def retraction(text: str, end: int) -> int | None:
    """Where a correction begins that follows an answer directly: "7. Hmm, no, it is 8", "7? No." None without one."""
    opener = _OPENER.match(text, end, end + 200)
    return opener.start("hard") if opener else None


def correction(text: str, at: int) -> tuple[int, int] | None:
    """The stretch that a retraction at `at` puts in the place of the answer: to the end of its sentence."""
    match = _CORRECTED.search(text, at, at + 200)
    if match is None:
        return None
    stop = re.compile(r"[.!?](?=\s|$)|\n").search(text, match.end())
    return match.end(), stop.start() if stop else len(text)
