"""ONNX graphs from JAX: writes the program that JAX traced (a jaxpr) with operators of ONNX.

Every value is a `Tensor`: either known already, or the output of a node. What is known is computed by JAX and becomes a
constant. A node is written into the outermost graph in which all its inputs exist, so that nothing in the body of a
loop is computed again that does not change there.

Numbers keep their precision: float32 is FLOAT, bool is BOOL. All integers are INT64, of which uint32 uses the low 32
bits, and a key of JAX's random numbers is one INT64 with its two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.extend import core
from onnx import TensorProto, helper

from because_rl.errors import BecauseError

OPSET, IR_VERSION = 20, 9
"""Runtimes of the year 2024 and later read these."""
MOST_CONSTANTS = 1 << 16
"""Elements of a constant, at most, where computing it does not make it smaller."""

Translation = Callable[..., Any]
"""(builder, equation of the jaxpr, inputs) -> output, or outputs in a list"""
TRANSLATIONS: dict[str, Translation] = {}
"""By the name of the primitive: filled by `primitives`, `picking` and `random`."""
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Primitives that call a jaxpr -> the parameter that holds it."""

TYPES = {"f": TensorProto.FLOAT, "d": TensorProto.DOUBLE, "b": TensorProto.BOOL, "i": TensorProto.INT64}
STORED: dict[str, Any] = {"f": np.float32, "d": np.float64, "b": np.bool_, "i": np.int64}


class Tensor(NamedTuple):
    shape: tuple[int | str, ...]
    """sizes, or the name of one that is known when the graph runs"""
    kind: str
    """f float32, d float64, b bool, i integer, u unsigned integer of 32 bits, k key of random numbers"""
    name: str = ""
    level: int = 0
    """of the graph that computes it, 0 for the outermost"""
    known: np.ndarray | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a tensor none of whose sizes is a name."""
        return tuple(int(size) for size in self.shape)

    @property
    def stored(self) -> str:
        return "i" if self.kind in "uk" else self.kind


def kind_of(dtype: Any) -> str:
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return "k"
    kinds = {"float32": "f", "float64": "d", "bool": "b", "uint32": "u"}
    name = np.dtype(dtype).name
    if name not in kinds and not np.issubdtype(dtype, np.integer):
        raise unsupported(f"numbers of type {name}")
    return kinds.get(name, "i")


def constant(value: Any) -> Tensor:
    array = np.asarray(value)
    return Tensor(array.shape, kind_of(array.dtype), known=array)


def unsupported(what: str) -> BecauseError:
    return BecauseError(
        f"This agent's planner uses {what}, which is not translated to ONNX.",
        need="operations in because_rl/onnx/primitives.py.",
        fix="add it there, or report it with the method's name.",
    )


def translates(*names: str) -> Callable[[Translation], Translation]:
    """Registers a function as the translation of these primitives."""

    def register(translation: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(names, translation))
        return translation

    return register


def output(equation: Any, n: int = 0) -> dict[str, Any]:
    """Kind and shape of an output of an equation."""
    aval = equation.outvars[n].aval
    return {"kind": kind_of(aval.dtype), "shape": aval.shape}


class Builder:
    """Writes one model: nodes into the graphs that are open, constants into the outermost."""

    def __init__(self) -> None:
        self._nodes: list[list[onnx.NodeProto]] = [[]]
        self._constants: dict[tuple, str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    @property
    def level(self) -> int:
        return len(self._nodes) - 1

    def reference(self, tensor: Tensor) -> str:
        """The name by which nodes read a tensor."""
        if tensor.known is None:
            return tensor.name
        array = np.array(tensor.known, STORED[tensor.stored], order="C")
        key = array.tobytes(), array.dtype.str, array.shape
        if key not in self._constants:
            self._constants[key] = self.name()
            self._initializers.append(onnx.numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def add_node(
        self,
        operator: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[tuple[str, Sequence[int | str]]],
        **attributes: Any,
    ) -> list[Tensor]:
        """Write a node; `outputs` are (kind, shape) each."""
        level = max((t.level for t in inputs if t.known is None), default=0)
        return self.add_node_at(level, operator, inputs, outputs, **attributes)

    def add_node_at(
        self,
        level: int,
        operator: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[tuple[str, Sequence[int | str]]],
        **attributes: Any,
    ) -> list[Tensor]:
        made = [Tensor(tuple(shape), kind, self.name(), level) for kind, shape in outputs]
        names = [self.reference(t) for t in inputs]
        self._nodes[level].append(helper.make_node(operator, names, [t.name for t in made], **attributes))
        return made

    def node(self, operator: str, *inputs: Tensor, kind: str, shape: Sequence[int | str], **attributes: Any) -> Tensor:
        """Write a node of one output."""
        return self.add_node(operator, inputs, [(kind, shape)], **attributes)[0]

    def subgraph(
        self, inputs: Sequence[tuple[str, Sequence[int | str]]], body: Callable[..., Sequence[Tensor]]
    ) -> tuple[onnx.GraphProto, list[Tensor]]:
        """A graph inside a node, and its outputs; it may read what graphs around it have computed."""
        self._nodes.append([])
        variables = [Tensor(tuple(shape), kind, self.name(), self.level) for kind, shape in inputs]
        # Each output is a node of this graph alone.
        outputs = [self.add_node_at(self.level, "Identity", [t], [(t.kind, t.shape)])[0] for t in body(*variables)]
        return self._close(variables, outputs), outputs

    def _close(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> onnx.GraphProto:
        nodes = self._nodes.pop()
        return helper.make_graph(nodes, f"g{self._count}", *([_info(t) for t in part] for part in (inputs, outputs)))

    def model(
        self, inputs: Sequence[Tensor], outputs: Sequence[tuple[str, Tensor]], metadata: dict[str, str]
    ) -> onnx.ModelProto:
        """The finished model; `outputs` with their names."""
        named = [t._replace(name=name, known=None) for name, t in outputs]
        for (_, source), target in zip(outputs, named, strict=True):
            self._nodes[0].append(helper.make_node("Identity", [self.reference(source)], [target.name]))
        graph = self._close(inputs, named)
        graph.initializer.extend(self._initializers)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="because-rl")
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model)
        return model

    # Translation of what JAX has traced --------------------------------------------------------------------
    def call(self, function: Callable[..., Any], *arguments: Tensor) -> Any:
        """The outputs of a function of arrays, as JAX traces it, in a list."""
        shapes = [jax.ShapeDtypeStruct(t.shape, jax_dtype(t)) for t in arguments]
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            traced = jax.make_jaxpr(function)(*shapes)
        return self.translate(traced, arguments)

    def translate(self, traced: Any, arguments: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a jaxpr with its constants."""
        jaxpr = traced.jaxpr
        values: dict[Any, Tensor] = {}
        values |= dict(zip(jaxpr.constvars, map(constant, traced.consts), strict=True))
        values |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> Tensor:
            return constant(_literal(variable)) if isinstance(variable, core.Literal) else values[variable]

        for equation in jaxpr.eqns:
            outputs = self._equation(equation, [read(v) for v in equation.invars])
            values |= dict(zip(equation.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Tensor]) -> list[Tensor]:
        name, shapes = equation.primitive.name, [v.aval.shape for v in equation.outvars]
        sizes = [int(np.prod(shape)) for shape in shapes]
        if not any(sizes):
            return [constant(np.zeros(v.aval.shape, v.aval.dtype)) for v in equation.outvars]
        if name in CALLS:
            return self.translate(equation.params[CALLS[name]], inputs)
        known = [t.known for t in inputs if t.known is not None]
        few = sum(sizes) <= max(MOST_CONSTANTS, *(a.size for a in known), 0)
        if name in FOLDED and len(known) == len(inputs) and few:
            return [constant(np.asarray(FOLDED[name](equation, *known), equation.outvars[0].aval.dtype))]
        if name not in TRANSLATIONS:
            raise unsupported(f"the operation {name!r}")
        made = TRANSLATIONS[name](self, equation, *inputs)
        return made if isinstance(made, list) else [made]


