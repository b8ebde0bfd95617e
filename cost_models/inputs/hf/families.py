"""Every `model_type` that can be read.

To add one, add its entry to the table of dense families, of mixtures or of hybrids, and a row to tests/oracle/test_hf_parameters.py (or
test_hf_hybrids.py), which compares the parameter counts with those of the modules themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.inputs.hf.dense_families import DENSE
from cost_models.inputs.hf.family import Family
from cost_models.inputs.hf.hybrid_families import HYBRIDS
from cost_models.inputs.hf.mixture_families import MIXTURES

FAMILIES: Mapping[str, Family] = {**DENSE, **MIXTURES, **HYBRIDS}
