"""Words of the generated problems: names, things and templates. Changing any changes problems: raise generated.VERSION.

In a template ``{a}``, ``{b}``, ``{c}`` are numbers; ``{A}``, ``{B}``, ``{C}`` numbers with their thing (``5 apples``,
``1 apple``); ``{things}`` its plural; ``{x}``, ``{y}`` two different names; ``{p}`` a place; ``{box}``, ``{boxes}`` a
container.
"""

from __future__ import annotations

NAMES = (
    "Ada", "Amir", "Ana", "Ben", "Bo", "Carl", "Chen", "Cleo", "Dan", "Dina", "Eli", "Emma", "Fay", "Finn", "Gus",
    "Hana", "Ida", "Ivan", "Jack", "Jo", "Kai", "Kim", "Lea", "Leo", "Lin", "Max", "Mia", "Nora", "Omar", "Pam",
    "Raj", "Rosa", "Sam", "Tara", "Tom", "Uma", "Vera", "Will", "Yuki", "Zoe",
)  # fmt: skip

THINGS = (
    ("apple", "apples"), ("pen", "pens"), ("book", "books"), ("coin", "coins"), ("ball", "balls"), ("card", "cards"),
    ("cookie", "cookies"), ("shell", "shells"), ("stamp", "stamps"), ("egg", "eggs"), ("plum", "plums"),
    ("marble", "marbles"), ("sticker", "stickers"), ("ticket", "tickets"), ("button", "buttons"), ("pear", "pears"),
    ("key", "keys"), ("cup", "cups"), ("stone", "stones"), ("flower", "flowers"), ("bead", "beads"), ("hat", "hats"),
    ("nut", "nuts"), ("photo", "photos"), ("candle", "candles"), ("lemon", "lemons"), ("toy", "toys"),
    ("badge", "badges"), ("kite", "kites"), ("brush", "brushes"),
)  # fmt: skip

BOXES = (
    ("box", "boxes"), ("bag", "bags"), ("jar", "jars"), ("basket", "baskets"), ("tray", "trays"), ("crate", "crates"),
    ("drawer", "drawers"), ("pack", "packs"),
)  # fmt: skip

PLACES = ("shop", "school", "park", "farm", "library", "museum", "garden", "station", "market", "camp")

DIRECT = {
    "+": (
        "What is {a} + {b}?", "Compute {a} + {b}.", "{a} plus {b} equals?", "Add {a} and {b}.", "{a} + {b} = ?",
        "What is {a} plus {b}?", "What is the sum of {a} and {b}?", "Find {a} + {b}.", "Calculate {a} + {b}.",
        "How much is {a} + {b}?", "What do {a} and {b} add up to?", "Work out {a} plus {b}.", "Add {b} to {a}.",
        "What number is {b} more than {a}?", "Start at {a} and add {b}. What do you get?", "Solve: {a} + {b}",
    ),
    "-": (
        "What is {a} - {b}?", "Compute {a} - {b}.", "{a} minus {b} equals?", "Subtract {b} from {a}.", "{a} - {b} = ?",
        "What is {a} minus {b}?", "What is the difference between {a} and {b}?", "Find {a} - {b}.",
        "Calculate {a} - {b}.", "How much is {a} - {b}?", "Take {b} away from {a}.", "Work out {a} minus {b}.",
        "What number is {b} less than {a}?", "Start at {a} and take away {b}. What is left?", "Solve: {a} - {b}",
    ),
    "*": (
        "What is {a} * {b}?", "Compute {a} * {b}.", "{a} times {b} equals?", "Multiply {a} by {b}.", "{a} * {b} = ?",
        "What is {a} times {b}?", "What is the product of {a} and {b}?", "Find {a} * {b}.", "Calculate {a} times {b}.",
        "How much is {a} times {b}?", "Work out {a} times {b}.", "Solve: {a} * {b}",
    ),
    "/": (
        "What is {a} / {b}?", "Compute {a} / {b}.", "{a} divided by {b} equals?", "Divide {a} by {b}.",
        "What is {a} divided by {b}?", "How many times does {b} go into {a}?", "Calculate {a} / {b}.",
        "How much is {a} divided by {b}?", "Work out {a} divided by {b}.", "Solve: {a} / {b}",
    ),
}  # fmt: skip

