"""Settings of launch scripts, with the line on which a user would change each."""

import pytest

from cost_models.errors import InvalidInputError
from planner.export.formats.arguments import read_script, read_words
from planner.export.settings import InputFile, Settings

SCRIPT = """#!/bin/bash
#SBATCH --nodes=4 --gpus-per-node=8  # a comment
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"4"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
CKPT=$1
if [ -z "$TP" ]; then
  TP=4
fi
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES # nodes
    --master_addr $(hostname)
)
GPT_ARGS="
    --tensor-model-parallel-size $TP \\
    --num-layers 32 \\
    --bf16
"
MORE=(
\t--recompute-modules core_attn mlp
    --pipeline-model-parallel-layout 'Et*3|(tt|)*6L'
)
MORE+=(--swiglu)
mkdir -p logs
source env.sh
NCCL_DEBUG=WARN torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py ${GPT_ARGS} ${MORE[@]} \\
  --save $CKPT --lr 1e-4 --min-lr -1.0 --seq-length=4096 --world "$WORLD_SIZE" --x ${WORLD_SIZE} model.tp=2
"""


@pytest.fixture(scope="module")
def found():
    return read_script(InputFile("train.sh", SCRIPT))


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("#SBATCH --nodes", "4", 2),
        ("#SBATCH --gpus-per-node", "8", 2),
        ("$CUDA_DEVICE_MAX_CONNECTIONS", "1", 3),
        ("$NCCL_DEBUG", "WARN", 28),
        ("--nproc_per_node", "8", 4),
        ("--nnodes", "4", 5),
        ("--tensor-model-parallel-size", "4", 9),
        ("--num-layers", "32", 18),
        ("--bf16", True, 19),
        ("--recompute-modules", ("core_attn", "mlp"), 22),
        ("--pipeline-model-parallel-layout", "Et*3|(tt|)*6L", 23),
        ("--swiglu", True, 25),
        ("--lr", "1e-4", 29),
        ("--min-lr", "-1.0", 29),
        ("--seq-length", "4096", 29),
        ("--world", "32", 6),
        ("--x", "32", 6),
        ("model.tp", "2", 29),
        ("!", "source env.sh", 27),
    ],
)
def test_what_a_script_sets_and_where(found, key, value, line):
    assert [(s.value, s.line) for s in found if s.key == key] == [(value, line)]


def test_programs_stand_in_order_and_harmless_commands_are_left_out(found):
    assert [s.value for s in found if s.key == "@"] == ["torchrun", "pretrain_gpt.py"]
    assert not [s for s in found if "mkdir" in str(s.value)]


def test_what_only_a_shell_knows_stays_open_and_is_never_taken(found):
    assert {s.key for s in found if s.is_open} == {"--master_addr", "--save"}
    settings = Settings(found)
    assert settings.take("--master_addr") is None
    assert settings.value("--save", default="none") == "none"
    assert {s.key for s in settings.unknown()} >= {"--master_addr", "--save"}


def test_nothing_is_executed(tmp_path):
    target = tmp_path / "made"
    script = f"X=$(touch {target})\nY=`touch {target}`\ntorchrun a.py --x $X --y $Y; touch {target}\n"
    keys = {s.key: s.is_open for s in read_script(InputFile("x.sh", script))}
    assert keys["--x"]
    assert keys["--y"]
    assert not target.exists()


@pytest.mark.parametrize("script", ['A="x\n', "A='x\n", "A=$(ls\n", "A=`ls\n"])
def test_unclosed_quotes_are_refused_with_their_line(script):
    with pytest.raises(InvalidInputError, match=r"x\.sh, line 1 "):
        read_script(InputFile("x.sh", script))


def test_a_later_option_overrides_an_earlier_one_and_both_are_taken():
    settings = Settings(read_words("--tp 2 --tp 4", "arguments"))
    assert settings.value("--tp", "tp") == "4"
    assert settings.unknown() == []
    assert [s.value for s in settings.behind("tp")] == ["2", "4"]


def test_variables_that_name_each_other_end():
    script = "A=${B:-${A:-1}}\nB=$A$A$A\nA=$B$B$B\nB=$A$A$A\ntorchrun a.py --x $B\n"
    assert [s.key for s in read_script(InputFile("x.sh", script))] == ["@", "@", "--x"]
