"""Prints for each model family how many drawn configs our reader and the real modules count alike, and where they differ.

transformers builds the modules on the meta device, and the oracle test's own strategy draws the configs. Needs torch and
transformers. Usage: family_table.py [--examples 50] [--families llama,dbrx]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cost_models.inputs.hf.families import FAMILIES

ORACLE = Path(__file__).parents[1] / "tests" / "oracle" / "test_hf_parameters.py"


def oracle() -> ModuleType:
    """The oracle test as a module: its strategy and its two counts."""
    # Loaded by its path: tests are no package, and a copy of its strategy would drift away from it.
    spec = importlib.util.spec_from_file_location("hf_parameters_oracle", ORACLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tried(counts: ModuleType, model_type: str, examples: int) -> dict[str, tuple[int, int]]:
    """Our count of parameters and that of the modules, by drawn config."""
    found: dict[str, tuple[int, int]] = {}

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(config=st.composite(counts.family_config)(model_type))
    def collect(config: dict[str, Any]) -> None:
        key = json.dumps(config, sort_keys=True)
        if key not in found:
            found[key] = (counts.our_count(config), counts.modules_count(config))

    collect()
    return found


def main(arguments: list[str]) -> int:
    """The table on standard output; 1 where a count differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--families", default=",".join(FAMILIES))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    counts, differing = oracle(), 0
    print(f"{'family':18} {'exact':5} {'drawn configs':>13} {'disagreements':>13}")
    for model_type in options.families.split(","):
        found = tried(counts, model_type, options.examples)
        wrong = {config: both for config, both in found.items() if both[0] != both[1]}
        differing += len(wrong)
        print(f"{model_type:18} {'no' if wrong else 'yes':5} {len(found):13} {len(wrong):13}", flush=True)
        for config, (ours, theirs) in list(wrong.items())[:3]:
            print(f"    {config}: {ours}, modules {theirs}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
