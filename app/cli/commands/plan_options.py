"""The options of `meshwright plan`: what each is called, what its help says, and how a request is made of them.

A job can be given by options, by a request file, or by both, so no option is required by itself; the panels of `--help` say
which parts of a job must come from one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, get_args

import typer

from app.cli.inputs import Json, assignments
from app.cli.quantities import COUNTED, count, duration_h, duration_s, rate
from cost_models.errors import InvalidInputError, Problem
from cost_models.specs.training import Framework as FrameworkName
from cost_models.specs.training import Precision as PrecisionName

REQUIRED = "Job (required, here or in the request file)"
# Panels say in their title what a mark at each option could not: that a request file may have said it already.
OPTIONAL, SEARCH, OUTPUT = "Job (optional)", "Search", "Output"
# What the planner takes for a time limit is any number above 0; below a millisecond a unit was mistaken.
LEAST_TIME_S = 0.001
# An empty line between two examples is what keeps each on a line of its own.
EXAMPLES = """\
Examples:

meshwright plan --model llama-3.1-70b --cluster dgx-h100 --num-nodes 16 --seq-length 8k --global-batch-size 512 --framework megatron --precision bf16

meshwright plan request.json --num-nodes 32 --include pareto,what_if --time-limit 5m

meshwright plan request.json --total-tokens 15T --deadline-h 60d --objective fewest_gpus

meshwright plan request.json --json > response.json

