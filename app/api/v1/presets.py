"""What can be named in a request: models, GPUs, clusters, and the frameworks with their versions and defaults."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter

from app.api.documents import FrameworkList, PresetList
from cost_models import presets
from cost_models.runtimes import RUNTIMES, Runtime
from cost_models.training_defaults import DEFAULTS, RELEASES, STATE_DTYPES, Row

router = APIRouter(prefix="/v1/presets", tags=["presets"])


@router.get("/models", response_model=PresetList)
def list_models() -> dict[str, Any]:
    """Models that can be named as `{"preset": …}`."""
    return _listed("models")


@router.get("/gpus", response_model=PresetList)
def list_gpus() -> dict[str, Any]:
    """GPUs that can be named in a cluster."""
    return _listed("gpus")


@router.get("/clusters", response_model=PresetList)
def list_clusters() -> dict[str, Any]:
    """Clusters that can be named as `{"preset": …}`."""
    return _listed("clusters")


@router.get("/frameworks", response_model=FrameworkList)
def list_frameworks() -> dict[str, Any]:
    """Frameworks with their known releases and every default."""
    return {"items": [_framework(runtime) for runtime in RUNTIMES.values()]}


@cache
def _listed(kind: presets.Kind) -> dict[str, Any]:
    loaded = [presets.load(kind, name) for name in presets.names(kind)]
    return {"items": [{"name": p.name, "spec": dict(p.spec), "facts": dict(p.facts)} for p in loaded]}


def _framework(runtime: Runtime) -> dict[str, Any]:
    fields = {name: _choices(rows, runtime.framework) for name, rows in DEFAULTS.items()}
    return {
        "name": runtime.framework,
        "default_version": runtime.default_version,
        "versions": [{"version": version, "released": month} for version, month in RELEASES[runtime.framework]],
        "strategy_defaults": {
            "zero": runtime.default_zero,
            "sequence_parallel": runtime.default_sequence_parallel,
            "overlap": dict(runtime.overlaps),
        },
        "training_defaults": {**fields, **STATE_DTYPES[runtime.framework]},
    }


def _choices(rows: tuple[Row, ...], framework: str) -> object:
    """The rows that can hold for this framework; the bare value where only one does and it always does."""
    mine = [row for row in rows if row.frameworks is None or framework in row.frameworks]
    shown = [{"value": row.value, "when": _conditions(row)} for row in mine]
    first_certain = next(i for i, entry in enumerate(shown) if not entry["when"])
    return shown[0]["value"] if first_certain == 0 else shown[: first_certain + 1]


def _conditions(row: Row) -> dict[str, object]:
    conditions = {
        "since": row.since if row.since > "0000-00" else None,
        "before": row.before if row.before < "9999-99" else None,
        "gpu_generations": sorted(row.generations) if row.generations else None,
        "transformer_impl": row.impl,
        "precisions": sorted(row.precisions) if row.precisions else None,
        "compile": row.compiled,
    }
    return {name: value for name, value in conditions.items() if value is not None}
