"""The true graph of a problem: what the equations name, without what never shows.

Equations name more than they use: a fluent whose coefficient is 0, a condition that no state satisfies, a robot in two
places. So each input is changed alone, many times, in states that were reached, while the noise stays the same; of
Boolean states only to one that was reached too. A next state that never changes with the input has no edge from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from because_rl.graph import Graph
from benchmarks.third_party.rddl import Problem

PERTURBATIONS = 20_000
"""of each input"""


@dataclass(frozen=True)
class Truth:
    """Both arrays: (inputs, states)."""

    graph: Graph
    share: np.ndarray
    """of the perturbations that change the next state"""
    named: np.ndarray
    """whether the equation names the input"""


def true_graph(problem: Problem, states: np.ndarray, rng: np.random.Generator, times: int = PERTURBATIONS) -> Truth:
    """Change one input at a time in `states` (n, states), which were reached.

    A state fluent takes its value in another row, or the other Boolean. A numbered action is chosen, or nothing is
    done; a real one is drawn anew.
    """
    names, width = problem.inputs, len(problem.states)
    share, named = np.zeros((2, len(names), width))
    reached = np.unique(states, axis=0) if problem.boolean_states else states
    known = set(map(bytes, reached.astype(np.uint8)))
    for i, name in enumerate(names):
        named[i] = [name in problem.syntax[target] for target in problem.states]
        state = reached[rng.integers(len(reached), size=times)]
        changed = state.copy()
        if i < width and problem.boolean_states:
            flipped = reached.copy()
            flipped[:, i] = 1 - flipped[:, i]
            both = np.flatnonzero([row in known for row in map(bytes, flipped.astype(np.uint8))])
            if not len(both):
                continue
            rows = both[rng.integers(len(both), size=times)]
            state, changed = reached[rows], flipped[rows]
        elif i < width:
            changed[:, i] = states[rng.integers(len(states), size=times), i]
        action, noise = problem.random_actions(times, rng), problem.noise(times, rng)
        changed_action = action.copy()
        if i >= width and problem.numbered:
            action, changed_action = np.zeros_like(action), np.zeros_like(action)
            changed_action[:, i - width] = 1
        elif i >= width:
            changed_action[:, i - width] = problem.random_actions(times, rng)[:, i - width]
        before = problem.step(state, action, noise)[0]
        after = problem.step(changed, changed_action, noise)[0]
        share[i] = (before != after).mean(0)
    if unnamed := [(names[i], problem.states[j]) for i, j in np.argwhere((share > 0) & (named == 0))]:
        raise AssertionError(f"{problem.name}: {unnamed[0]} acts though its equation does not name it")
    edges = frozenset((names[i], problem.states[j]) for i, j in np.argwhere(share > 0))
    return Truth(Graph(names, problem.states, edges), share, named.astype(bool))
