"""Several trainings side by side: where they would run the same program, it is run once for all of them.

Each work is ordinary code in a thread of its own, and threads take turns: one goes on until it ends or wants a program
run (`run_program`). When all that are left want one, the earliest of these programs runs for those that want it, and
they go on. Two programs are the same where all but the values of their arrays agree: then the works are a further axis
of one program on a GPU, and on a CPU, which has nothing to gain from it, they share what was compiled. What each work
computes does not depend on the others.
"""

from __future__ import annotations

import contextvars
import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from types import FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


class Program(NamedTuple):
    name: str
    """of what it computes: among several that are wanted, the name that was heard of first has precedence"""
    function: Callable[..., Any]
    """jitted"""
    key: Hashable
    """`describe` of all that decides the function beside its arguments"""


class Call(NamedTuple):
    """A program that a work wants run."""

    program: Program
    arguments: tuple[Any, ...]
    rows: Mapping[str, jax.Array]
    settings: Mapping[str, Any]

    @property
    def signature(self) -> Hashable:
        """Equal where two calls can be one; the number of rows may differ."""
        _, structure = jax.tree.flatten((self.arguments, dict(self.rows)))
        shapes = [(a.shape, str(a.dtype)) for a in jax.tree.leaves(self.arguments)]
        row_shapes = [(a.shape[1:], str(a.dtype)) for a in self.rows.values()]
        return self.program.name, self.program.key, structure, *shapes, *row_shapes, *self.settings.items()


def run_program(program: Program, *arguments: Any, rows: Mapping[str, jax.Array] | None = None, **settings: Any) -> Any:
    """What the program returns for these trees of arrays, and `rows` as its last argument.

    In a work of a `Team` it runs together with those of others. `rows` may then be filled up with zeros to the longest
    of all, so the program must not depend on how many there are. `settings` are static arguments.
    """
    call = Call(program, arguments, rows or {}, settings)
    work = getattr(_this_thread, "work", None)
    return _run_one(program.function, call) if work is None else work.hand_over(call)


_this_thread = threading.local()


