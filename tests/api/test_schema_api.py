"""Generated requests against the OpenAPI document: no server error, no undocumented status, no other shape of an answer."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import BaseSchema, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

BOUNDED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    # A plan request can obey the schema and still name no model, so accepting what is valid is not asked for; and in a
    # list of rows a bad one is answered in its place.
]


@pytest.fixture(scope="module")
def live_schema(live_address: str) -> BaseSchema:
    """The schema of a service that listens."""
    return schemathesis.openapi.from_url(f"{live_address}/openapi.json")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("requests", [8, pytest.param(80, marks=pytest.mark.proof)])
@pytest.mark.timeout(900)
def test_generated_requests_get_documented_answers(
    live_schema: BaseSchema, mode: GenerationMode, requests: int
) -> None:
    """So many for each operation."""
    operations = [found.ok() for found in live_schema.get_all_operations()]
    assert len(operations) == 46
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not {"parameters", "requestBody"} & operation.definition.raw.keys():
            continue  # nothing that could be wrong

        @settings(BOUNDED, max_examples=requests)
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=20)

        check()
