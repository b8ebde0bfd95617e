"""Hybrids on Megatron-LM: which program trains them, what no argument says, and that their launch files come back as the same row."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.layers.parameters import count_parameters
from megatron_plans import HYBRIDS, PAIRS, RECOMPUTED, row_of
from planner.export.import_config import import_config
from planner.export.imported_row import Overrides
from planner.export.launch_plan import launch_plan
from planner.export.quantities import FieldNotExpressibleError, Quantities
from planner.export.settings import InputFile
from planner.export.target import Launch
from planner.export.targets import TARGETS
from planner.export.targets.megatron.hybrid_pattern import Layers, layers_of_pattern

CLUSTER = {"preset": "dgx-h100", "num_nodes": 8}
NEMOTRON = "nemotron-h-8b"


def hybrid_launch(
    model: str | dict[str, Any], version: str = "0.19", *, target: str = "megatron", **strategy: Any
) -> Launch:
    training = strategy.pop("training", {})
    row = row_of((model, "h100", 8, training, strategy), version)
    quantities = Quantities(
        launch_plan(row), target=target, version={"megatron-bridge": "0.6", "nemo": "2.7"}.get(target, version)
    )
    launch = TARGETS[target].write(quantities)
    quantities.finish()
    return launch


@pytest.mark.parametrize(
    ("model", "version", "script", "stack"),
    [
        (NEMOTRON, "0.16", "pretrain_mamba.py", "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"),
        (NEMOTRON, "0.17", "pretrain_mamba.py", "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"),
        (NEMOTRON, "0.18", "pretrain_hybrid.py", "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"),
        ("qwen3-next-80b-a3b", "0.19", "pretrain_gpt.py", None),
    ],
)
def test_each_release_has_its_program_and_its_stack(model: str, version: str, script: str, stack: str | None):
    """mamba_builders.py and hybrid_builders.py of the repository want --spec; gated delta nets are the usual model's attention."""
    launch = hybrid_launch(model, version, tp=2)
    assert (launch.command[0], launch.mock_command[0]) == (script, script)
    assert (f"--spec {stack}" if stack else "--linear-attention-freq ([1]*3+[0])*12") in " ".join(launch.command)


def test_before_0_17_a_pattern_marks_no_stages():
    """Scripts of these releases say the blocks beside --num-layers, and each stage takes as many of them (core/ssm/mamba_block.py)."""
    line = " ".join(hybrid_launch(PAIRS, "0.16", tp=2, pp=2).command)
    assert "--num-layers 24 " in line
    assert f"--is-hybrid-model --hybrid-override-pattern {'M-M-*-' * 4} --spec" in line
    given = Overrides(cluster=CLUSTER, training={"framework_version": "0.16"})
    found = import_config([InputFile("run.sh", f"torchrun {line.replace('*', chr(92) + '*')}")], given=given)
    assert (found.unknown, found.row["model"]["layer_types"]) == ([], PAIRS["layer_types"])


@pytest.mark.parametrize("case", [*HYBRIDS, *RECOMPUTED], ids=lambda case: f"{case[0]}"[:16])
def test_launch_files_of_hybrids_come_back_whole(case: tuple[Any, ...]):
    row = row_of(case, "0.19")
    words = " ".join(f"'{word}'" for word in hybrid_launch(case[0], training=case[3], **case[4]).command)
    found = import_config(
        [InputFile("run.sh", f"torchrun {words}")],
        given=Overrides(cluster=CLUSTER, training={"framework_version": "0.19"}),
    )
    assert (found.unknown, found.missing) == ([], ())
    told, again = (Quantities(launch_plan(each), target="", version="") for each in (row, found.row))
    # Where every layer has experts, the dense width that the parser wants is read for one.
    given = {"model.name", "model.intermediate_size"}
    names = [name for name in told if told.matters(name) and name not in given]
    assert {name: again.peek(name) for name in names} == {name: told.peek(name) for name in names}


