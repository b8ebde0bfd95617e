"""Constants of units. Everything inside is in SI base units, so these appear only where a human unit is read or printed."""

from __future__ import annotations

MIB = float(2**20)
GIB = float(2**30)
"""Bytes in a GiB."""
GB = 1e9
"""Bytes in a decimal gigabyte, the unit of vendor and NCCL bandwidths."""
TERA = 1e12
MICRO = 1e-6
BITS_PER_BYTE = 8.0
HOUR_S = 3600.0
DAY_S = 86_400.0
KWH = 3.6e6
"""Joules in a kilowatt-hour."""
GRAMS_PER_KG = 1e3