`meshwright presets` lists the models, GPUs, clusters and frameworks that can be named."""
Option = typer.Option
Request = Annotated[
    str | None, typer.Argument(help="Plan request (JSON file, or - for standard input).", show_default=False)
]
Model = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE",
        help="Preset name (see `meshwright presets models`), config.json (or its folder) or model specification.",
        rich_help_panel=REQUIRED,
    ),
]
Cluster = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE",
        help="Preset name (see `meshwright presets clusters`) or cluster specification; or give --gpu.",
        rich_help_panel=REQUIRED,
    ),
]
Gpu = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="GPU preset name, such as H100-SXM-80GB, in place of --cluster; needs --num-nodes and --gpus-per-node.",
        rich_help_panel=REQUIRED,
    ),
]
SeqLength = Annotated[
    str | None,
    Option(metavar="TOKENS", help="Tokens per sequence, such as 8192, 8k (8,192) or 128k (131,072).", rich_help_panel=REQUIRED),
]  # fmt: skip
GlobalBatchSize = Annotated[
    str | None, Option(metavar="COUNT", help="Sequences per step; or give --global-batch-tokens.", rich_help_panel=REQUIRED)
]  # fmt: skip
GlobalBatchTokens = Annotated[
    str | None,
    Option(
        metavar="TOKENS",
        help="Tokens per step, such as 4M (4,194,304): a whole number of sequences, in place of --global-batch-size.",
        rich_help_panel=REQUIRED,
    ),
]
Framework = Annotated[
    str | None, Option(metavar="NAME", help=f"One of {', '.join(get_args(FrameworkName))}.", rich_help_panel=REQUIRED)
]
Precision = Annotated[
    str | None, Option(metavar="NAME", help=f"One of {', '.join(get_args(PrecisionName))}.", rich_help_panel=REQUIRED)
]
NumNodes = Annotated[
    int | None,
    Option(metavar="COUNT", help="Nodes of the cluster.", show_default="the cluster's", rich_help_panel=OPTIONAL),
]
GpusPerNode = Annotated[
    int | None,
    Option(metavar="COUNT", help="GPUs of each node.", show_default="the cluster's", rich_help_panel=OPTIONAL),
]
Calibration = Annotated[
    str | None,
    Option(metavar="NAME|FILE", help="Calibration: a file or a shipped name.", show_default="reference data of the GPU", rich_help_panel=OPTIONAL),
]  # fmt: skip
FrameworkVersion = Annotated[
    str | None,
    Option(
        metavar="VERSION",
        help="Release of the framework, such as 0.16; `meshwright presets frameworks` lists those that are known.",
        show_default="by framework",
        rich_help_panel=OPTIONAL,
    ),
]
TotalTokens = Annotated[
    str | None,
    Option(metavar="TOKENS", help="Tokens of the whole training, such as 300B or 15T.", rich_help_panel=OPTIONAL),
]
Training = Annotated[
    list[str] | None,
    Option(
        metavar="KEY=VALUE",
        help="Any other training field: --training 'adapter={\"rank\": 16}' plans LoRA.",
        rich_help_panel=OPTIONAL,
    ),
]
Top = Annotated[
    int | None,
    Option(
        metavar="COUNT",
        help="Number of plans to show, not counting near-copies.",
        show_default="10",
        rich_help_panel=SEARCH,
    ),
]
Objective = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="What counts as best: step_time, cost or fewest_gpus.",
        show_default="step_time",
        rich_help_panel=SEARCH,
    ),
]
DeadlineH = Annotated[
    str | None,
    Option(
        metavar="HOURS",
        help="Time within which --total-tokens must be done, such as 720 or 30d; slower plans are left out.",
        rich_help_panel=SEARCH,
    ),
]
TargetMinTokensPerS = Annotated[
    str | None,
    Option(
        metavar="RATE",
        help="Tokens per second that the whole job must reach, such as 1.5M; slower plans are left out.",
        rich_help_panel=SEARCH,
    ),
]
Fixed = Annotated[
    list[str] | None,
    Option(metavar="KEY=VALUE", help="Fix a strategy field: --fixed tp=8.", rich_help_panel=SEARCH),
]
Allowed = Annotated[
    list[str] | None,
    Option(metavar="KEY=LIST", help="Values to search: --allowed zero=[0,1].", rich_help_panel=SEARCH),
]
Include = Annotated[
    list[str] | None,
    Option(
        metavar="NAMES",
        help="What costs extra time: open_splits (layers of each stage one by one), pareto (the front of time, memory, GPUs "
        "and cost), what_if (other batches, lengths and clusters). Several with commas, or the option repeated.",
        rich_help_panel=SEARCH,
    ),
]
TimeLimit = Annotated[
    str | None,
    Option(
        metavar="TIME",
        help="Stop the search after this time with the best plans so far: 30s, 5m, 1h or 500ms.",
        show_default="no limit",
        rich_help_panel=SEARCH,
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print the plan response as JSON.", rich_help_panel=OUTPUT)]
Server = Annotated[
    str | None,
    Option(
        metavar="URL",
        help="Let this service do the planning, such as http://127.0.0.1:8000.",
        envvar="MESHWRIGHT_SERVER",
        rich_help_panel=OUTPUT,
    ),
]
Token = Annotated[
    str | None, Option(metavar="KEY", help="Key for the service.", envvar="MESHWRIGHT_TOKEN", rich_help_panel=OUTPUT)
]


# Options and fields are called alike but for hyphens, and where the contract gives the option a name of its own.
_READERS: Mapping[str, Callable[[str], float]] = {
    **{name: partial(count, option=f"--{name.replace('_', '-')}", base=base) for name, base in COUNTED.items()},
    "deadline_h": partial(duration_h, option="--deadline-h"),
    "min_tokens_per_s": partial(rate, option="--target-min-tokens-per-s"),
    "time_limit_s": partial(duration_s, option="--time-limit", least_s=LEAST_TIME_S),
}
"""How the number of each field is read from the text of its option."""
_REQUIRED_AT = {
    "/training/seq_length": "--seq-length",
    "/training/global_batch_size": "--global-batch-size or --global-batch-tokens",
    "/training/framework": "--framework",
    "/training/precision": "--precision",
}


def given(**options: Any) -> Json:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def numbers(**options: str | None) -> Json:
    """The numbers of the options that were given, by field of the request.

    Raises:
        InvalidInputError: some are wrong; the error names all of them.
    """
    found: Json = {}
    problems: list[Problem] = []
    for name, text in given(**options).items():
        try:
            found[name] = _READERS[name](text)
        except InvalidInputError as error:
            problems += error.problems
    if problems:
        raise InvalidInputError(problems)
    return found


def training_fields(pairs: Sequence[str]) -> Json:
    """The fields of `--training KEY=VALUE`, in which counts may be written like those of the options."""
    fields = assignments(pairs, option="--training")
    for name, base in COUNTED.items():
        if isinstance(text := fields.get(name), str):
            fields[name] = count(text, option=f"--training {name}", base=base)
    return fields


def included(document: Json, names: Sequence[str]) -> Json:
    """The request's `include` with these names added to it; a name may hold several with commas, and hyphens for underscores."""
    # Words with hyphens are how options are spelled elsewhere on this command line.
    asked = [part.strip().replace("-", "_") for name in names for part in name.split(",") if part.strip()]
    there = document.get("include", [])
    # What is no list is left for the planner to refuse.
    return {"include": list(dict.fromkeys([*there, *asked]))} if asked and isinstance(there, list) else {}


def with_options_named(error: InvalidInputError) -> InvalidInputError:
    """The same error, whose hints for missing fields name the options that would give them."""
    # Pointers are right for a file; somebody who gave options looks for the option.
    problems = [
        Problem(
            each.pointer,
            each.message,
            f"Give {_REQUIRED_AT[each.pointer]}, or write it into the training of the request file.",
            each.code,
        )
        if each.pointer in _REQUIRED_AT and each.message.endswith("is required")
        else each
        for each in error.problems
    ]
    return type(error)(problems)
