"""Matrices that are computed: sums, products, powers, transposes and scalar multiples become one matrix."""

from __future__ import annotations

from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import MAX_MATRIX, TooLarge, Undefined
from jurat.verifiers.math.tree import Node, add, mul, neg, num, walk
from jurat.verifiers.math.verdict import Context


def evaluated(node: Node, context: Context) -> Node:
    """The node with matrix arithmetic carried out; unchanged where there is none or the shapes do not fit."""
    if node.kind == "matrix" or not any(n.kind == "matrix" for n in walk(node)):
        return node
    args = tuple(evaluated(arg, context) for arg in node.args)
    node = Node(node.kind, node.value, args)
    kind = node.kind
    if kind == "neg" and args[0].kind == "matrix":
        return Node("matrix", args[0].value, tuple(neg(cell) for cell in args[0].args))
    if kind == "add" and all(arg.kind == "matrix" and arg.value == args[0].value for arg in args):
        return Node(
            "matrix", args[0].value, tuple(add(*cells) for cells in zip(*(arg.args for arg in args), strict=True))
        )
    if kind == "mul" and any(arg.kind == "matrix" for arg in args):
        scalars = [arg for arg in args if arg.kind != "matrix"]
        product: Node | None = None
        for arg in args:
            if arg.kind == "matrix":
                product = arg if product is None else _product(product, arg)
                if product is None:
                    return node
        if product is None or any(arg.kind in ("tuple", "list", "set") for arg in scalars):
            return node
        if scalars:
            factor = scalars[0] if len(scalars) == 1 else mul(*scalars)
            return Node("matrix", product.value, tuple(mul(factor, cell) for cell in product.args))
        return product
    if kind == "div" and args[0].kind == "matrix" and args[1].kind != "matrix":
        return Node("matrix", args[0].value, tuple(Node("div", None, (cell, args[1])) for cell in args[0].args))
    if kind == "pow" and args[0].kind == "matrix":
        return _power(args[0], args[1], context) or node
    return node


def _product(a: Node, b: Node) -> Node | None:
    (rows, inner), (other, columns) = a.value, b.value
    if inner != other:
        return None
    cells = tuple(
        add(*(mul(a.args[i * inner + k], b.args[k * columns + j]) for k in range(inner)))
        if inner > 1
        else mul(a.args[i], b.args[j])
        for i in range(rows)
        for j in range(columns)
    )
    return Node("matrix", (rows, columns), cells)


def _power(matrix: Node, exponent: Node, context: Context) -> Node | None:
    rows, columns = matrix.value
    if exponent in (Node("sym", "T"), Node("sym", "\\top"), Node("sym", "t")):
        return Node(
            "matrix", (columns, rows), tuple(matrix.args[i * columns + j] for j in range(columns) for i in range(rows))
        )
    if rows != columns or rows > MAX_MATRIX:
        return None
    value = rational(exponent, context.steps)
    if value is None:
        return None
    exact = [rational(cell, context.steps) for cell in matrix.args]
    if any(cell is None for cell in exact) or value not in range(-1, 9):
        return None
    rows_of = [exact[i * rows : (i + 1) * rows] for i in range(rows)]
    if value == -1:
        inverse = _inverse(rows_of)
        return Node("matrix", (rows, rows), tuple(_node(cell) for row in inverse for cell in row))
    result = [[type(exact[0])(int(i == j)) for j in range(rows)] for i in range(rows)]  # type: ignore[misc]
    for _ in range(int(str(value))):
        result = [
            [sum((result[i][k] * rows_of[k][j] for k in range(rows)), start=type(exact[0])(0)) for j in range(rows)]  # type: ignore[misc]
            for i in range(rows)
        ]
    return Node("matrix", (rows, rows), tuple(_node(cell) for row in result for cell in row))


def _inverse(rows: list[list]) -> list[list]:
    size = len(rows)
    one = type(rows[0][0])
    work = [[*row, *(one(int(i == j)) for j in range(size))] for i, row in enumerate(rows)]
    for column in range(size):
        pivot = next((r for r in range(column, size) if work[r][column] != 0), None)
        if pivot is None:
            raise Undefined("singular_matrix")
        work[column], work[pivot] = work[pivot], work[column]
        head = work[column][column]
        work[column] = [cell / head for cell in work[column]]
        for r in range(size):
            if r != column and work[r][column] != 0:
                factor = work[r][column]
                work[r] = [x - factor * y for x, y in zip(work[r], work[column], strict=True)]
    return [row[size:] for row in work]


def _node(q: object) -> Node:
    from jurat.verifiers.math.backend import bits, parts

    if bits(q) > 1 << 14:
        raise TooLarge("bits")
    return num(*parts(q))
