"""Which sets of modules a search lets selective recomputation repeat: all that no other set beats.

With M modules there are 2^M sets, the empty one being no recomputation. A set is dropped only where another one that is tried saves no
less memory and repeats no more seconds, in every kind of layer and under all degrees of the space; `_beats` says why that is
enough. Where there are more than MOST_SETS, as with experts and latent attention, trying all that remain would take several times as long,
so that only single modules and the sets that grow from them are tried; `search.not_searched` says so.

Array suffixes: M modules, S sets, J layer kinds, U layers of the space that differ, N kinds times these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.layers.autocast import casts_by_stage
from cost_models.layers.costs import layer_costs
from cost_models.memory.batch import build_batch
from cost_models.strategies.fields import MOE_MODULE, RECOMPUTE_MODULES, Recompute
from cost_models.strategies.strategy import Strategies, concatenated
from planner.rules import violations
from planner.strategies.expansion import layer_variants
from planner.strategies.repetitions import INSIDE_MOE
from planner.strategies.space import Space

MOST_SETS = 40
"""Sets among which all that no other one beats are tried."""
LEAST_SAVED = 0.01
"""Where there are more: share of a layer's activations that a module must save to be tried."""
SAME = 1e-9
"""Relative difference of seconds and bytes that the order of a sum makes."""
_LOOKED_AT_FIRST = 128
Floats = NDArray[np.float64]


def module_sets(space: Space) -> tuple[int, ...]:
    """The sets to try, the framework's default first."""
    own = space.module_sets
    asked = Recompute.SELECTIVE in space.recompute_modes and "recompute_modules" not in space.knobs
    if not (asked and space.job.framework.choices.recompute_modules and len(space.degrees)):
        return own
    legal = _legal_modules(space)
    if len(_sets(legal)) > MOST_SETS:
        return tuple(dict.fromkeys((*own, *_grown(space, legal))))
    saved_MN, repeated_MN = _worth(space, legal, space.degrees.different_layers())
    kept = _unbeaten(_sets(legal), saved_MN, repeated_MN, nothing=Recompute.NONE in space.recompute_modes)
    return tuple(dict.fromkeys((*own, *kept)))


def tries_every_set(space: Space) -> bool:
    """Whether nothing but beaten sets is left out, where the request leaves the sets to the search."""
    return len(_sets(_legal_modules(space))) <= MOST_SETS


def _sets(legal: list[int]) -> list[int]:
    """All sets of these modules that differ in what they save: `moe` repeats what lies inside it anyway, and takes no longer alone."""
    every = [sum(1 << bit for at, bit in enumerate(legal) if number >> at & 1) for number in range(1, 1 << len(legal))]
    return [each for each in every if not (each & MOE_MODULE and each & INSIDE_MOE)]