def _broadcast(equation: Any, x: np.ndarray) -> np.ndarray:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    return np.broadcast_to(np.expand_dims(x, [d for d in range(len(shape)) if d not in places]), shape)


def _apply(ufunc: np.ufunc, equation: Any, *inputs: np.ndarray) -> np.ndarray:
    return ufunc(*inputs)


def _slice(equation: Any, x: np.ndarray) -> np.ndarray:
    p = equation.params
    return x[tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or (1,) * x.ndim))]


UFUNCS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
}
UFUNCS |= {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
UFUNCS |= {"ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
FOLDED: dict[str, Callable[..., Any]] = {
    **{name: partial(_apply, ufunc) for name, ufunc in UFUNCS.items()},
    **{name: lambda equation, x: x.reshape(equation.outvars[0].aval.shape) for name in ("reshape", "squeeze")},
    "broadcast_in_dim": _broadcast,
    "convert_element_type": lambda equation, x: x,
    "iota": lambda equation: np.indices(equation.params["shape"], np.int32)[equation.params["dimension"]],
    "slice": _slice,
    "transpose": lambda equation, x: x.transpose(equation.params["permutation"]),
    "concatenate": lambda equation, *inputs: np.concatenate(inputs, equation.params["dimension"]),
    "select_n": lambda equation, which, *cases: np.choose(which.astype(int), cases),
    "clamp": lambda equation, low, x, high: np.clip(x, low, high),
}
"""What is computed here where all inputs are known: mostly places of elements. ONNX Runtime computes the rest once."""


def jax_dtype(tensor: Tensor) -> Any:
    """The type by which JAX traces a tensor."""
    dtypes = {"f": jnp.float32, "b": jnp.bool_, "i": jnp.int32, "u": jnp.uint32}
    return jax.random.key(0).dtype if tensor.kind == "k" else dtypes[tensor.kind]


def _literal(variable: Any) -> np.ndarray:
    return np.asarray(variable.val, variable.aval.dtype)


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TYPES[tensor.stored], tensor.shape)
