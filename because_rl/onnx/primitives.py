"""The table: each primitive of JAX as operators of ONNX, or as simpler primitives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from because_rl.onnx.graph import (
    TRANSLATIONS,
    TYPES,
    Builder,
    Tensor,
    constant,
    kind_of,
    output,
    translates,
    unsupported,
)

SAME = {"stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision"}
ELEMENTWISE = {
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "max": "Max", "min": "Min"},
    **{"exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid", "sqrt": "Sqrt", "erf": "Erf", "abs": "Abs"},
    **{"neg": "Neg", "floor": "Floor", "ceil": "Ceil", "sign": "Sign", "sin": "Sin", "cos": "Cos", "tan": "Tan"},
    **{"asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "atan": "Atan", "acos": "Acos", "asin": "Asin"},
    **{"sinh": "Sinh", "cosh": "Cosh", "round": "Round"},
    **{"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
}
LOGICAL = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}
REDUCTIONS = {
    **{"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"},
    **{"reduce_and": "ReduceMin", "reduce_or": "ReduceMax"},
}
WORD = 0xFFFF_FFFF


def cast(b: Builder, x: Tensor, kind: str) -> Tensor:
    """The same numbers, stored as another kind."""
    made = Tensor(x.shape, kind)
    if made.stored == x.stored:
        return x._replace(kind=kind)
    return b.node("Cast", x, kind=kind, shape=x.shape, to=TYPES[made.stored])


def _in_word(b: Builder, x: Tensor) -> Tensor:
    """Unsigned integers without what exceeds 32 bits."""
    return x if x.kind != "u" else b.node("BitwiseAnd", x, constant(np.int64(WORD)), kind="u", shape=x.shape)


def reshape(b: Builder, x: Tensor, shape: Sequence[int]) -> Tensor:
    if tuple(shape) == x.shape:
        return x
    return b.node("Reshape", x, constant(np.array(shape, np.int64)), kind=x.kind, shape=shape, allowzero=1)


# Elementwise ------------------------------------------------------------------------------------------------
@translates(*SAME)
def _same(b: Builder, equation: Any, *inputs: Tensor) -> list[Tensor]:
    return list(inputs)


@translates(*ELEMENTWISE)
def _elementwise(b: Builder, equation: Any, *inputs: Tensor) -> Tensor:
    if equation.primitive.name not in ("eq",) and inputs[0].kind == "b":
        inputs = tuple(cast(b, x, "i") for x in inputs)
    if equation.primitive.name == "pow":
        inputs = tuple(cast(b, x, inputs[0].kind) for x in inputs)
    return _in_word(b, b.node(ELEMENTWISE[equation.primitive.name], *inputs, **output(equation)))


@translates(*LOGICAL)
def _logical(b: Builder, equation: Any, x: Tensor, y: Tensor) -> Tensor:
    return b.node(LOGICAL[equation.primitive.name][x.kind != "b"], x, y, **output(equation))


@translates("not")
def _not(b: Builder, equation: Any, x: Tensor) -> Tensor:
    return _in_word(b, b.node("Not" if x.kind == "b" else "BitwiseNot", x, **output(equation)))


@translates("ne")
def _not_equal(b: Builder, equation: Any, x: Tensor, y: Tensor) -> Tensor:
    return b.node("Not", b.node("Equal", x, y, **output(equation)), **output(equation))


@translates("rem")
def _remainder(b: Builder, equation: Any, x: Tensor, y: Tensor) -> Tensor:
    return b.node("Mod", x, y, fmod=1, **output(equation))


@translates("shift_left", "shift_right_logical")
def _shift(b: Builder, equation: Any, x: Tensor, places: Tensor) -> Tensor:
    """By multiplication and division, which all runtimes have for these integers."""
    factor = b.node("Pow", constant(np.float64(2)), cast(b, places, "d"), kind="d", shape=places.shape)
    if places.known is not None:
        factor = constant(2.0 ** places.known.astype(np.float64))
    operator = "Mul" if equation.primitive.name == "shift_left" else "Div"
    factor = cast(b, factor, "i") if factor.known is None else Tensor(factor.shape, "i", known=factor.known.astype(int))
    return _in_word(b, b.node(operator, x, factor, **output(equation)))


@translates("is_finite")
def _is_finite(b: Builder, equation: Any, x: Tensor) -> Tensor:
    parts = [b.node(operator, x, kind="b", shape=x.shape) for operator in ("IsInf", "IsNaN")]
    return b.node("Not", b.node("Or", *parts, **output(equation)), **output(equation))


@translates("select_n")
def _select(b: Builder, equation: Any, which: Tensor, *cases: Tensor) -> Tensor:
    if len(cases) == 1:
        return cases[0]
    if which.kind != "b" and len(cases) > 2:
        raise unsupported("a choice among more than two")
    which = cast(b, which, "b")
    if cases[0].kind != "b":
        return b.node("Where", which, cases[1], cases[0], **output(equation))
    cases = tuple(cast(b, case, "i") for case in cases)
    return cast(b, b.node("Where", which, cases[1], cases[0], kind="i", shape=cases[0].shape), "b")


@translates("cond")
def _cond(b: Builder, equation: Any, which: Tensor, *inputs: Tensor) -> list[Tensor]:
    """All branches are computed and one is taken, so that what does not change in a loop can leave it."""
    branches = equation.params["branches"]
    cases = zip(*(b.translate(branch, inputs) for branch in branches), strict=True)
    chosen = cast(b, which, "b")
    out = []
    for n, case in enumerate(cases):
        if len(branches) != 2:
            raise unsupported("a choice among more than two")
        out.append(b.node("Where", chosen, case[1], case[0], **output(equation, n)))
    return out


@translates("convert_element_type")
def _convert(b: Builder, equation: Any, x: Tensor) -> Tensor:
    kind = output(equation)["kind"]
    return _in_word(b, cast(b, x, kind)) if kind == "u" and x.kind != "b" else cast(b, x, kind)


# Reductions -------------------------------------------------------------------------------------------------
@translates(*REDUCTIONS)
def _reduce(b: Builder, equation: Any, x: Tensor) -> Tensor:
    axes, out = constant(np.array(equation.params["axes"], np.int64)), output(equation)
    number = cast(b, x, "i") if x.kind == "b" else x
    if not len(equation.params["axes"]):
        return x
    made = b.node(REDUCTIONS[equation.primitive.name], number, axes, keepdims=0, **(out | {"kind": number.kind}))
    return _in_word(b, cast(b, made, out["kind"]))


@translates("argmax", "argmin")
def _arg(b: Builder, equation: Any, x: Tensor) -> Tensor:
    number = cast(b, x, "i") if x.kind == "b" else x
    (axis,) = equation.params["axes"]
    operator = "ArgMax" if equation.primitive.name == "argmax" else "ArgMin"
    return b.node(operator, number, axis=axis, keepdims=0, **output(equation))


@translates("cumsum")
def _cumsum(b: Builder, equation: Any, x: Tensor) -> Tensor:
    axis = constant(np.int64(equation.params["axis"]))
    return b.node("CumSum", x, axis, reverse=int(equation.params["reverse"]), **output(equation))


@translates("sort")
def _sort(b: Builder, equation: Any, *inputs: Tensor) -> list[Tensor]:
    """By the first operand, ties in their order."""
    axis, shape = equation.params["dimension"], inputs[0].shape
    if shape[axis] == 1:
        return list(inputs)
    if equation.params["num_keys"] != 1:
        raise unsupported("sorting by several keys")
    key = cast(b, inputs[0], "i") if inputs[0].kind == "b" else inputs[0]
    count = constant(np.array([shape[axis]], np.int64))
    _, order = b.add_node("TopK", [key, count], [(key.kind, shape), ("i", shape)], axis=axis, largest=0)
    return [b.node("GatherElements", x, order, kind=x.kind, shape=shape, axis=axis) for x in inputs]


@translates("top_k")
def _top_k(b: Builder, equation: Any, x: Tensor) -> list[Tensor]:
    count = constant(np.array([equation.params["k"]], np.int64))
    shape = equation.outvars[0].aval.shape
    return b.add_node("TopK", [x, count], [(x.kind, shape), ("i", shape)], axis=len(shape) - 1)


@translates("dot_general")
def _dot(b: Builder, equation: Any, x: Tensor, y: Tensor) -> Tensor:
    """A product of matrices: (batch, rows, contracted) times (batch, contracted, columns)."""
    (cx, cy), (bx, by) = equation.params["dimension_numbers"]
    sides = []
    for t, contracted, batch, last in ((x, cx, bx, True), (y, cy, by, False)):
        free = [d for d in range(len(t.shape)) if d not in contracted and d not in batch]
        order = [*batch, *free, *contracted] if last else [*batch, *contracted, *free]
        groups = [list(batch), free, list(contracted)] if last else [list(batch), list(contracted), free]
        moved = _transposed(b, t, order)
        sides.append(reshape(b, moved, [prod(t.shape[d] for d in group) for group in groups]))
    out = output(equation)
    shape = (*sides[0].shape[:2], sides[1].shape[2])
    return reshape(b, b.node("MatMul", *sides, kind=out["kind"], shape=shape), out["shape"])


# Shapes -----------------------------------------------------------------------------------------------------
def _transposed(b: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    if list(order) == list(range(len(order))):
        return x
    return b.node("Transpose", x, kind=x.kind, shape=[x.shape[d] for d in order], perm=list(order))


@translates("transpose")
def _transpose(b: Builder, equation: Any, x: Tensor) -> Tensor:
    return _transposed(b, x, equation.params["permutation"])


@translates("reshape", "squeeze", "expand_dims")
def _reshape(b: Builder, equation: Any, x: Tensor) -> Tensor:
    return reshape(b, x, equation.outvars[0].aval.shape)


@translates("broadcast_in_dim")
def _broadcast(b: Builder, equation: Any, x: Tensor, *_: Tensor) -> Tensor:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    between = [x.shape[places.index(d)] if d in places else 1 for d in range(len(shape))]
    x = reshape(b, x, between)
    if tuple(between) == tuple(shape):
        return x
    return b.node("Expand", x, constant(np.array(shape, np.int64)), **output(equation))


@translates("iota")
def _iota(b: Builder, equation: Any) -> Tensor:
    shape, axis = equation.params["shape"], equation.params["dimension"]
    line = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return b.node("Expand", constant(line), constant(np.array(shape, np.int64)), **output(equation))


@translates("slice")
def _slice(b: Builder, equation: Any, x: Tensor) -> Tensor:
    starts, stops = equation.params["start_indices"], equation.params["limit_indices"]
    steps = equation.params["strides"] or (1,) * len(starts)
    parts = (starts, stops, range(len(starts)), steps)
    return b.node("Slice", x, *(constant(np.array(part, np.int64)) for part in parts), **output(equation))


@translates("rev")
def _reverse(b: Builder, equation: Any, x: Tensor) -> Tensor:
    axes = equation.params["dimensions"]
    parts = ([-1] * len(axes), [-(1 << 62)] * len(axes), axes, [-1] * len(axes))
    return b.node("Slice", x, *(constant(np.array(part, np.int64)) for part in parts), **output(equation))


@translates("concatenate")
def _concatenate(b: Builder, equation: Any, *inputs: Tensor) -> Tensor:
    filled = [x for x in inputs if prod(x.shape)]
    return b.node("Concat", *filled, axis=equation.params["dimension"], **output(equation))


@translates("stack")
def _stack(b: Builder, equation: Any, *inputs: Tensor) -> Tensor:
    axis, shape = equation.params["axis"], equation.outvars[0].aval.shape
    single = [1 if d == axis else size for d, size in enumerate(shape)]
    return b.node("Concat", *(reshape(b, x, single) for x in inputs), axis=axis, **output(equation))


@translates("split")
def _split(b: Builder, equation: Any, x: Tensor) -> list[Tensor]:
    sizes = constant(np.array(equation.params["sizes"], np.int64))
    outputs = [(x.kind, v.aval.shape) for v in equation.outvars]
    return b.add_node("Split", [x, sizes], outputs, axis=equation.params["axis"])


@translates("pad")
def _pad(b: Builder, equation: Any, x: Tensor, filling: Tensor) -> Tensor:
    low, high, inner = zip(*equation.params["padding_config"], strict=True)
    if any(inner):
        raise unsupported("padding between elements")
    return b.node("Pad", x, constant(np.array([*low, *high], np.int64)), filling, **output(equation))


# Loops ------------------------------------------------------------------------------------------------------
@translates("scan")
def _scan(b: Builder, equation: Any, *inputs: Tensor) -> list[Tensor]:
    """`lax.scan` is the Scan of ONNX; values without elements stay outside."""
    p = equation.params
    consts, carried = inputs[: p["num_consts"]], inputs[p["num_consts"] :][: p["num_carry"]]
    sequences = inputs[p["num_consts"] + p["num_carry"] :]
    if not any(prod(x.shape) for x in sequences):
        sequences = (*sequences, constant(np.arange(p["length"])))  # there must be one
    start = [x for x in carried if prod(x.shape)]
    along = [x for x in sequences if prod(x.shape)]
    unused = len(sequences) - len(inputs[p["num_consts"] + p["num_carry"] :])
    outputs = [(kind_of(v.aval.dtype), v.aval.shape) for v in equation.outvars]

    def body(*variables: Tensor) -> list[Tensor]:
        given = iter(variables)
        state = [next(given) if prod(x.shape) else x for x in carried]
        rows = [
            next(given) if prod(x.shape) else constant(np.zeros(x.shape[1:], x.known.dtype))  # type: ignore[union-attr]
            for x in sequences
        ]
        made = b.translate(p["jaxpr"], [*consts, *state, *rows[: len(rows) - unused]])
        return [t for t, (_, shape) in zip(made, outputs, strict=True) if prod(shape)]

    variables = [(x.kind, x.shape) for x in start] + [(x.kind, x.shape[1:]) for x in along]
    graph, _ = b.subgraph(variables, body)
    ys, n_start = sum(bool(prod(shape)) for _, shape in outputs), len(start)
    attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(along)}
    if p["reverse"]:
        attributes |= {
            "scan_input_directions": [1] * len(along),
            "scan_output_directions": [1] * (ys - n_start),
        }
    filled = [out for out in outputs if prod(out[1])]
    made = iter(b.add_node_at(b.level, "Scan", [*start, *along], filled, **attributes))
    return [
        next(made) if prod(shape) else constant(np.zeros(shape, v.aval.dtype))
        for (_, shape), v in zip(outputs, equation.outvars, strict=True)
    ]


# What JAX can say in simpler primitives ----------------------------------------------------------------------
def log1p(x: jax.Array) -> jax.Array:
    """log(1 + x) without loss for small x (Kahan)."""
    more = 1.0 + x
    return jnp.where(more == 1.0, x, jnp.log(more) * (x / jnp.where(more == 1.0, 1.0, more - 1.0)))


def erf_inv(x: jax.Array) -> jax.Array:
    """By Giles' two polynomials of 2010, as XLA does for single precision."""
    near = [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087]
    near += [-0.00125372503, -0.00417768164, 0.246640727, 1.50140941]
    far = [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773]
    far += [-0.0076224613, 0.00943887047, 1.00167406, 2.83297682]
    w = -log1p(-x * x)
    is_near = w < 5.0
    w = jnp.where(is_near, w - 2.5, jnp.sqrt(w) - 3.0)
    total = jnp.where(is_near, near[0], far[0])
    for a, c in zip(near[1:], far[1:], strict=True):
        total = jnp.where(is_near, a, c) + total * w
    return jnp.where(jnp.abs(x) == 1.0, x * jnp.inf, total * x)


