"""A step's time from a printed rate, with the resolution that the rate's digits leave."""

from __future__ import annotations

from profiler.logs.reading import Kind, Sample
from profiler.logs.text import printed


def of_rate(
    amount: float, text: str, *, kind: Kind, step: int | None, rank: int | None, has_thousands: bool = False
) -> Sample | None:
    """The time in which a step handles this amount at the printed rate; None where the rate is zero.

    A rate that is known to one part in n gives a time that is known to one part in n.

    Args:
        amount: what one step handles, in the rate's own unit: sequences, tokens, or 1 for steps.
        text: the rate, in that unit a second.
        kind: what the rate is a mean of.
        step: number of the step.
        rank: the rank that printed it.
        has_thousands: whether the program separates thousands by commas.

    Raises:
        UnclearNumberError: the text is no number, or could be two.
    """
    rate, unit, digits = printed(text, has_thousands=has_thousands)
    if rate <= 0.0:
        return None
    seconds = amount / rate
    return Sample(seconds, seconds * unit / rate, digits, kind, step=step, rank=rank)
