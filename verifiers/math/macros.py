"""The one table of LaTeX macros and plain-text names: what is not here is an unknown macro, and the answer
unparseable."""

from __future__ import annotations

FUNCTIONS = {
    name: name
    for name in "sin cos tan cot sec csc sinh cosh tanh coth sech csch arcsin arccos arctan arccot arcsec arccsc "
    "arsinh arcosh artanh "
    "ln log lg exp gcd lcm det max min cis sgn erf tr rank dim deg Re Im lb".split()
} | {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "acot": "arccot", "asec": "arcsec", "acsc": "arccsc",
    "arcsinh": "arsinh",
    "arccosh": "arcosh", "arctanh": "artanh", "asinh": "arsinh", "acosh": "arcosh", "atanh": "artanh", "tg": "tan",
    "ctg": "cot",
    "cosec": "csc", "arctg": "arctan", "Abs": "abs", "abs": "abs", "floor": "floor", "ceil": "ceil",
    "ceiling": "ceil", "sqrt": "sqrt",
    "cbrt": "cbrt", "factorial": "fact", "binomial": "binom", "binom": "binom", "Gamma": "gamma", "gamma": "gamma",
    "sign": "sgn",
    "mod": "mod", "arg": "arg",
}  # fmt: skip
"""Names with a fixed meaning, as they are spelled -> name in the tree."""

MACRO_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan ln log lg exp gcd det max min dim deg arg Re "
    "Im tg ctg arctg cosec "
    "arccot lcm sgn arcsec arccsc sech csch".split()
)

PLAIN_FUNCTIONS = frozenset(FUNCTIONS) - frozenset(
    ("Re", "Im", "deg", "dim", "tr", "rank", "arg", "lb", "Gamma", "gamma", "mod", "tg", "sign")
)
"""Recognised in plain letter runs without a backslash."""

GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma "
    "varsigma tau upsilon phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell hbar partial nabla imath "
    "jmath aleph Pi".split()
)
GREEK_ALIASES = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "varrho": "rho", "varsigma": "sigma"}

RELATIONS = {
    "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=",
    "lt": "<", "gt": ">",
    "ne": "!=", "neq": "!=", "approx": "~", "simeq": "~", "thickapprox": "~", "cong": "cong", "equiv": "equiv",
    "sim": "sim", "propto": "propto",
    "in": "in", "isin": "in", "notin": "notin", "subset": "subset", "subseteq": "subset", "supset": "supset",
    "supseteq": "supset",
    "to": "to", "rightarrow": "to", "longrightarrow": "to", "mapsto": "to", "Rightarrow": "=>", "implies": "=>",
    "Longrightarrow": "=>",
    "iff": "<=>", "Leftrightarrow": "<=>", "parallel": "parallel", "perp": "perp", "coloneqq": "=", "doteq": "~",
    "doteqdot": "~", "not": "not",
    "divides": "divides", "nmid": "nmid", "models": "models", "prec": "prec", "succ": "succ",
}  # fmt: skip

OPERATORS = {
    "times": "*", "cdot": "*", "ast": "*", "cdotp": "*", "div": "div", "pm": "+-", "mp": "-+", "cup": "cup",
    "bigcup": "cup", "cap": "cap",
    "bigcap": "cap", "setminus": "minus", "smallsetminus": "minus", "backslash": "minus", "star": "star",
    "oplus": "oplus", "otimes": "otimes",
    "bmod": "mod", "mod": "mod", "ominus": "ominus", "odot": "odot", "diamond": "diamond", "bullet": "*",
}  # fmt: skip
"""`star` and its kin are opaque: parsed, never evaluated."""

CONSTANTS = {"infty": "inf", "pi": "pi", "varpi": "pi", "infin": "inf"}

OPENING = {
    "lfloor": "floor",
    "lceil": "ceil",
    "langle": "<",
    "lbrace": "\\{",
    "lbrack": "[",
    "lparen": "(",
    "lvert": "|",
    "lVert": "||",
}
CLOSING = {
    "rfloor": "floor",
    "rceil": "ceil",
    "rangle": ">",
    "rbrace": "\\}",
    "rbrack": "]",
    "rparen": ")",
    "rvert": "|",
    "rVert": "||",
}
BARS = {"vert": "|", "Vert": "||", "|": "||", "mid": "|", "mvert": "|"}

COMMANDS = {
    "frac": "frac", "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac",
    "ifrac": "frac", "binom": "binom",
    "dbinom": "binom", "tbinom": "binom", "sqrt": "sqrt", "surd": "sqrt", "sum": "sum", "prod": "prod", "int": "int",
    "iint": "opaque_int",
    "iiint": "opaque_int", "oint": "opaque_int", "lim": "lim", "over": "over", "choose": "choose", "atop": "atop",
    "pmod": "pmod",
    "overline": "bar", "bar": "bar", "recurring": "recurring", "dot": "dot", "emptyset": "emptyset",
    "varnothing": "emptyset",
    "stackrel": "stackrel", "root": "root",
}  # fmt: skip

DECORATIONS = frozenset(
    "vec hat tilde overrightarrow overleftarrow widehat widetilde ddot mathring check breve acute grave".split()
)
PREFIX_NAMES = frozenset(("angle", "measuredangle", "triangle", "square", "odot"))

SKIPPED = frozenset(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle "
    "scriptstyle scriptscriptstyle "
    "limits nolimits hline therefore because bf rm it sf tt cal large Large LARGE small tiny normalsize huge Huge "
    "boldmath unboldmath "
    "nonumber notag noindent centering protect mathstrut strut newline par relax smallskip medskip".split()
)
SPACES = {",": 2, ";": 2, ":": 2, ">": 2, " ": 1, "!": 3, "quad": 1, "qquad": 1, "enspace": 1, "thinspace": 2,
    "medspace": 2, "thickspace": 2,
          "negthinspace": 3, "space": 1, "hfill": 1, "negmedspace": 3, "enskip": 1}  # fmt: skip
"""Spacing macros: 1 a space, 2 thin (may group digits), 3 negative (after a comma: groups digits)."""

TEXTS = frozenset(
    "text mbox hbox textrm textnormal textbf textit texttt textsc textsf textup textmd emph mathrm mathsf mathtt "
    "mathit".split()
)
WRAPPERS = frozenset("mathbf boldsymbol bm bold pmb mathcal mathscr mathfrak underline boxed fbox framebox "
                     "ensuremath smash mathop mathbin "
                     "mathrel mathord mathopen mathclose mathpunct displaylines substack".split())  # fmt: skip
DROPPED_ARGUMENT = frozenset("color label tag hspace vspace phantom hphantom vphantom kern mkern".split())
DROPPED_FIRST = frozenset(("textcolor", "colorbox", "raisebox", "style", "class", "bbox"))

CURRENCIES = {
    "$": "dollar",
    "euro": "euro",
    "texteuro": "euro",
    "pounds": "gbp",
    "textsterling": "gbp",
    "yen": "yen",
    "rupee": "rupee",
    "textdollar": "dollar",
}

SETS = {"R": "R", "Z": "Z", "Q": "Q", "N": "N", "C": "C", "Reals": "R"}
