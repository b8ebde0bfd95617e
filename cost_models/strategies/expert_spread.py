"""Over how many ranks, nodes or NVLink domains the experts of one token are spread. [C-18]

A router picks top_k experts for a token. A dispatcher that sends one copy per expert moves top_k copies whatever they share; one
that sends one copy per place moves as many copies as there are different places. Which experts a router prefers is not known:
every choice that the model's groups allow is taken to be as likely as any other.
"""

from __future__ import annotations

from math import ceil, floor

import numpy as np

from cost_models.specs.model import Moe
from cost_models.strategies.strategy import Floats


def expected_places(moe: Moe, places: Floats) -> Floats:
    """Expected number of places that hold one of a token's experts, shape of `places`. [C-18]

        without groups    p (1 - C(E - E/p, k) / C(E, k))
        p <= G            p (1 - C(G - G/p, g) / C(G, g))
        p > G             g p/G (1 - C(E/G - E/p, k/g) / C(E/G, k/g))

    E experts lie in p equal, consecutive places; k of them are a token's. Group-limited routing takes g of G groups by their best
    experts, so that each chosen group serves the token, with k/g experts on average.

    Args:
        moe: the experts and how a token's are chosen.
        places: number of equal parts that the list of experts is cut into; 1 gives 1.
    """
    experts, top_k = float(moe.num_experts), float(moe.top_k)
    groups, chosen = float(moe.num_groups), float(moe.topk_groups)
    if chosen >= groups:
        return places * (1.0 - _missed(experts, experts / places, top_k))
    # Consecutive experts form a group, so a place is either whole groups or part of one.
    cut = np.maximum(places / groups, 1.0)  # places within one group, where there are more places than groups
    inside = cut * (1.0 - _missed(experts / groups, experts / groups / cut, max(top_k / chosen, 1.0)))
    over_groups = np.minimum(places, groups)
    return np.asarray(over_groups * (1.0 - _missed(groups, groups / over_groups, chosen)) * inside)


def _missed(total: float, held: Floats, drawn: float) -> Floats:
    """Chance, 0...1, that none of `drawn` out of `total` is among the `held`; linear between whole numbers drawn."""
    low, high = floor(drawn), ceil(drawn)
    chance = np.ones_like(held)
    for taken in range(low):
        # The quotient of the binomial coefficients as a product, which does not overflow for hundreds of experts.
        chance = chance * np.clip((total - held - taken) / (total - taken), 0.0, 1.0)
    if high == low:
        return chance
    more = chance * np.clip((total - held - low) / (total - low), 0.0, 1.0)
    return np.asarray(chance + (drawn - low) * (more - chance))