STORIES = {
    "+": (
        "{x} has {A} and gets {b} more. How many {things} does {x} have?",
        "{x} has {A} and {y} has {B}. How many {things} is that together?",
        "There are {A} on the table and {B} in the {box}. How many {things} in all?",
        "{x} finds {A} on Monday and {B} on Tuesday. How many {things} is that?",
        "{x} buys {A} and {y} brings {b} more. How many {things} are there?",
        "A {box} holds {A}. {x} puts in {b} more. How many {things} are inside?",
        "{x} made {A} and then {B}. How many {things} were made?",
        "How many {things} are {A} and {B}?",
        "{x} gives {a} {things} to {y}, who had {b}. How many {things} does {y} have now?",
        "The {p} had {A}, and {b} more came. How many {things} are at the {p}?",
        "{x} is {a} years old. How old will {x} be in {b} years?",
        "{x} walks {a} miles, then {b} miles. How many miles is that?",
        "{x} saved {a} dollars and earns {b} more. How many dollars is that?",
    ),
    "-": (
        "{x} has {A} and gives {b} away. How many {things} are left?",
        "{x} had {A} and lost {b}. How many {things} are left?",
        "There are {A} in the {box}. {x} takes {b}. How many {things} remain?",
        "{x} has {A} and {y} has {B}. How many more {things} does {x} have?",
        "The {p} had {A} and sold {b}. How many {things} are left?",
        "{x} wants {A} and has {b}. How many more {things} does {x} need?",
        "Of {A}, {b} are red. How many {things} are not red?",
        "{x} and {y} have {A} together. {y} has {b}. How many does {x} have?",
        "{x} has {a} dollars and spends {b}. How many dollars are left?",
        "{x} is {a} years old. How old was {x} {b} years ago?",
        "A rope is {a} feet long. {x} cuts off {b} feet. How many feet are left?",
        "{x} read {a} pages and {y} read {b}. How many more pages did {x} read?",
    ),
    "*": (
        "Each {box} holds {B}. How many {things} are in {a} {boxes}?",
        "{x} has {a} {boxes} with {B} each. How many {things} is that?",
        "{x} buys {a} {things} for {b} dollars each. How many dollars is that?",
        "There are {a} rows of {B}. How many {things} are there?",
        "{x} walks {b} miles a day. How many miles in {a} days?",
        "{a} children bring {B} each. How many {things} do they bring?",
        "{x} makes {B} every hour. How many {things} in {a} hours?",
        "{x} has {b} {things}. {y} has {a} times as many. How many does {y} have?",
    ),
    "/": (
        "{x} shares {A} equally among {b} friends. How many {things} does each get?",
        "{A} go into {b} equal {boxes}. How many {things} are in each?",
        "{x} packs {A}, {b} to a {box}. How many {boxes} are needed?",
        "{x} paid {a} dollars for {b} {things}. How many dollars is one?",
        "{x} reads {a} pages in {b} days, the same each day. How many pages a day?",
        "{A} stand in {b} equal rows. How many {things} are in a row?",
    ),
}  # fmt: skip

TWO_STEP = {
    "+-": (
        "{x} has {A}, gets {b} more and gives {c} away. How many {things} are left?",
        "A {box} holds {A}. {x} adds {b} and {y} takes {c}. How many {things} are in it?",
        "There were {A} at the {p}. Then {b} came and {c} went. How many {things} are there now?",
        "{x} earned {a} dollars, then {b}, and spent {c}. How many dollars are left?",
        "{x} and {y} have {a} and {b} {things}. They sell {c}. How many {things} remain?",
    ),
    "--": (
        "{x} has {A}. {y} takes {b} and {c} are lost. How many {things} are left?",
        "The {p} had {A}. It sold {b} in the morning and {c} later. How many {things} remain?",
        "{x} has {a} dollars and buys a hat for {b} and a book for {c}. How many dollars are left?",
        "Of {A}, {b} are red, {c} are blue and the others green. How many {things} are green?",
    ),
    "*+": (
        "{x} has {a} {boxes} of {B} and {c} more {things}. How many {things} in all?",
        "{x} buys {a} {things} at {b} dollars each and a hat for {c} dollars. How many dollars in all?",
        "{x} walks {b} miles on each of {a} days, then {c} more. How many miles in all?",
        "{a} {boxes} hold {B} each, and {c} lie outside. How many {things} are there?",
    ),
    "*-": (
        "{x} has {a} {boxes} of {B} and gives away {c}. How many {things} are left?",
        "{a} {boxes} hold {B} each. {c} are broken. How many {things} are whole?",
        "{x} sells {a} {things} at {b} dollars each and pays {c} dollars rent. How many dollars remain?",
        "{x} makes {B} an hour for {a} hours and sells {c}. How many {things} are left?",
    ),
    "+*": (
        "{x} has {a} red and {b} blue {things} in each of {c} {boxes}. How many {things} in all?",
        "Each day {x} reads {a} pages and {y} reads {b}. How many pages do they read together in {c} days?",
        "A meal is {a} dollars and a drink {b}. How many dollars do {c} people pay for both?",
        "Each of {c} children has {A} at home and {b} at school. How many {things} in all?",
    ),
    "+/": (
        "{x} has {A} and {y} has {B}. They share them equally among {c} friends. How many does each get?",
        "{a} red and {b} blue {things} go into {c} equal {boxes}. How many {things} are in each?",
        "{x} earned {a} dollars, then {b}, over {c} days. How many dollars a day on average?",
    ),
}  # fmt: skip
"""``"*+"``: (a * b) + c; ``"+*"``: (a + b) * c; and so on: the first sign joins a and b, the second joins c."""

