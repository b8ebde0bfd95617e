"""Which strategies are legal, which is best, why, and how a framework spells it."""
