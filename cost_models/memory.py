"""Peak memory per pipeline stage: allocated, reserved, device (seam; the body follows)."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.strategy import Floats, Ints


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Memory of N strategies over K stage slots, bytes per GPU."""

    allocated_KN: Floats
    peak_moment_KN: Ints
    """Index into terms.PEAK_MOMENTS."""
    heaviest_slot: Ints
    """Slot whose device memory is the largest, shape (N,)."""
    allocated: Floats
    """Of the stage where it is largest, shape (N,); likewise reserved and device."""
    reserved: Floats
    device: Floats
    device_low: Floats
    """80 % interval."""
    device_high: Floats

    def breakdown(self, slot: int, index: int) -> dict[str, float]:
        """Bytes by name of terms.MEMORY_NAMES at the slot's peak moment; they sum to its allocated bytes."""
        raise NotImplementedError
