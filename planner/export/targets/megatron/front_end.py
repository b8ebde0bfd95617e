"""What front ends of Megatron Core share: the release that they run on."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.frameworks.releases import version_key
from planner.export.quantities import Quantities

_FIELD = "training.framework_version"


def on_core(q: Quantities, core: Mapping[str, str]) -> Quantities:
    """The account with the settings of the Megatron Core that a front end's release runs on.

    Args:
        core: release of Megatron Core by the front end's.

    Raises:
        FieldNotExpressibleError: the plan is one for another release, which has other rules and costs.
    """
    release = core[q.version]
    planned = version_key(str(q.peek(_FIELD)))
    if planned[: len(version_key(release))] != version_key(release):
        raise q.refusal(_FIELD, why=f"it runs on Megatron Core {release}", nearest={_FIELD: release})
    return q.on(release)


def check_positions(q: Quantities) -> None:
    """Refuses a table of positions that is longer than a sequence: the providers of models make one of the sequence's length.

    Raises:
        FieldNotExpressibleError: learned positions go on behind the end of a sequence.
    """
    field, length = "model.max_position_embeddings", q.peek("training.seq_length")
    if q.peek("model.position_embedding") == "learned" and q.peek(field) != length:
        raise q.refusal(
            field, why="its table of positions has as many rows as a sequence has tokens", nearest={field: length}
        )
