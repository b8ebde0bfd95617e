"""The script that every node runs, and the SLURM batch script around it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from planner.export.launch_plan import LaunchPlan, NodeGroup
from planner.export.target import Launch

LAUNCH, MOCK, BATCH = "launch.sh", "mock.sh", "job.sbatch"
_WIDTH = 110


def node_script(plan: LaunchPlan, launch: Launch, *, head: Sequence[str], mock: bool) -> str:
    """`launch.sh` or `mock.sh`: what one node runs.

    Args:
        head: sentences for the top of the script.
        mock: whether the run takes made-up data and prints step time and memory.
    """
    lines = ["#!/usr/bin/env bash", *(f"# {sentence}" for sentence in head)]
    if mock:
        lines.append("# This variant trains on made-up tokens and prints the time and memory of each step.")
    lines += (f"# {note}" for note in launch.notes)
    lines += ["set -euo pipefail", _folder(launch), ""]
    for variable in launch.variables:
        lines += [f"# {variable.why}", f"export {variable.name}={shlex.quote(variable.value)}"]
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
    lines += [
        "# Add your --partition, --account and --time. The folder of this script must be on a file system that every node sees.",
        "set -euo pipefail",
        "",
        "# The first node of the list has rank 0 and is where the others meet.",
        f'MASTER_ADDR="$(scontrol show hostnames "${nodes}" | head -n 1)"',
        "export MASTER_ADDR MASTER_PORT=29500",
        f'srun {groups}--kill-on-bad-exit=1 --wait=60 bash "$SLURM_SUBMIT_DIR/{LAUNCH}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def _folder(launch: Launch) -> str:
    if launch.checkout is None:
        return 'cd "$(dirname "${BASH_SOURCE[0]}")"'
    variable, name = launch.checkout
    return f'cd "${{{variable}:?set it to the folder of your checkout of {name}}}"'


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
