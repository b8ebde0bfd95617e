"""The frameworks as data: every release has a month, every default a value, every rule its source and its fix."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from cost_models.frameworks import FRAMEWORKS, version_key
from planner.frameworks import framework_documents
from planner.rules import RULES
from planner.schemas.evaluation import ReasonCode

DOCUMENTS = {document["name"]: document for document in framework_documents()}


def test_every_framework_is_there_and_is_plain_json():
    assert set(DOCUMENTS) == set(FRAMEWORKS)
    assert json.loads(json.dumps(DOCUMENTS)) == DOCUMENTS


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_releases_are_in_order_and_the_default_is_one_of_them(name):
    versions = [entry["version"] for entry in DOCUMENTS[name]["versions"]]
    months = [entry["released"] for entry in DOCUMENTS[name]["versions"]]
    assert versions == sorted(versions, key=version_key)
    assert months == sorted(months)
    assert all(re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", month) for month in months)
    assert DOCUMENTS[name]["default_version"] in versions


def test_what_megatron_and_torchtitan_do_when_not_told():
    megatron, torchtitan = DOCUMENTS["megatron"], DOCUMENTS["torchtitan"]
    assert megatron["strategy_defaults"]["etp"] == "tp"
    assert megatron["vocabulary_multiple_per_tp"] == 128
    assert megatron["training_defaults"]["main_param_dtype"] == "fp32"
    assert torchtitan["training_defaults"]["param_dtype"] == "fp32"
    assert torchtitan["choices"]["zero"] == [0, 2, 3]
    assert "zb-v" in torchtitan["choices"]["schedule"]
    assert megatron["choices"]["cp_comm"] == ["p2p", "a2a", "allgather", "a2a+p2p"]


def test_every_rule_is_shown_where_it_holds_with_code_reason_source_and_fix():
    shown = [rule for document in DOCUMENTS.values() for rule in document["rules"]]
    assert {rule["message"] for rule in shown} == {rule.message for rule in RULES}
    for rule in shown:
        assert rule["code"] in get_args(ReasonCode)
        assert all(rule[field] for field in ("message", "hint", "smallest_change", "source")), rule
    fsdp = {rule["code"] for rule in DOCUMENTS["fsdp"]["rules"]}
    assert "pipeline-unsupported" in fsdp
    assert "dispatcher-unsupported" in fsdp
    assert "moe-needs-sequence-parallel" not in fsdp