@pytest.mark.parametrize(
    ("model", "version", "named", "field", "remedy"),
    [
        (NEMOTRON, "0.19", {"target": "megatron-bridge"}, "model.recurrent", "Export the plan for megatron"),
        (NEMOTRON, "0.16", {"target": "nemo"}, "model.recurrent", "Export the plan for megatron"),
        ({**PAIRS, "qk_norm": "per_head"}, "0.19", {}, "model.qk_norm", "Choose another target"),
        ({**PAIRS, "recurrent": {**PAIRS["recurrent"], "chunk_size": 256}}, "0.19", {}, "model.recurrent", "chunk_size 128"),
        ({**PAIRS, "mtp_num_layers": 1}, "0.19", {}, "model.mtp_num_layers", "Choose another target"),
    ],
)  # fmt: skip
def test_what_no_argument_says_of_a_hybrid_is_refused(
    model: str | dict[str, Any], version: str, named: dict[str, Any], field: str, remedy: str
):
    with pytest.raises(FieldNotExpressibleError) as refused:
        hybrid_launch(model, version, **named)
    assert refused.value.context["field"] == field
    assert remedy in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("text", "unit", "found"),
    [
        ("M-M*-", 0, Layers(("M", "-", "M", "*", "-"), (5,), single=True)),
        ("M-*E|M-", 0, Layers(("M-", "*E", "M-"), (2, 1), single=False)),
        ("M-*E|M-", 1, Layers(("M", "-", "*", "E", "M", "-"), (4, 2), single=True)),
        ("M-*-", 2, Layers(("M-", "*-"), (2,), single=False)),
        ("M*/MM/MM", 0, None), ("MG*", 0, None), ("MxM", 0, None), ("", 0, None),
    ],
)  # fmt: skip
def test_blocks_are_layers_or_halves_of_them(text: str, unit: int, found: Layers | None):
    """Pairs in every stage are layers of a mixer and its MLP, unless an odd number of blocks is recomputed together."""
    assert layers_of_pattern(text, unit=unit) == found


@pytest.mark.parametrize(("version", "read"), [("0.17", "0.17"), ("0.18", "0.18"), ("0.19", "0.18")])
def test_a_hybrids_file_is_read_for_a_release_that_takes_it(version: str, read: str):
    """Stages in the pattern came with 0.17 and its program's new name with 0.18; the planner's default is 0.16, which has neither."""
    words = " ".join(f"'{word}'" for word in hybrid_launch(NEMOTRON, version, tp=2, pp=2, vpp=2).command)
    row = import_config([InputFile("run.sh", f"torchrun {words}")], given=Overrides(cluster=CLUSTER)).row
    assert row["training"]["framework_version"] == read
    assert launch_plan(row).strategy["vpp"] == 2


NANO = (
    "--num-layers 52 --hidden-size 2688 --ffn-hidden-size 1856 --num-attention-heads 32 --group-query-attention --num-query-groups 2 "
    "--kv-channels 128 --vocab-size 131072 --position-embedding-type none --normalization RMSNorm --squared-relu --disable-bias-linear "
    "--untie-embeddings-and-output-weights --num-experts 128 --moe-router-topk 6 --moe-shared-expert-intermediate-size 3712 "
    "--is-hybrid-model --hybrid-override-pattern MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME --mamba-num-heads 64 "
    "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec --seq-length 8192 --max-position-embeddings 8192 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16"
)
"""Nemotron 3 Nano as scripts of 0.16 say it; the width of a head, the state and its groups are the parser's defaults."""


def test_a_script_of_nemotron_3_nano_has_its_parameters():
    """31,577,937,344 in nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, without the buffer that balances its experts."""
    text = f"torchrun pretrain_mamba.py {NANO.replace('*', chr(92) + '*')}"
    found = import_config([InputFile("run.sh", text)], given=Overrides(cluster=CLUSTER))
    assert (found.unknown, found.missing) == ([], ())
    assert count_parameters(launch_plan(found.row).job.model).total == 31_577_937_344