def as_float(bits: jax.Array) -> jax.Array:
    """The number of 32 bits, if it is positive and normal."""
    fraction = (bits & jnp.uint32(0x7FFFFF)).astype(jnp.float32) * 2.0**-23
    return (1.0 + fraction) * lax.exp2((bits // jnp.uint32(1 << 23)).astype(jnp.float32) - 127.0)


SIMPLER: dict[str, Callable[..., Any]] = {
    "log1p": lambda x: log1p(x),
    "expm1": lambda x: jnp.where(jnp.abs(x) < 0.5, 2.0 * jnp.tanh(x / 2) / (1.0 - jnp.tanh(x / 2)), jnp.exp(x) - 1.0),
    "erf_inv": lambda x: erf_inv(x),
    "erfc": lambda x: 1.0 - lax.erf(x),
    "square": lambda x: x * x,
    "rsqrt": lambda x: 1.0 / lax.sqrt(x),
    "exp2": lambda x: lax.pow(jnp.full_like(x, 2.0), x),
    "clamp": lambda low, x, high: lax.min(lax.max(x, low), high),
}


def _simpler(b: Builder, equation: Any, *inputs: Tensor) -> list[Tensor]:
    return b.call(SIMPLER[equation.primitive.name], *inputs)


TRANSLATIONS.update(dict.fromkeys(SIMPLER, _simpler))


@translates("integer_pow")
def _integer_pow(b: Builder, equation: Any, x: Tensor) -> list[Tensor]:
    power = equation.params["y"]

    def multiply(x: jax.Array) -> jax.Array:
        y = x
        for _ in range(abs(power) - 1):
            y = y * x
        return y if power > 0 else 1.0 / y

    return b.call(multiply, x)


@translates("bitcast_convert_type")
def _bitcast(b: Builder, equation: Any, x: Tensor) -> list[Tensor]:
    if (x.kind, output(equation)["kind"]) != ("u", "f"):
        raise unsupported("numbers read as bits of another type")
    return b.call(as_float, x)
