"""The options of `meshwright plan`: what each is called, what its help says, and how a request is made of them.

A job can be given by options, by a request file, or by both, so no option is required by itself; the panels of `--help` say
which parts of a job must come from one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, get_args

import typer

from app.cli.completion import choices, presets_of
from app.cli.inputs import Json, assignments
from app.quantities import COUNTED, count, duration_h, duration_s, rate
from cost_models.errors import InvalidInputError, Problem
from cost_models.specs.training import Framework as FrameworkName
from cost_models.specs.training import Precision as PrecisionName

REQUIRED = "Job (required, here or in the request file)"
# Panels say in their title what a mark at each option could not: that a request file may have said it already.
OPTIONAL, SEARCH, OUTPUT = "Job (optional)", "Search", "Output"
# What the planner takes for a time limit is any number above 0; below a millisecond a unit was mistaken.
LEAST_TIME_S = 0.001


def _option(name: str) -> str:
    """The option of a field that it is called after."""
    return f"--{name.replace('_', '-')}"


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
    str | None,
    typer.Argument(
        help="Plan request, or an answer whose request is planned again (JSON file, or - for standard input).",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE",
        autocompletion=presets_of("models"),
        help="Preset name (see `meshwright presets models`), config.json (or its folder) or model specification.",
        rich_help_panel=REQUIRED,
    ),
]
Cluster = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE",
        autocompletion=presets_of("clusters"),
        help="Preset name (see `meshwright presets clusters`) or cluster specification; or give --gpu.",
        rich_help_panel=REQUIRED,
    ),
]
Gpu = Annotated[
    str | None,
    Option(
        metavar="NAME",
        autocompletion=presets_of("gpus"),
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
    str | None,
    Option(
        metavar="NAME",
        autocompletion=choices(get_args(FrameworkName)),
        help=f"One of {', '.join(get_args(FrameworkName))}.",
        rich_help_panel=REQUIRED,
    ),
]
Precision = Annotated[
    str | None,
    Option(
        metavar="NAME",
        autocompletion=choices(get_args(PrecisionName)),
        help=f"One of {', '.join(get_args(PrecisionName))}.",
        rich_help_panel=REQUIRED,
    ),
]
NumNodes = Annotated[
    str | None,
    Option(metavar="COUNT", help="Nodes of the cluster.", show_default="the cluster's", rich_help_panel=OPTIONAL),
]
GpusPerNode = Annotated[
    str | None,
    Option(metavar="COUNT", help="GPUs of each node.", show_default="the cluster's", rich_help_panel=OPTIONAL),
]
Calibration = Annotated[
    str | None,
    Option(metavar="NAME|FILE", help="Calibration: a file or a shipped name.", show_default="reference data of the GPU", rich_help_panel=OPTIONAL),
]  # fmt: skip
Corrections = Annotated[
    str | None,
    Option(
        metavar="FILE|NAME",
        help="Corrections learnt from measured runs: a file that `correct` wrote, none, or auto for a service's own.",
        show_default="auto",
        rich_help_panel=OPTIONAL,
    ),
]
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
    str | None,
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
        autocompletion=choices(("step_time", "cost", "fewest_gpus")),
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
        autocompletion=choices(("open_splits", "pareto", "what_if")),
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
_OPTION_AT: Mapping[str, str] = {
    "/model/preset": "--model",
    "/cluster/preset": "--cluster",
    **{f"/cluster/{name}": _option(name) for name in ("gpu", "num_nodes", "gpus_per_node", "calibration")},
    **{
        f"/training/{name}": _option(name)
        for name in ("seq_length", "global_batch_size", "global_batch_tokens", "total_tokens")
    },
    **{f"/training/{name}": _option(name) for name in ("framework", "framework_version", "precision")},
    "/targets/deadline_h": "--deadline-h",
    "/targets/min_tokens_per_s": "--target-min-tokens-per-s",
    "/top_k": "--top",
    "/objective": "--objective",
    "/include": "--include",
    "/time_limit_s": "--time-limit",
}
"""The option that gives a member of the request, by its pointer."""
_SUCH_AS: Mapping[str, str] = {
    "/cluster/num_nodes": "it, such as --num-nodes 4",
    "/cluster/gpus_per_node": "it, such as --gpus-per-node 8",
    "/training/seq_length": "it, such as --seq-length 8k",
    "/training/global_batch_size": "it, such as --global-batch-size 512 or --global-batch-tokens 4M",
    "/training/framework": "it, such as --framework megatron",
    "/training/precision": "it, such as --precision bf16",
    "/targets": "one, such as --target-min-tokens-per-s 1M, or --deadline-h 30d with --total-tokens",
    "/targets/deadline_h": "the tokens, such as --total-tokens 15T",
}
"""What to give where a member of the request is missing, by the pointer of the problem."""
_READERS: Mapping[str, Callable[[str], float]] = {
    **{name: partial(count, option=_option(name), base=base) for name, base in COUNTED.items()},
    "num_nodes": partial(count, option="--num-nodes", base=1000, example="16"),
    "gpus_per_node": partial(count, option="--gpus-per-node", base=1000, example="8"),
    "top_k": partial(count, option="--top", base=1000, example="10"),
    "deadline_h": partial(duration_h, option="--deadline-h"),
    "min_tokens_per_s": partial(rate, option="--target-min-tokens-per-s"),
    "time_limit_s": partial(duration_s, option="--time-limit", least_s=LEAST_TIME_S),
}
"""How the number of each field is read from the text of its option."""


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


def those(fields: Json, *names: str) -> Json:
    """The fields of these names, as far as they are there."""
    return {name: fields[name] for name in names if name in fields}


def pointers(given_fields: Mapping[str, Any]) -> set[str]:
    """Pointers to the members of a request that options gave: two names deep, and three for constraints."""
    found = {f"/{part}" for part, fields in given_fields.items() if fields}
    for part, fields in given_fields.items():
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            found.add(f"/{part}/{name}")
            if part == "constraints":
                found |= {f"/{part}/{name}/{field}" for field in value}
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


def with_options_named(error: InvalidInputError, options: Container[str] | None) -> InvalidInputError:
    """The same error in the words of this command line: with options in place of pointers, and in hints for what is missing.

    Args:
        error: what the planner or a service says of the request.
        options: pointers to the members that options gave; None if there is no request file, and options gave everything.
    """
    return type(error)([_with_option_named(problem, options) for problem in error.problems])


def _with_option_named(problem: Problem, options: Container[str] | None) -> Problem:
    pointer, hint = problem.pointer, problem.hint
    member = "/".join(pointer.split("/")[: 4 if pointer.startswith("/constraints/") else 3])
    # Single members of a list have a pointer of their own: the second of --include is /include/1.
    member = "/include" if member.startswith("/include/") else member
    is_missing = problem.code == "missing-field" or problem.message.endswith("is required")
    if is_missing and pointer in _SUCH_AS:
        hint = f"Give {_SUCH_AS[pointer]}" + ("." if options is None else ", or write it into the request file.")
    if member.startswith("/constraints/allowed/") and problem.message.endswith("it must be a list"):
        hint = f"Write it like --allowed '{member.rpartition('/')[2]}=[1,2]'."
    # Pointers are right for what stands in a file; somebody who gave an option looks for the option.
    if options is None or member in options:
        pointer = _option_of(member) or pointer
    return Problem(pointer, problem.message, hint, problem.code)


def _option_of(member: str) -> str | None:
    part, _, name = member.removeprefix("/").partition("/")
    if part == "constraints" and "/" in name:
        kind, _, field = name.partition("/")
        return f"--{kind} {field}" if kind in {"fixed", "allowed"} else None
    return _OPTION_AT.get(member) or (f"--training {name}" if part == "training" and name else None)
