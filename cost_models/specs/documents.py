"""Documents of several lengths in one sequence: which tokens see each other."""

from __future__ import annotations

import math
from functools import lru_cache

Lengths = tuple[tuple[float, float], ...]
"""Lengths of documents in tokens, and how many of all documents have each, in any unit."""
_CLASSES_PER_OCTAVE = 2.0
"""Lengths within a factor of the square root of two are priced as one: kernels take as long for either to a few percent."""


@lru_cache(maxsize=1024)
def spans(lengths: Lengths, seq_length: int) -> Lengths:
    """Lengths in which tokens see each other, in tokens, each with its share of all tokens; the shares sum to 1. [F-31]

    A document that is longer than a sequence is cut into whole sequences and a rest; the others are whole. Lengths that are close
    count as their mean over tokens, which leaves the number of pairs of tokens as it is.
    """
    # Numbers of tokens in a class, and of pairs of tokens that see each other: the sum of squares, of which causal attention computes half.
    classes: dict[int, list[float]] = {}
    for length, share in lengths:
        whole = math.floor(length / seq_length) if length > seq_length else 0
        for piece, count in ((float(seq_length), whole), (length - whole * seq_length, 1)):
            if piece > 0 and count:
                held = classes.setdefault(math.floor(_CLASSES_PER_OCTAVE * math.log2(piece)), [0.0, 0.0])
                held[0] += share * count * piece
                held[1] += share * count * piece * piece
    # A class stands for its mean over tokens and not over documents, so that its pairs stay what they were.
    tokens = sum(held[0] for held in classes.values())
    return tuple((held[1] / held[0], held[0] / tokens) for _, held in sorted(classes.items()))


def cut_documents(lengths: Lengths, seq_length: int) -> Lengths:
    """Lengths of documents in rows of their own, in tokens, where what is longer than a row is cut off; shares as they are. [F-36]"""
    return tuple((min(length, float(seq_length)), share) for length, share in lengths)


def filled_share(lengths: Lengths, seq_length: int) -> float:
    """Share of the tokens of rows of `seq_length` that belong to documents, one to a row; the others are padding. [F-36]"""
    cut, documents = cut_documents(lengths, seq_length), sum(share for _, share in lengths)
    return sum(length * share for length, share in cut) / (documents * seq_length)


def attended_mean(lengths: Lengths, seq_length: int) -> float:
    """Tokens that a token's document spans on average over tokens: documents of this one length have as many pairs. [F-31]"""
    return sum(length * share for length, share in spans(lengths, seq_length))
