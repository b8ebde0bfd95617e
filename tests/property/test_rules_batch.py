"""Legality of a batch: it equals that of its rows, words never fail, and what is legal satisfies the arithmetic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from builders import dense_model, job_of, with_experts
from cost_models.specs.training import Framework
from cost_models.strategies.strategy import ARRAY_FIELDS
from planner.rules import RULES, Violations, first_violations, reasons, rule_codes, smallest_change, violations
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies
from planner.strategies.told import strategy_dict

DENSE = dense_model(24, hidden_size=1536, num_attention_heads=24, num_key_value_heads=6, intermediate_size=4608)
MOE = with_experts(DENSE, num_experts=12, expert_intermediate_size=768)

BATCH, SEQ, GPUS = 48, 1536, 48


@cache
def job_for(framework: str, moe: bool):
    return job_of(MOE if moe else DENSE, framework, num_nodes=6, seq_length=SEQ, global_batch_size=BATCH)


def small(*values: int):
    return st.sampled_from(values)


INPUTS = st.builds(
    StrategyInput,
    tp=small(1, 2, 3, 4, 5, 6, 8), pp=small(1, 2, 3, 4, 6, 8), cp=small(1, 2, 3, 4), dp=small(1, 2, 3, 4, 6, 8),
    ep=small(1, 2, 3, 4, 5, 6, 12), etp=small(1, 2, 3), vpp=small(1, 2, 3), zero=small(0, 1, 2, 3),
    zero_shard_size=st.none() | small(1, 2, 4), micro_batch_size=small(1, 2, 3), sequence_parallel=st.none() | st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]), schedule=st.none() | st.sampled_from(["1f1b", "gpipe", "zb-v"]),
    cp_comm=st.none() | st.sampled_from(["p2p", "a2a", "allgather", "a2a+p2p"]),
    moe_dispatcher=st.none() | st.sampled_from(["allgather", "flex"]),
)  # fmt: skip
JOBS = st.tuples(st.sampled_from(get_args(Framework)), st.booleans())


@given(JOBS, st.lists(INPUTS, min_size=1, max_size=12))
def test_a_batch_breaks_what_its_rows_break(which, inputs):
    job = job_for(*which)
    batch = resolve_strategies(job, inputs)
    if batch.strategies is None:
        return
    found, first = violations(job, batch.strategies), first_violations(job, batch.strategies)
    for row, position in enumerate(batch.index.tolist()):
        alone = resolve_strategies(job, [inputs[position]]).strategies
        single = violations(job, alone)
        assert [rule.code for rule in single.broken(0)] == [rule.code for rule in found.broken(row)]
        broken = found.broken(row)
        assert (rule_codes()[first[row]] if first[row] >= 0 else None) == (broken[0].code if broken else None)
    assert sum(found.counts().values()) == int((~found.legal).sum())


@given(JOBS, INPUTS)
def test_every_reason_has_words_and_every_refusal_a_hint(which, given_input):
    job = job_for(*which)
    resolved = resolve_strategies(job, [given_input])
    said = resolved.problems[0]
    if resolved.strategies is not None:
        said = reasons(job, resolved.strategies, 0)
        assert bool(smallest_change(job, resolved.strategies, 0)) == bool(said)
    for reason in said:
        assert reason["message"]
        assert reason["hint"]
        assert "{" not in reason["message"] + reason["hint"]


@given(JOBS, INPUTS)
def test_a_legal_strategy_multiplies_out(which, given_input):
    framework, moe = which
    job = job_for(framework, moe)
    resolved = resolve_strategies(job, [given_input])
    if resolved.strategies is None or not violations(job, resolved.strategies).legal[0]:
        return
    s = {name: getattr(resolved.strategies, name)[0].item() for name in ARRAY_FIELDS}
    layout = resolved.strategies.layouts.table[int(s["layout"])]
    assert s["tp"] * s["pp"] * s["cp"] * s["dp"] <= GPUS
    assert s["num_micro_batches"] * s["dp"] * s["micro_batch_size"] == BATCH
    assert sum(layout.layers) == 24
    assert len(layout.layers) == s["pp"] * s["vpp"]
    assert 24 % s["tp"] == 0
    assert SEQ % s["cp"] == 0
    assert (s["dp"] * s["cp"]) % s["zero_shard_size"] == 0
    assert not s["sequence_parallel"] or s["tp"] > 1
    assert s["ep"] == 1 or moe
    if moe:
        assert 12 % s["ep"] == 0
        assert (s["tp"] * s["cp"] * s["dp"]) % (s["ep"] * s["etp"]) == 0


@given(JOBS, INPUTS)
def test_a_buildable_strategy_survives_the_way_back(which, given_input):
    job = job_for(*which)
    first = resolve_strategies(job, [given_input])
    if first.strategies is None:
        return
    rendered = strategy_dict(first.strategies, 0)
    again = resolve_strategies(job, [StrategyInput.model_validate(rendered)])
    assert again.problems == ([],)
    assert strategy_dict(again.strategies, 0) == rendered


@given(
    broken=st.integers(1, 200).flatmap(
        lambda rules: st.lists(st.lists(st.booleans(), min_size=rules, max_size=rules), min_size=1, max_size=20)
    ),
    told=st.sets(st.integers(0, 4)),
)
def test_violations_hold_however_many_rules_there_are(broken, told):
    """Against the table of true and false that the words stand for; rules share five codes."""
    table, rules = np.array(broken), [replace(RULES[0], code=f"code-{number % 5}") for number in range(len(broken[0]))]
    # Words that nothing is set in may be left out at the end, but for the first.
    words = [
        np.zeros(len(table), np.int64) for _ in range(1 + (np.flatnonzero(table.any(axis=0)).max(initial=0)) // 63)
    ]
    for row, rule in np.argwhere(table):
        words[rule // 63][row] |= 1 << int(rule % 63)
    found = Violations(tuple(words), tuple(rules))
    assert found.legal.tolist() == (~table.any(axis=1)).tolist()
    assert found.num_broken.tolist() == table.sum(axis=1).tolist()
    codes = [rule.code for rule in rules]
    for row, flags in enumerate(table):
        assert found.broken(row) == [rule for rule, is_broken in zip(rules, flags, strict=True) if is_broken]
    firsts = Counter(codes[int(np.argmax(flags))] for flags in table if flags.any())
    assert found.counts() == dict(firsts)
    kept = frozenset(f"code-{number}" for number in told)
    of_kept = table & np.array([code in kept for code in codes])
    assert found.only(kept).num_broken.tolist() == of_kept.sum(axis=1).tolist()
    assert found.without(kept).num_broken.tolist() == (table & ~of_kept).sum(axis=1).tolist()
    assert {tuple(table[row]) for row in found.first_of_each_set()} == {tuple(flags) for flags in table}
    half = np.arange(len(table)) % 2 == 0
    assert found.where(half).legal.tolist() == (~(table & half[:, None]).any(axis=1)).tolist()
    assert found.take(half).num_broken.tolist() == table[half].sum(axis=1).tolist()
