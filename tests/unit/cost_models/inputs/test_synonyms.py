"""Other frameworks' spellings lead to the contract's fields."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from cost_models.errors import InvalidInputError
from cost_models.inputs.cluster import ClusterInput
from cost_models.inputs.fields import validated
from cost_models.inputs.model_fields import ModelInput, MoeInput
from cost_models.inputs.training import TrainingInput
from cost_models.synonyms import SYNONYMS
from planner.schemas.strategy import StrategyInput

PARTS: tuple[type[BaseModel], ...] = (ModelInput, MoeInput, ClusterInput, TrainingInput, StrategyInput)


def test_every_spelling_means_a_field_that_is_not_spelt_so_itself() -> None:
    fields = {field for part in PARTS for field in part.model_fields}
    assert set(SYNONYMS.values()) <= fields
    assert not fields & set(SYNONYMS)
    assert all(name == name.lower().replace("-", "_") for name in SYNONYMS)


@pytest.mark.parametrize(
    ("spelling", "field"),
    [
        ("tensor_model_parallel_size", "tp"), ("tensor-model-parallel-size", "tp"), ("--tensor-model-parallel-size", "tp"),
        ("pipeline_model_parallel_size", "pp"), ("context_parallel_size", "cp"), ("expert_model_parallel_size", "ep"),
        ("expert_tensor_parallel_size", "etp"), ("tensor_parallel_degree", "tp"), ("pipeline_parallel_degree", "pp"),
        ("zero_stage", "zero"), ("train_micro_batch_size_per_gpu", "micro_batch_size"), ("sharding_strategy", "zero"),
    ],
)  # fmt: skip
def test_a_strategy_in_a_frameworks_words_is_told_the_field(spelling: str, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validated(StrategyInput, {spelling: 2}, pointer="/strategy")
    assert [problem.hint for problem in caught.value.problems] == [f"Did you mean {field!r}?"]
