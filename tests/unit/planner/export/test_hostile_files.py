"""Foreign, truncated, contradictory and hostile files: each is refused with its name and line, or read without harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.errors import InvalidInputError
from planner.export.import_config import import_config
from planner.export.settings import InputFile

WORDS = "torchrun x.py --tensor-model-parallel-size 2 --num-layers 32 --micro-batch-size 1 "
DOUBLED = "A0=xxxxxxxx\n" + "".join(f'A{n + 1}="$A{n}$A{n}"\n' for n in range(40)) + WORDS + "--foo $A40"
ARRAYS = "A0=(a b)\n" + "".join(f'A{n + 1}=("${{A{n}[@]}}" "${{A{n}[@]}}")\n' for n in range(40)) + WORDS + "${A40[@]}"
REFUSED = {
    "a value that doubles forty times": ("x.sh", DOUBLED, "becomes more than 4 MiB when its variables are replaced"),
    "an array that doubles forty times": ("x.sh", ARRAYS, "becomes more than 4 MiB when its variables are replaced"),
    "a variable that doubles itself": ("x.sh", "A=xxxxxxxx\n" + "A=$A$A\n" * 40 + WORDS, "x.sh, line 18 becomes more than"),
    "brackets that are never closed": ("x.sh", WORDS + "$(" * 50_000, "x.sh, line 1 has a bracket that is not closed"),
    "backquotes": ("x.sh", WORDS + "`" * 9_999, "x.sh, line 1 has a backquote that is not closed"),
    "quotes": ("x.sh", "'" * 9_999 + WORDS, "x.sh, line 1 has a quote that is not closed"),
    "ten megabytes": ("x.json", '{"zero_optimization": "' + "x" * 10_000_000 + '"}', "x.json is larger than 256 KiB"),
    "ten megabytes of script": ("x.sh", WORDS * 200_000, "x.sh is larger than 256 KiB"),
    "deep objects": ("x.json", '{"zero_optimization":' + '{"a":' * 900 + "1" + "}" * 901, "x.json, line 1 is nested too deeply"),
    "endless lists": ("x.json", '{"zero_optimization":' + "[" * 100_000, "x.json is nested too deeply"),
    "truncated": ("x.json", '{"zero_optimization":\n {"stage": 2', "x.json, line 2 is not JSON"),
    "the same key twice": ("x.json", '{"train_batch_size": 1, "train_batch_size": 2}', "the key 'train_batch_size' appears twice"),
    "not a number": ("x.json", '{"train_batch_size": NaN}', "x.json is not strict JSON"),
    "a list": ("x.json", "[1]", "x.json, line 1 holds no object"),
    "endless flow": ("x.yaml", "distributed_type: " + "[" * 20_000, "x.yaml, line 1 is nested too deeply"),
    "deep mappings": ("x.yaml", "distributed_type: FSDP\na: " + "{a: " * 900 + "1" + "}" * 900, "x.yaml, line 2 is nested too deeply"),
    "a tag that constructs": ("x.yaml", "a: 1\nb: !!python/object/apply:os.system ['touch pwned']", "x.yaml, line 2 uses the tag"),
    "an anchor": ("x.yaml", "a: &x FSDP\nb: *x", "x.yaml, line 1 uses an anchor or alias"),
    "a merge": ("x.yaml", "a: 1\n<<: {b: 2}\n", "x.yaml, line 2 has a key that is not a plain word"),
    "many keys": ("x.yaml", "".join(f"k{n}: 1\n" for n in range(21_000)), "x.yaml holds 21000 settings"),
    "no number": ("x.yaml", "a: 1\nb: 0x_\n", "x.yaml, line 2 has a value that cannot be read: '0x_'"),
    "no date": ("x.yaml", "a: 2026-02-31\n", "x.yaml, line 1 has a value that cannot be read: '2026-02-31'"),
    "two documents": ("x.yaml", "a: 1\n---\nb: 1\n", "x.yaml, line 1 does not hold one mapping"),
    "deep tables": ("x.toml", "[training]\n" + "a." * 3_000 + "b = 1", "x.toml, line 2 is nested too deeply"),
    "an endless list": ("x.toml", "a = " + "[" * 5_000, "x.toml is nested too deeply"),
    "no TOML": ("x.toml", "[training]\nseq_len\n", "x.toml, line 2 is not TOML"),
    "no Python": ("x.py", "import torchtitan\nx = (\n1 2", "x.py, line 2 is not Python"),
    "deep Python": ("x.py", "import torchtitan\nx = " + "-" * 100_000 + "1", "x.py is nested too deeply"),
    "an empty byte": ("x.py", "import torchtitan\n\0", "x.py is not Python"),
    "another ending": ("x.exe", "MZ", "x.exe ends in '.exe', which says nothing of what it holds"),
    "too many files": ("x.json", "", "more than the 20"),
    "twice": ("x.json", "", "a file is given twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_place(case: str) -> None:
    path, content, expected = REFUSED[case]
    files = [InputFile(path, content)]
    if case == "too many files":
        files = [InputFile(f"{n}.json", "{}") for n in range(21)]
    if case == "twice":
        files *= 2
    with pytest.raises(InvalidInputError) as error:
        import_config(files)
    assert expected in error.value.problems[0].message


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("x.sh", WORDS + "$(touch pwned) `touch pwned` --lr $(touch pwned)\ntouch pwned; : > pwned\n"),
        ("x.py", "import torchtitan, os\nos.system('touch pwned')\nTrainingConfig(seq_len=__import__('os').system('touch pwned'))\n"),
        ("x.yaml", 'distributed_type: FSDP\nmain_training_function: "`touch pwned`"\ndebug: $(touch pwned)\n'),
    ],
)  # fmt: skip
def test_nothing_is_executed(path: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = import_config([InputFile(path, content)])
    assert found.missing
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "content", "pointer"),
    [
        ("x.json", '{"zero_optimization": {"stage": "two"}}', "/strategy/zero"),
        ("x.json", '{"train_batch_size": true}', "/training/global_batch_size"),
        ("x.json", '{"train_batch_size": 8, "bf16": {"enabled": "yes"}}', "/training/precision"),
        ("x.toml", "[training]\nseq_len = 1e5\n[parallelism]\ntensor_parallel_degree = 'x'\n", "/strategy/tp"),
        ("x.toml", "[training]\nseq_len = 1e5\n[parallelism]\npipeline_parallel_degree = 0\n", "/strategy/pp"),
    ],
)
def test_values_of_another_kind_are_asked_for(path: str, content: str, pointer: str) -> None:
    found = import_config([InputFile(path, content)])
    assert pointer in found.missing
    assert found.unknown


def test_values_that_no_row_may_have_are_refused_with_their_place() -> None:
    with pytest.raises(InvalidInputError, match=r"x\.json, line 2: zero is 9; it must be at most 3"):
        import_config([InputFile("x.json", '{"zero_optimization":\n {"stage": 9}}')])