class Team:
    """Runs works side by side; it remembers the programs, for the next works."""

    def __init__(self) -> None:
        self._functions: dict[Hashable, Callable[..., Any]] = {}
        self._most: dict[Hashable, int] = {}

    def run(self, works: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """What each work returns, or the exception that it raised."""
        if len(works) == 1:  # nothing to wait for
            return [_outcome(works[0])]
        threads = [_Work(work) for work in works]
        replies: dict[_Work, Any] = dict.fromkeys(threads)
        waiting: dict[_Work, Call] = {}
        ranks: dict[str, int] = {}
        try:
            while replies:
                for thread, reply in replies.items():
                    if (call := thread.resume(reply)) is not None:
                        waiting[thread] = call
                        ranks.setdefault(_base(call), len(ranks))
                # The others wait for the works that are behind, as after a restart: together again they cost less.
                first = min((ranks[_base(call)] for call in waiting.values()), default=0)
                groups: dict[Hashable, list[_Work]] = {}
                for thread, call in waiting.items():
                    if ranks[_base(call)] == first:
                        groups.setdefault(call.signature, []).append(thread)
                replies = {}
                for group in groups.values():
                    answers = self._answers([waiting.pop(thread) for thread in group])
                    replies |= dict(zip(group, answers, strict=True))
        finally:
            for thread in threads:
                thread.stop()
        return [thread.outcome for thread in threads]

    def _answers(self, calls: list[Call]) -> list[Any]:
        """What each call returns, or the exception that they raise."""
        try:
            return self._run_same(calls)
        except Exception as error:
            return [error] * len(calls)

    def _run_same(self, calls: list[Call]) -> list[Any]:
        program, count = calls[0].program, len(calls)
        key = program.name, program.key
        function = self._functions.setdefault(key, program.function)
        if count == 1 or not merges():
            return [_run_one(function, call) for call in calls]
        most = self._most.get(key, count)
        if count > most:
            parts = [calls[k : k + most] for k in range(0, count, most)]
            return [answer for part in parts for answer in self._run_same(part)]
        merged = self._functions.setdefault((*key, "merged"), _merge(function))
        longest = max((len(values) for call in calls for values in call.rows.values()), default=0)
        try:
            arguments = [(*call.arguments, *_filled_up(call.rows, longest)) for call in calls]
            return jax.block_until_ready(merged(arguments, **calls[0].settings))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            self._most[key] = -(-count // 2)  # more do not fit in memory together
            return self._run_same(calls)


def merges() -> bool:
    """Whether works become an axis of one program."""
    return jax.default_backend() != "cpu"


def _base(call: Call) -> str:
    """The name of a program; a stage that is trained again is 'world-2'."""
    return re.sub(r"-\d+$", "", call.program.name)


def _run_one(function: Callable[..., Any], call: Call) -> Any:
    return function(*call.arguments, *([call.rows] if call.rows else []), **call.settings)


def _filled_up(rows: Mapping[str, jax.Array], length: int) -> list[dict[str, jax.Array]]:
    def fill(values: jax.Array) -> jax.Array:
        missing = length - len(values)
        return jnp.concatenate([values, jnp.zeros((missing, *values.shape[1:]), values.dtype)]) if missing else values

    return [{name: fill(values) for name, values in rows.items()}] if rows else []


def _merge(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The function of a list of arguments as one program, which returns a list."""

    def merged(arguments: list[tuple[Any, ...]], settings: tuple[tuple[str, Any], ...]) -> list[Any]:
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *arguments)
        out = jax.vmap(partial(function, **dict(settings)))(*stacked)
        return [jax.tree.map(lambda a, k=k: a[k], out) for k in range(len(arguments))]

    compiled = jax.jit(merged, static_argnames="settings")
    return lambda arguments, **settings: compiled(arguments, tuple(settings.items()))


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error


class _Stopped(BaseException):
    """Ends a work whose result nobody waits for."""


class _Work(threading.Thread):
    """A thread that runs only between `resume` and its next call."""

    def __init__(self, work: Callable[[], Any]):
        super().__init__(daemon=True)
        self._work, self._context = work, contextvars.copy_context()
        self._replies, self._calls = SimpleQueue[Any](), SimpleQueue[Call | None]()
        self._stopped = False
        self.outcome: Any = None

    def resume(self, reply: Any) -> Call | None:
        """Go on with the reply to the last call; returns the next one, or None at the end."""
        if self.ident is None:
            self.start()
        else:
            self._replies.put(reply)
        return self._calls.get()

    def stop(self) -> None:
        """End it, unless it has ended; where it is busy, at its next call."""
        self._stopped = True
        self._replies.put(_Stopped())
        if self.ident is not None:
            self.join(timeout=0.5)

    def run(self) -> None:
        _this_thread.work = self
        try:
            self.outcome = self._context.run(_outcome, self._work)
        except _Stopped:
            pass
        finally:
            self._calls.put(None)

    def hand_over(self, call: Call) -> Any:
        """In the thread itself: want a call run, and wait for what it returns."""
        if self._stopped:
            raise _Stopped
        self._calls.put(call)
        reply = self._replies.get()
        if isinstance(reply, BaseException):
            raise reply
        return reply


def describe(tree: Any) -> Hashable:
    """Equal for two trees that compute the same: structure and leaves agree, of functions code and all they close over.

    Arrays agree in their values. What cannot be compared is equal to itself alone.
    """
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(map(_describe_leaf, leaves))


def _describe_leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, FunctionType):
        cells = [cell.cell_contents for cell in leaf.__closure__ or ()]
        return leaf.__code__, describe((cells, leaf.__defaults__, leaf.__kwdefaults__))
    if isinstance(leaf, MethodType):
        return leaf.__func__, type(leaf.__self__), describe(vars(leaf.__self__))
    if isinstance(leaf, partial):
        return describe((leaf.func, leaf.args, leaf.keywords))
    if eqx.is_array_like(leaf) and not isinstance(leaf, bool | int | float | complex):
        array = np.asarray(leaf)
        return array.shape, str(array.dtype), array.tobytes()
    try:
        hash(leaf)
    except TypeError:
        return "unlike any other", id(leaf)
    return type(leaf), leaf
