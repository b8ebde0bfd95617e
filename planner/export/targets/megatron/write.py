"""Megatron-LM's command line of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cost_models.frameworks.releases import precedes
from planner.export.quantities import Quantities
from planner.export.target import Launch
from planner.export.targets.megatron.environment import environment
from planner.export.targets.megatron.hybrid_settings import beyond_the_plan, packages_of, script_of
from planner.export.targets.megatron.model_settings import model_settings
from planner.export.targets.megatron.names import Name, Values, stated
from planner.export.targets.megatron.strategy_settings import strategy_settings
from planner.export.targets.megatron.training_settings import training_settings

WHOLE_VOCABULARY_SINCE = "0.18"
"""Before, NullTokenizer adds an end-of-document token to --vocab-size (megatron/core/tokenizers/text/libraries/null_tokenizer.py)."""
MEMORY_LOG_SINCE = "0.17"
"""The oldest release whose parser was asked for --log-memory-interval."""
_YOUR_OWN = (
    "Add --data-path, --tokenizer-type, --tokenizer-model, --lr and the other arguments of your own data and schedule; the plan "
    "decides none of them."
)
MOCK_STEPS = 50
_MOCK = (
    "--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", str(MOCK_STEPS), "--lr", "1e-5", "--eval-iters", "0",
    "--eval-interval", "1000", "--log-interval", "1", "--log-throughput",
)  # fmt: skip


def core_settings(q: Quantities) -> Values:
    """Everything of a plan in Megatron Core's settings, adapters and what is frozen apart.

    Raises:
        FieldNotExpressibleError: Megatron Core, or this release, has no setting for a field.
    """
    values = {**strategy_settings(q), **training_settings(q), **model_settings(q)}
    # Both the optimizer's offload and its narrow states take the precision-aware optimizer.
    return {name: value for name, value in values.items() if value is not None}


def write(q: Quantities) -> Launch:
    """The launch of a plan: the arguments of `pretrain_gpt.py`, or of the program that trains hybrids."""
    if q.peek("training.adapter") is not None:
        raise q.refusal("training.adapter", why="Megatron-LM has no adapters; megatron-bridge has")
    values = core_settings(q)
    words = tuple(word for name, value in checked(q, values) for word in option(name, value))
    planned = steps(q)
    script = script_of(q)
    vocabulary = q.peek("model.vocab_size") - int(precedes(q.version, WHOLE_VOCABULARY_SINCE))
    return Launch(
        files=(),
        command=(script, *words, *(("--train-iters", str(planned)) if planned else ())),
        mock_command=(script, *_replaced(words, "--vocab-size", str(vocabulary)), *_MOCK, *_logged_memory(q)),
        variables=environment(q),
        checkout=("MEGATRON_LM", "Megatron-LM"),
        notes=(
            f"MEGATRON_LM is the folder of a checkout of Megatron-LM at its newest tag core_v{q.version}.*.",
            *packages_of(q),
        ),
        own_data=(_YOUR_OWN, *beyond_the_plan(q)),
    )


def _logged_memory(q: Quantities) -> tuple[str, ...]:
    """What has the memory printed after each step. Without it, Megatron-LM prints it after the first two (training.py, train)."""
    return () if precedes(q.version, MEMORY_LOG_SINCE) else ("--log-memory-interval", "1")


def checked(q: Quantities, values: Values) -> Iterator[tuple[Name, Any]]:
    """The settings that have to be said, each of which the release has."""
    for name, value in stated(values):
        if not name.is_in(q.release):
            raise q.refusal(name.fields[0], why=f"{name.option} is not in core {q.release}")
        yield name, value


def option(name: Name, value: Any) -> tuple[str, ...]:
    """The words of one setting on the command line."""
    if name.kind in ("switch", "off"):
        return (name.option,)
    if name.kind in ("texts", "counts"):
        return (name.option, *map(str, value))
    return (name.option, str(value))


def steps(q: Quantities) -> int | None:
    """Steps of the whole training; None where the plan has no budget of tokens."""
    tokens = q.peek("training.total_tokens")
    if not tokens:
        return None
    return int(-(-tokens // (q.peek("training.global_batch_size") * q.peek("training.seq_length"))))


def _replaced(words: tuple[str, ...], name: str, value: str) -> tuple[str, ...]:
    at = words.index(name) + 1
    return (*words[:at], value, *words[at + 1 :])
