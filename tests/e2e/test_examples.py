"""Every file under examples/ does what examples/README.md says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run
from example_plans import example_plan

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
CONFIGS = sorted((EXAMPLES / "models").glob("*/config.json"))
NUM_PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-8b": 8_190_735_360,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v3": 671_026_404_352,
}
"""What Hugging Face counts: the number of parameters the published checkpoints list (DeepSeek-V3 without MTP)."""


@pytest.fixture
def answered(capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
        assert run(["--quiet", *arguments]) == code
        out, err = capsys.readouterr()
        assert err == ""
        return [json.loads(line) for line in out.splitlines()]

    return ask


@pytest.mark.parametrize("path", sorted((EXAMPLES / "requests").glob("*.json")), ids=lambda path: path.stem)
def test_request_is_planned(path: Path) -> None:
    """Ranked plans that fit, within the request's top_k; the one that is too small on purpose names its nearest.

    That the command reads the files is shown by `test_shown_command_runs`.
    """
    request = json.loads(path.read_text())
    response = example_plan(path.stem)
    if path.stem == "too-small":
        assert response["nearest_infeasible"]
        return
    assert 0 < len(response["plans"]) <= request.get("top_k", 10)
    assert all(plan["evaluation"]["verdict"] == "fits" for plan in response["plans"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("cluster", sorted((EXAMPLES / "clusters").glob("*.json")), ids=lambda path: path.stem)
def test_config_and_cluster_are_planned(answered: Any, path: Path, cluster: Path) -> None:
    options = ("--seq-length", "4096", "--global-batch-size", "1024", "--framework", "megatron", "--precision", "bf16")
    allowed = ("--allowed", "micro_batch_size=[1]", "--allowed", "vpp=[1]")
    command = (
        "plan",
        "--model",
        str(path.parent),
        "--cluster",
        str(cluster),
        *options,
        *allowed,
        "--top",
        "1",
        "--json",
    )
    large = path.parent.name == "deepseek-v3"
    small = large and cluster.stem == "a100-hdr"  # 671e9 parameters do not fit on 32 GPUs of 80 GB
    (response,) = answered(*command, code=3 if small else 0)
    if small:
        assert sum(response["rejected"].values()) > 0
    else:
        (first,) = response["plans"]
        assert first["evaluation"]["num_parameters"] == NUM_PARAMETERS[path.parent.name]
        # On 128 GPUs they fit with the optimizer in host memory.
        assert (first["strategy"]["offload"]["optimizer_fraction"] > 0) == large


def test_parameters_of_the_largest_config(answered: Any, tmp_path: Path) -> None:
    row = json.loads((EXAMPLES / "requests" / "evaluate.jsonl").read_text().splitlines()[0])
    config = json.loads((EXAMPLES / "models" / "deepseek-v3" / "config.json").read_text())
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row | {"model": {"hf_config": config}}))
    (evaluation,) = answered("evaluate", str(rows))
    assert evaluation["num_parameters"] == NUM_PARAMETERS["deepseek-v3"]


def test_rows_are_priced_and_the_wrong_one_is_invalid(answered: Any) -> None:
    evaluations = answered("evaluate", str(EXAMPLES / "requests" / "evaluate.jsonl"))
    *priced, wrong = evaluations
    assert wrong["verdict"] == "invalid"
    assert wrong["reasons"]
    assert priced
    for evaluation in priced:
        assert evaluation["verdict"] != "invalid"
        assert sum(evaluation["time_breakdown_s"].values()) == pytest.approx(evaluation["step_time_s"], rel=1e-9)


def test_every_config_names_its_origin() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert all(f"`models/{path.parent.name}/config.json`" in text for path in CONFIGS)
    assert {path.parent.name for path in CONFIGS} == NUM_PARAMETERS.keys()


def shown_commands() -> list[str]:
    """Commands of the documents that need no service, nor a file that the reader wrote before."""
    text = "\n".join(path.read_text() for path in (EXAMPLES.parent / "README.md", EXAMPLES / "README.md"))
    text = re.sub(r"<!--.*?-->", "", text)  # notes for the programs that renew shown outputs
    found = re.findall(r"meshwright ((?:plan|evaluate|import|judge) [^`\n]+)", text)
    found = [re.split(r" [>|] ", line)[0].strip() for line in found]  # the shell's part of a line is none of ours
    return sorted({line for line in found if not re.search(r"--server|REQUEST|--help| plan.json", line)})


# Its search takes half a minute. `test_request_is_planned` asks for the same plans, and tests in `tests/unit/app/cli/` hold how the command
# shows plans on pools.
LONG = "plan examples/requests/llama-3.1-70b-two-pools.json"


@pytest.mark.parametrize(
    "line", [pytest.param(each, marks=[pytest.mark.proof] if each == LONG else []) for each in shown_commands()]
)
def test_shown_command_runs(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    assert run(["--quiet", *shlex.split(line)]) == (3 if "too-small" in line else 0)
    out, err = capsys.readouterr()
    assert out
    assert err == ""


def test_documents_show_commands_that_run() -> None:
    assert len(shown_commands()) >= 4
    assert LONG in shown_commands()