THREE_STEP = {
    "*+*": (
        "{x} buys {a} {things} at {b} dollars each and {c} hats at {d} dollars each. How many dollars in all?",
        "{a} {boxes} hold {b} {things} each and {c} {boxes} hold {d} each. How many {things} in all?",
        "{x} walks {b} miles a day for {a} days, then {d} miles a day for {c} days. How many miles in all?",
    ),
    "*-*": (
        "{x} sells {a} {things} at {b} dollars each and buys {c} at {d} dollars each. How many dollars are gained?",
        "{a} {boxes} of {b} {things} came in and {c} {boxes} of {d} went out. How many {things} remain?",
    ),
    "*-/": (
        "{x} has {a} {boxes} of {b} {things}, loses {c} and shares the rest among {d} friends. How many does each get?",
        "{a} days at {b} dollars pay {c} dollars of debt; {d} people share the rest. How many dollars does each get?",
    ),
}  # fmt: skip
"""``"*+*"``: a*b + c*d; ``"*-*"``: a*b - c*d; ``"*-/"``: (a*b - c) / d."""

MISSING = {
    "+": (
        "What number plus {b} is {a}?", "Solve for x: x + {b} = {a}",
        "{x} added {b} to a number and got {a}. Which number?",
    ),
    "-": (
        "What number minus {b} is {a}?", "Solve for x: x - {b} = {a}",
        "{x} took {b} from a number and got {a}. Which number?",
    ),
    "*": (
        "What number times {b} is {a}?", "Solve for x: {b}x = {a}",
        "{x} multiplied a number by {b} and got {a}. Which number?",
    ),
}  # fmt: skip

SHARE_OF = (
    "What is {f} of {a}?", "Find {f} of {a}.",
    "{x} has {A} and gives away {f} of them. How many {things} are given away?",
    "A {box} holds {A}; {f} of them are red. How many {things} are red?",
    "{x} ran {f} of {a} miles. How many miles is that?",
)  # fmt: skip

FRACTIONS = {
    "+": (
        "What is {f} + {g}?", "Compute {f} + {g}.", "Add {f} and {g}.",
        "{x} ate {f} of a pie and {y} ate {g}. What fraction is that together?",
    ),
    "-": (
        "What is {f} - {g}?", "Compute {f} - {g}.", "Subtract {g} from {f}.",
        "{x} had {f} of a pie and ate {g} of a pie. What fraction of a pie is left?",
    ),
    "*": ("What is {f} * {g}?", "Compute {f} * {g}.", "What is {f} of {g}?", "Multiply {f} by {g}."),
}  # fmt: skip

PERCENT = (
    "What is {b}% of {a}?", "Find {b} percent of {a}.", "{b}% of {A} are red. How many {things} are red?",
    "A coat costs {a} dollars. It is {b}% off. How many dollars are taken off?",
)  # fmt: skip

REMAINDER = (
    "What is the remainder when {a} is divided by {b}?",
    "{x} puts {A} into {boxes} of {b}. How many {things} are left over?",
)  # fmt: skip

LINEAR = (
    "Solve for x: {a}x + {b} = {c}", "If {a}x + {b} = {c}, what is x?",
    "{x} multiplies a number by {a}, adds {b} and gets {c}. What is the number?",
)  # fmt: skip
