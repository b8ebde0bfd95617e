"""Which options of a launch script are said, may be said, or are not: forms that public launch scripts have."""

from __future__ import annotations

from time import process_time

import pytest

from cost_models.errors import InvalidInputError
from planner.export.formats.arguments import read_script
from planner.export.settings import InputFile

RUN = "torchrun a.py --tp $TP\n"


def said(script: str, key: str = "--tp") -> list[object]:
    """Values of a key; "?" where it stays open."""
    return ["?" if each.is_open else each.value for each in read_script(InputFile("x.sh", script)) if each.key == key]


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ('if [ -z "$TP" ]; then\n  TP=4\nfi\n', "4"),
        ("TP=1\nMODE=fp8\nif [[ $MODE == fp8 ]]; then TP=2; else TP=8; fi\n", "2"),
        ('TP=1\nMODE=bf16\nif [[ "$MODE" == "fp8" ]]; then TP=2; elif [[ $MODE = bf* ]]; then TP=8; fi\n', "8"),
        ('TP=1\nif [ -n "${2}" ]; then\n  TP=$2;\nfi\n', "1"),
        ('TP=2\nwhile [[ $# -gt 0 ]]; do\n case $1 in\n  --tp) TP="$2"; shift;;\n  *) exit 1;;\n esac\ndone\n', "2"),
        ('SIZE="8B"\ncase "${SIZE}" in\n  "1B")\n    TP=1\n    ;;\n  8B|70B)\n    TP=4\n    ;;\n  *)\n    TP=9;;\nesac\n', "4"),
        ("N=3\nif [ $N -ge 2 ] && [ $N -lt 4 ]; then TP=2; fi\n", "2"),
        ("N=3\nTP=1\n[ $N -eq 4 ] && TP=4\n[[ $N -eq 4 || $N -eq 5 ]] || TP=3\n", "3"),
        ('TP=2\nif [ ! -z "$PROFILED" ]; then TP=7; fi\n', "2"),
        ('TP=2\nif [ -f "$FILE" ]; then echo found; fi\n', "2"),
        (': "${TP:=4}"\n', "4"),
        ("TP=${TP:-${OTHER:-8}}\n", "8"),
        ("TP=4\nif [ $MODEL = x ]; then TP=$2; fi\n", "4"),
        ("if [ $MODEL = x ]; then TP=8; fi\n", "8"),
        ("setup () {\n  TP=4\n}\nsetup\n", "4"),
        ("TP=2\nfor ((i=1; i<8; i++)); do X+=$i; done\n", "2"),
    ],
)  # fmt: skip
def test_a_branch_counts_as_without_arguments_and_environment(before, value):
    assert said(before + RUN) == [value]


@pytest.mark.parametrize(
    "before",
    [
        "TP=2\nif [ $N -gt 4 ]; then TP=8; fi\n",
        "if [ $MODEL = x ]; then TP=2; else TP=4; fi\n",
        "case $1 in\n a) TP=2;;\n b) TP=4;;\nesac\n",
        "TP=1\nif docker ps; then TP=2; fi\n",
        "TP=1\nwhile read line; do TP=2; done\n",
        "TP=$(nvidia-smi --list-gpus | wc -l)\n",
        "TP=$(( $NNODES * 8 ))\n",
    ],
)
def test_what_no_reading_can_tell_stays_open(before):
    assert said(before + RUN) == ["?"]


def test_options_that_a_branch_may_add_stay_open_and_the_others_do_not():
    script = 'options="--a 1\n --b 2"\nif [ $FP = 8 ]; then\n  options="$options --fp8"\nfi\nA=(--c 3)\nif [ -f x ]; then A+=(--d 4); fi\n'  # fmt: skip
    script += 'run="torchrun a.py $@ ${options}"\neval $run "${A[@]}"\n'
    found = {each.key: (each.is_open, each.line) for each in read_script(InputFile("x.sh", script))}
    assert found["--a"] == (False, 1)
    assert found["--b"] == (False, 2)
    assert found["--fp8"] == (True, 4)
    assert found["--c"] == (False, 6)
    assert found["--d"] == (True, 7)


def test_options_of_a_branch_alone_stay_open():
    script = "if [ $AC = full ]; then ac=' --recompute full'; fi\ntorchrun a.py --bf16 $ac\n"
    assert (said(script, "--bf16"), said(script, "--recompute")) == ([True], ["?"])


def test_two_launches_of_which_one_runs_leave_open_in_what_they_differ():
    script = "if [ $N = 1 ]; then\n torchrun a.py --tp 1 --pp 2\nelse\n torchrun a.py --tp 2 --pp 2\nfi\n"
    assert said(script) == ["?", "?"]
    assert said(script, "--pp") == ["2", "2"]


