"""What a request can refer to by name: models, GPUs, clusters, and the frameworks with their versions and defaults."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter

from app.service.api.schemas import FrameworkList, PresetList
from cost_models import presets
from planner.frameworks import framework_documents

router = APIRouter(prefix="/v1/presets", tags=["presets"])


@router.get("/models", summary="List preset models", response_description="All of them.", response_model=PresetList)
def list_models() -> dict[str, Any]:
    """Models that a request can name as `{"preset": …}`."""
    return _listed("models")


@router.get("/gpus", summary="List preset GPUs", response_description="All of them.", response_model=PresetList)
def list_gpus() -> dict[str, Any]:
    """GPUs that a cluster can name."""
    return _listed("gpus")


@router.get("/clusters", summary="List preset clusters", response_description="All of them.", response_model=PresetList)
def list_clusters() -> dict[str, Any]:
    """Clusters that a request can name as `{"preset": …}`."""
    return _listed("clusters")


@router.get("/frameworks", summary="List frameworks", response_description="All of them.", response_model=FrameworkList)
def list_frameworks() -> dict[str, Any]:
    """Frameworks with their known releases, every default, the values each accepts, and the rules it is judged by."""
    return {"items": framework_documents()}


@cache
def _listed(kind: presets.Kind) -> dict[str, Any]:
    return {"items": presets.documents(kind)}
