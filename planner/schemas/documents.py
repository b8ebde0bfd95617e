"""The specifications inside a request: kept as the documents that were sent, described in the OpenAPI document by their models.

They are checked where they are resolved (`resolve_model` and its like), because the defaults of one depend on the others. Checking
them here as well would report every mistake twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cost_models.documented import Documented
from cost_models.inputs.cluster import ClusterInput
from cost_models.inputs.corrections import CorrectionsInput
from cost_models.inputs.model_fields import ModelInput
from cost_models.inputs.training import TrainingInput


@dataclass(frozen=True, slots=True)
class _DescribedBy:
    """Gives a plain object the JSON schema of a boundary model, without validating it."""

    model: type[Documented]

    def __get_pydantic_json_schema__(self, _core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(self.model.__pydantic_core_schema__)
        self.model.describe(handler.resolve_ref_schema(schema))
        return schema


ModelDocument = Annotated[dict[str, Any], _DescribedBy(ModelInput)]
ClusterDocument = Annotated[dict[str, Any], _DescribedBy(ClusterInput)]
TrainingDocument = Annotated[dict[str, Any], _DescribedBy(TrainingInput)]
CorrectionsDocument = Annotated[dict[str, Any], _DescribedBy(CorrectionsInput)]
