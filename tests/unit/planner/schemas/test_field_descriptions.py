"""The docstring under a field is what the JSON schema says of it."""

from __future__ import annotations

from planner.schemas.base import ContractModel


class Told(ContractModel):
    """A document."""

    size: int = 1
    """How large
    it is."""
    plain: int = 1


class Longer(Told):
    """A document with one field more."""

    more: Told | None = None
    """What else is told."""


def test_docstrings_become_descriptions_also_of_inherited_fields() -> None:
    schema = Longer.model_json_schema()
    described = {name: entry.get("description") for name, entry in schema["properties"].items()}
    assert described == {"size": "How large\nit is.", "plain": None, "more": "What else is told."}
    assert schema["$defs"]["Told"]["properties"]["size"]["description"] == "How large\nit is."


def test_a_document_is_described_by_its_own_docstring() -> None:
    assert Told.model_json_schema()["description"] == "A document."