@pytest.mark.parametrize(
    "last",
    [
        'sh -c "${CMD}"', "eval $CMD", 'eval "$CMD"', "$CMD", "exec $CMD", 'srun -l bash -c "cd x; $CMD" 2>&1 | tee log', 'srun bash -lc "$CMD && echo done"',
        "nohup $CMD > log 2>&1 &",
    ],
)  # fmt: skip
def test_commands_that_are_kept_in_a_variable(last):
    script = f'CMD="torchrun \\\n  a.py \\\n  --tp 4 --rank \\$RANK"\n{last}\n'
    assert [(s.value, s.line) for s in read_script(InputFile("x.sh", script)) if s.key == "--tp"] == [("4", 3)]


def test_an_exported_command_is_read_where_it_is_used():
    script = 'export CMD="torchrun a.py --tp 2"\n$CMD\nexport EXTRA="--tp 4"\n'
    assert [s.key for s in read_script(InputFile("x.sh", script))] == ["$EXTRA", "@", "@", "--tp"]


def test_quoted_pairs_in_an_array_are_two_words_outside_of_quotes():
    script = 'A=()\nA+=("--fp8-format hybrid" "--fp8-param-gather")\ntorchrun a.py ${A[@]}\n'
    assert said(script, "--fp8-format") == ["hybrid"]
    assert said(script, "--fp8-param-gather") == [True]


def test_a_variable_that_holds_options_is_no_value_of_the_option_before_it():
    script = "torchrun a.py --bf16 ${extra_args} --save $CKPT --swiglu $MODEL_OPTIONS\n"
    assert (said(script, "--bf16"), said(script, "--swiglu"), said(script, "--save")) == ([True], [True], ["?"])
    assert said(script, "@")[2:] == ["?", "?"]


def test_here_documents_have_the_keys_and_lines_of_their_documents():
    script = 'MB=4\ncat <<EOT > $DS_CONFIG\n{\n  "train_micro_batch_size_per_gpu": $MB,\n  "zero_optimization": {"stage": 3}\n}\nEOT\n'
    script += "cat > acc.yaml << 'EOF'\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\nEOF\n"
    script += 'cat <<EOF > hosts\nnode1 slots=8\nEOF\ncat <<EOF\n{"a": $UNSET}\nEOF\ntorchrun a.py --tp 2\n'
    found = [(each.key, each.value, each.line) for each in read_script(InputFile("x.sh", script))]
    assert found[:4] == [
        ("train_micro_batch_size_per_gpu", 4, 4), ("zero_optimization.stage", 3, 5), ("distributed_type", "FSDP", 9), ("fsdp_config.fsdp_version", 2, 11),
    ]  # fmt: skip
    assert [each[0::2] for each in found[4:6]] == [("<<", 14), ("<<", 17)]
    assert ("--tp", "2", 19) in found


def test_variables_of_mpirun_are_the_environment():
    script = "mpirun -np 8 -x NCCL_DEBUG=WARN -x PATH --bind-to none python a.py --tp 2\n"
    found = {each.key: each.value for each in read_script(InputFile("x.sh", script))}
    assert (found["$NCCL_DEBUG"], found["-x"], found["--bind-to"]) == ("WARN", "PATH", ("none", "python"))


def test_a_template_directive_of_slurm_redirects_nothing():
    found = read_script(InputFile("x.sh", "#SBATCH <SLURM OPTIONS> --nodes=128 --exclusive\n"))
    assert ("#SBATCH --nodes", "128") in [(each.key, each.value) for each in found]


def test_scripts_with_windows_line_ends():
    assert said("TP=2\r\ntorchrun a.py \\\r\n  --tp $TP \\\r\n  --pp 4\r\n") == ["2"]


def test_options_behind_a_continued_line_of_an_unknown_branch_stay_open():
    script = 'if [ $SIZE = 70B ]; then\n  gqa=" \\\n    --groups 8"\nfi\ntorchrun a.py --bf16 $gqa\n'
    assert (said(script, "--bf16"), said(script, "--groups")) == ([True], ["?"])


def test_a_test_of_what_only_an_unknown_branch_sets_is_unknown():
    script = 'if [ $KIND = zb ]; then ZB=1; fi\nTP=1\nif [ ! -z "$ZB" ]; then TP=2; fi\n'
    assert said(script + RUN) == ["?"]


def test_an_array_of_short_words_does_not_grow_without_bound():
    script = "A=($X $X)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 30 + "torchrun a.py ${A[@]}\n"
    started = process_time()
    with pytest.raises(InvalidInputError, match=r"x\.sh, line \d+ becomes more than 4 MiB"):
        read_script(InputFile("x.sh", script))
    assert process_time() - started < 20, "thirty doublings are a billion words"
