"""Every `model_type` that can be read.

To add one, add its entry to the dense or the mixture table, and a row to tests/oracle/test_hf_parameters.py, which compares the
parameter counts with those of the modules themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.inputs.hf.dense_families import DENSE
from cost_models.inputs.hf.family import Family
from cost_models.inputs.hf.mixture_families import MIXTURES

FAMILIES: Mapping[str, Family] = {**DENSE, **MIXTURES}