def _unbeaten(sets: list[int], saved_MN: Floats, repeated_MN: Floats, *, nothing: bool) -> list[int]:
    """The sets that no other one beats, those that repeat least first; `nothing`: the empty set counts as one of the others."""
    candidates = [0] * nothing + sets
    member_SM = np.array(
        [[each >> bit & 1 for bit in range(len(RECOMPUTE_MODULES))] for each in candidates], np.float64
    )
    repeated_S = member_SM @ repeated_MN.sum(axis=1)
    # Only sets that both hold whole mixture layers, or both do not, are compared: nothing is then said of the exchange between
    # experts, which differs with the place of their ranks, and of its overlap, which such a set rules out.
    moe_S = member_SM[:, RECOMPUTE_MODULES.index("moe")].copy()
    member_SM[:, RECOMPUTE_MODULES.index("moe")] = 0.0
    # A few layers tell of most pairs of sets that neither beats the other.
    some = slice(None, None, max(1, saved_MN.shape[1] // _LOOKED_AT_FIRST))
    few_SN, few_s_SN = member_SM @ saved_MN[:, some], member_SM @ repeated_MN[:, some]
    kept = []
    for at, modules in enumerate(candidates):
        maybe = (few_SN >= few_SN[at] * (1.0 - SAME)).all(axis=1) & (few_s_SN <= few_s_SN[at] * (1.0 + SAME)).all(
            axis=1
        )
        others = np.flatnonzero(maybe & (moe_S == moe_S[at]))
        if not any(_beats(candidates[other], modules, saved_MN, repeated_MN) for other in others.tolist()):
            kept.append(at)
    return [candidates[at] for at in sorted(kept, key=lambda at: float(repeated_S[at])) if candidates[at]]


def _beats(one: int, other: int, saved_MN: Floats, repeated_MN: Floats) -> bool:
    """Whether a set saves no less and repeats no longer than another one everywhere, or does exactly the same with fewer modules.

    Then every strategy with the other set has one with this set that needs no more memory and no more time. A stage saves a set's
    bytes once for each layer and micro-batch in flight, of which there is at least one, and its backward makes them again once
    [M-5, M-6]. A stage that is shorter by some seconds hides less communication, but by no more than these seconds.
    """
    if one == other:
        return False
    mine, its = (_total(modules & ~MOE_MODULE, saved_MN) for modules in (one & ~other, other & ~one))
    mine_s, its_s = (_total(modules & ~MOE_MODULE, repeated_MN) for modules in (one & ~other, other & ~one))
    if (mine < its * (1.0 - SAME)).any() or (mine_s > its_s * (1.0 + SAME)).any():
        return False
    alike = (mine <= its * (1.0 + SAME)).all() and (mine_s >= its_s * (1.0 - SAME)).all()
    return not alike or (one.bit_count(), one) < (other.bit_count(), other)


def _total(modules: int, each_MN: Floats) -> Floats:
    return np.asarray(
        sum((each_MN[bit] for bit in range(len(each_MN)) if modules >> bit & 1), np.zeros(each_MN.shape[1]))
    )


def _legal_modules(space: Space) -> list[int]:
    """The modules, as bits, that this framework and version can repeat in this model."""
    first = {name: np.repeat(column[:1], len(RECOMPUTE_MODULES)) for name, column in _middle(space).items()}
    rows = _with_modules(_rows(space, first, zero=min(space.zeros)), 1 << np.arange(len(RECOMPUTE_MODULES)))
    return np.flatnonzero(violations(space.job, rows).only(frozenset({"recompute-modules-unsupported"})).legal).tolist()


def _middle(space: Space) -> dict[str, NDArray[Any]]:
    """The degrees of a mesh amidst the others, which stands for all of them."""
    rows = space.degrees.rows(np.array([len(space.degrees) // 2]))
    return {name: column[-1:] for name, column in rows.items()}


def _grown(space: Space, legal: list[int]) -> list[int]:
    """Every module that saves something worth naming, and the sets that grow from these by the memory that a module saves for each
    second, in one mesh amidst the others.
    """
    saved_MN, repeated_MN = _worth(space, legal, _middle(space))
    kinds = space.job.model.distinct_kinds
    layers_J = np.array([space.job.model.layer_kinds.count(kind) for kind in kinds])
    rows = _rows(space, _middle(space), zero=min(space.zeros))
    whole = layers_J @ np.array(build_batch(space.job, rows).table.whole_J)[:, 0]
    moe = RECOMPUTE_MODULES.index("moe")
    if moe in legal:
        table = build_batch(space.job, _with_modules(rows, np.array([MOE_MODULE]))).table
        saved_MN[moe] = (
            (np.array(table.whole_J) - np.array(table.kept_J))[:, :1]
            .repeat(len(saved_MN[0]) // len(kinds), 1)
            .reshape(-1)
        )
    each_J = [values.reshape(len(values), len(kinds), -1)[:, :, 0] @ layers_J for values in (saved_MN, repeated_MN)]
    saved, repeated = each_J[0] / whole, each_J[1]
    useful = np.flatnonzero(saved >= LEAST_SAVED)
    sets, grown = [1 << int(bit) for bit in useful], 0
    for bit in useful[np.argsort(-saved[useful] / np.maximum(repeated[useful], 1e-30), kind="stable")].tolist():
        grown |= 1 << bit
        sets.append(grown & ~INSIDE_MOE if grown & MOE_MODULE else grown)
    totals = {each: tuple(sum(of[b] for b in legal if each >> b & 1) for of in (saved, repeated)) for each in sets}
    kept = [one for one in totals if not any(_better(totals[other], totals[one]) for other in totals)]
    return sorted(kept, key=lambda each: float(totals[each][1]))


def _better(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and one[0] >= other[0] and one[1] <= other[1]


def _worth(space: Space, legal: list[int], degrees: dict[str, NDArray[Any]]) -> tuple[Floats, Floats]:
    """By module, the bytes that it saves and the seconds that it repeats in one layer of each kind, for every layer of these
    degrees, shape (M, N) each; 0 for modules that cannot be repeated, and for the bytes of whole mixture layers.
    """
    job = space.job
    zeros = space.zeros if casts_by_stage(job) else (min(space.zeros),)
    # Overlaps and the way of tokens to their experts change no module but whole mixture layers, of which only the exchange.
    knobs = {name: values for name, values in space.layer_knobs.items() if name in ("cp_comm", "cp_a2a_size")}
    variants = (layer_variants(job, knobs, _rows(space, degrees, zero=zero)) for zero in zeros)
    rows = concatenated([each for several in variants for each in several])
    costs = layer_costs(job, rows)
    saved_MJU, repeated_MJU = np.zeros((2, len(RECOMPUTE_MODULES), len(job.model.distinct_kinds), len(rows)))
    for bit in legal:
        repeated_MJU[bit] = costs.cases.spread(costs.modules_JMU[:, bit])
        if 1 << bit != MOE_MODULE:
            table = build_batch(job, _with_modules(rows, np.full(len(rows), 1 << bit))).table
            saved_MJU[bit] = np.array(table.whole_J) - np.array(table.kept_J)
    return saved_MJU.reshape(len(saved_MJU), -1), repeated_MJU.reshape(len(repeated_MJU), -1)


def _rows(space: Space, degrees: dict[str, NDArray[Any]], *, zero: int) -> Strategies:
    """Plain strategies of these degrees that recompute selectively."""
    n = len(degrees["tp"])
    columns: dict[str, Any] = {**degrees, "vpp": np.ones(n, np.int64), "layout": np.zeros(n, np.int64)}
    columns |= {"zero": np.full(n, zero), "recompute": np.full(n, Recompute.SELECTIVE)}
    columns |= {"recompute_method": np.zeros(n, np.int64), "recompute_num_layers": np.zeros(n, np.int64)}
    return space.build(columns | {name: np.full(n, values[0]) for name, values in space.knobs.items()})


def _with_modules(rows: Strategies, modules: NDArray[np.int64]) -> Strategies:
    return replace(rows, recompute_modules=modules.astype(np.int8))
