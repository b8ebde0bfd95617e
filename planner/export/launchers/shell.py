"""The script that every node runs, and the SLURM batch script around it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence

from planner.export.launch_plan import LaunchPlan, NodeGroup
from planner.export.target import Launch

LAUNCH, MOCK, BATCH = "launch.sh", "mock.sh", "job.sbatch"
NOT_IN_THE_PLAN = (
    "The plan holds nothing that costs neither time nor memory, such as the base of rotary positions, epsilons, initial values and "
    "the schedule of the learning rate: set them to your model's."
)
_WIDTH = 110


def node_script(plan: LaunchPlan, launch: Launch, *, head: Sequence[str], mock: bool) -> str:
    """`launch.sh` or `mock.sh`: what one node runs.

    Args:
        head: sentences for the top of the script.
        mock: whether the run takes made-up data and prints step time and memory.
    """
    mocked = ("This variant trains on made-up tokens and prints the time of each step and the peak memory.",)
    sentences = (
        *head,
        *(mocked if mock else ()),
        *launch.notes,
        *(() if mock else (*launch.own_data, NOT_IN_THE_PLAN)),
    )
    lines = ["#!/usr/bin/env bash", *(line for sentence in sentences for line in _comment(sentence))]
    lines += ["set -euo pipefail", *_folder(launch)]
    for variable in launch.variables:
        lines += ["", *_comment(variable.why), f"export {variable.name}={shlex.quote(variable.value)}"]
    lines += _where_this_node_stands(plan.nodes)
    # What is given to the script is handed on, so that data and schedule can be added without editing the file.
    command = launch.mock_command if mock else launch.command
    words = [*_runner(plan, launch), *command]
    lines += ["", "exec " + " \\\n  ".join(_by_option(words)) + ' \\\n  "$@"']
    return "\n".join(lines) + "\n"


def batch_script(plan: LaunchPlan, *, name: str) -> str:
    """`job.sbatch`: one task on each node, which runs `launch.sh`. Pools are the components of a heterogeneous job, in order."""
    lines = ["#!/usr/bin/env bash", f"#SBATCH --job-name={name}"]
    for index, group in enumerate(plan.nodes):
        lines += ["#SBATCH hetjob"] if index else []
        lines += [
            f"#SBATCH --nodes={group.num_nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={group.ranks_per_node}",
            "#SBATCH --exclusive",
        ]
        # A heterogeneous job is one job with one output, so the options of the whole job stand in its first component.
        lines += ["#SBATCH --output=%x-%j.out"] if not index else []
    several = len(plan.nodes) > 1
    nodes = "SLURM_JOB_NODELIST_HET_GROUP_0" if several else "SLURM_JOB_NODELIST"
    groups = f"--het-group=0-{len(plan.nodes) - 1} " if several else ""
    # `head` would leave before scontrol has written all names, which ends a script with pipefail now and then (SIGPIPE).
    first = f'"$(scontrol show hostnames "${nodes}" | sed -n 1p)"'
    lines += [
        "# Add your --partition, --account and --time. Submit it from its own folder, which every node must see.",
        f"# LAUNCH={MOCK} sbatch {BATCH} runs the variant on made-up tokens.",
        "set -euo pipefail",
        "",
        "# The first node of the list has rank 0 and is where the others meet.",
        f"MASTER_ADDR={first}",
        "export MASTER_ADDR MASTER_PORT=29500",
        f'srun {groups}--kill-on-bad-exit=1 --wait=60 bash "$SLURM_SUBMIT_DIR/${{LAUNCH:-{LAUNCH}}}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def _comment(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def checkout_folder(launch: Launch) -> str:
    """The folder of the launch's source tree, as bash reads it: an error where nobody set the variable.

    The target must have a checkout.
    """
    assert launch.checkout is not None
    variable, name = launch.checkout
    return f"${{{variable}:?set it to the folder of your checkout of {name}}}"


def _folder(launch: Launch) -> list[str]:
    if launch.checkout is None:
        return ['cd "$(dirname "${BASH_SOURCE[0]}")"']
    if launch.runs_in_checkout:
        return [f'cd "{checkout_folder(launch)}"']
    return [f': "{checkout_folder(launch)}"', 'cd "$(dirname "${BASH_SOURCE[0]}")"']


def _where_this_node_stands(nodes: Sequence[NodeGroup]) -> Iterator[str]:
    total = sum(group.num_nodes for group in nodes)
    if total == 1:
        return
    yield ""
    yield "# NODE_RANK counts the nodes from 0; SLURM numbers its tasks, of which there is one on each node."
    yield 'NODE_RANK="${NODE_RANK:-${SLURM_PROCID:-}}"'
    yield ': "${NODE_RANK:?set it to the number of this node, from 0}" "${MASTER_ADDR:?set it to the name of node 0}"'
    if len({group.ranks_per_node for group in nodes}) > 1:
        yield from _ranks_by_node(nodes)


def _ranks_by_node(nodes: Sequence[NodeGroup]) -> Iterator[str]:
    yield f"# Nodes in the order of the pipeline: {', '.join(f'{g.num_nodes} of {g.pool}' for g in nodes)}."
    before = 0
    for index, group in enumerate(nodes):
        before += group.num_nodes
        word = "if" if not index else "elif"
        last = index == len(nodes) - 1
        yield "else" if last else f'{word} [[ "$NODE_RANK" -lt {before} ]]; then'
        yield f"  RANKS_PER_NODE={group.ranks_per_node}"
    yield "fi"


def _runner(plan: LaunchPlan, launch: Launch) -> list[str]:
    nodes, total = plan.nodes, sum(group.num_nodes for group in plan.nodes)
    alike = len({group.ranks_per_node for group in nodes}) == 1
    ranks = str(nodes[0].ranks_per_node) if alike else '"$RANKS_PER_NODE"'
    if launch.runner == "python":
        return ["python", *launch.runner_options]
    if launch.runner == "accelerate":
        where = [
            "--machine_rank",
            '"$NODE_RANK"',
            "--main_process_ip",
            '"$MASTER_ADDR"',
            "--main_process_port",
            '"${MASTER_PORT:-29500}"',
        ]
        return ["accelerate", "launch", *launch.runner_options, *(where if total > 1 else [])]
    if total == 1:
        return ["torchrun", "--standalone", "--nproc-per-node", ranks, *launch.runner_options]
    return [
        "torchrun", "--nnodes", str(total), "--nproc-per-node", ranks, "--node-rank", '"$NODE_RANK"', "--master-addr",
        '"$MASTER_ADDR"', "--master-port", '"${MASTER_PORT:-29500}"', *launch.runner_options,
    ]  # fmt: skip


def _by_option(words: Sequence[str]) -> list[str]:
    """The words of a command as lines: an option stays with its values, and short ones share a line."""
    parts: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not parts or not parts[-1][0].startswith("-"):
            parts.append([])
        parts[-1].append(word if word.startswith('"$') else shlex.quote(word))
    lines: list[str] = []
    for part in parts:
        text = " ".join(part)
        if lines and len(lines[-1]) + len(text) < _WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines
