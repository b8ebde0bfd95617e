"""What a launch line says of the run: its ranks. The rest of it, such as where the nodes meet, decides nothing of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from planner.export.formats.arguments import OWN_ARGUMENTS
from planner.export.settings import Setting, Settings

_RANKS_PER_NODE = ("--nproc-per-node", "--nproc_per_node", "--num_gpus")
_NODES = ("--nnodes", "--num_nodes", "#SBATCH --nodes", "#SBATCH -N")
_RANKS = ("--num_processes", "--num-processes", "--np", "-np")
_INCLUDED = "--include"
"""DeepSpeed's GPUs by host, as in `localhost:0,1,2,3@other:0,1`."""
_TASKS_PER_NODE = ("#SBATCH --ntasks-per-node", "#SBATCH --tasks-per-node")
"""Ranks of a node where srun starts them without a launcher of their own."""
RANK_KEYS = frozenset({*_RANKS_PER_NODE, *_NODES, *_RANKS, _INCLUDED, *_TASKS_PER_NODE})
_WITHOUT_EFFECT = frozenset({
    OWN_ARGUMENTS, "--master-addr", "--master_addr", "--master-port", "--master_port", "--node-rank", "--node_rank", "--rdzv-backend",
    "--rdzv_backend", "--rdzv-endpoint", "--rdzv_endpoint", "--rdzv-id", "--rdzv_id", "--rdzv-conf", "--rdzv_conf", "--max-restarts",
    "--max_restarts", "--standalone", "--tee", "--redirects", "--log-dir", "--log_dir", "--local-ranks-filter", "--local_ranks_filter",
    "--role", "--start-method", "--monitor-interval", "--machine_rank", "--main_process_ip", "--main_process_port", "--num_machines",
    "--same_network", "--hostfile", "--kill-on-bad-exit", "--wait", "-u", "-l", "--label", "--jobid", "--container-image", "--container-mounts",
    "--container-name", "--container-workdir", "--no-container-mount-home", "--force_multi", "--no-python", "--no_python", "--allow-run-as-root",
    "--bind-to", "--map-by", "--mca", "--cpu-bind", "--mpi", "--use_env", "--use-env",
    *(f"#SBATCH {option}" for option in (
        "--job-name", "-J", "--output", "-o", "--error", "-e", "--time", "-t", "--partition", "-p", "--account", "-A", "--exclusive", "--mem",
        "--cpus-per-task", "-c", "--qos", "-q", "--mail-type", "--mail-user", "--ntasks-per-node", "--gpus-per-node", "--gres", "--gpus",
        "--nodelist", "--exclude", "--constraint", "-C", "--signal", "--requeue", "--open-mode", "--reservation", "--dependency", "--export",
        "--chdir", "-D", "--comment", "--hint", "--switches", "--overcommit", "--wait-all-nodes", "--mem-per-gpu", "--gpus-per-task",
        "--tasks-per-node", "--distribution", "-m", "--begin", "--nice", "--array", "-a",
    )),
})  # fmt: skip
"""Options of torchrun, of the launchers of Accelerate and DeepSpeed, of srun and of batch scripts."""
_ENVIRONMENT = re.compile(
    r"\$(PYTHONPATH|LD_LIBRARY_PATH|PATH|CUDA_HOME|CUDA_VISIBLE_DEVICES|MASTER_(ADDR|PORT)|RANK|LOCAL_RANK|WORLD_SIZE|OMP_NUM_THREADS"
    r"|TOKENIZERS_PARALLELISM|(WANDB|HF|TRANSFORMERS|SLURM|TRITON_CACHE)_\w+|NCCL_DEBUG(_\w+)?|TORCHELASTIC_ERROR_FILE"
    r"|(TORCH_)?NCCL_ASYNC_ERROR_HANDLING|TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD|PYTHON(UNBUFFERED|WARNINGS|FAULTHANDLER))"
)
"""Variables on paths, meeting points, logs and caches."""
_RUNNERS = frozenset({
    "exec", "torchrun", "python", "python3", "accelerate", "launch", "deepspeed", "srun", "accelerate-launch", "mpirun", "mpiexec", "env",
})  # fmt: skip
_RUNNER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "torchtitan.train"})
_FILES = (
    "--config_file",
    "--config-file",
    "--deepspeed_config",
    "--deepspeed",
    "--job.config_file",
    "--job.config-file",
)
"""Options that name a further file of the configuration."""


def read_launch(settings: Settings) -> int | None:
    """The number of ranks, or None; takes everything of the launch line that is understood."""
    settings.pass_over(*_WITHOUT_EFFECT)
    given = {PurePosixPath(file.path).name for file in settings.files}
    for setting in list(settings):
        if _names_what_runs(setting) or _is_given(setting, given) or _ENVIRONMENT.fullmatch(setting.key):
            settings.take_one(setting)
    # Accelerate's launcher is told all ranks at once, the others those of one node.
    every = _count(settings, _RANKS)
    each, nodes = _count(settings, _RANKS_PER_NODE), _count(settings, _NODES, default=1)
    if every is None and each is None:
        every = _included(settings)
    if each is None and not any(setting.key in _RANKS_PER_NODE for setting in settings):
        each = _tasks_of_srun(settings)
    return every if every is not None else None if each is None or nodes is None else each * nodes


def _included(settings: Settings) -> int | None:
    for setting in settings:
        if setting.key == _INCLUDED and isinstance(setting.value, str) and not setting.is_open:
            hosts = setting.value.split("@")
            if all(re.fullmatch(r"[\w.-]+:\d+(,\d+)*", host) for host in hosts):
                settings.take_one(setting, "dp")
                return sum(host.count(",") + 1 for host in hosts)
    return None


def _tasks_of_srun(settings: Settings) -> int | None:
    if not any(setting.key == "@" and setting.value == "srun" for setting in settings):
        return None
    tasks = _count(settings, _TASKS_PER_NODE)
    # One task a node starts further ranks in a way that is not seen here.
    return tasks if tasks is not None and tasks > 1 else None


def open_counts(settings: Settings) -> list[Setting]:
    """Numbers of ranks or nodes that only a shell could tell."""
    return [each for each in settings if each.is_open and each.key in (*_RANKS, *_RANKS_PER_NODE, *_NODES)]


def _names_what_runs(setting: Setting) -> bool:
    if setting.key == "@":
        word = str(setting.value)
        # A program's place may depend on the environment, its own name does not.
        return word.endswith(".py") or (not setting.is_open and word in _RUNNERS)
    return setting.key == "-m" and setting.value in _RUNNER_MODULES


def _is_given(setting: Setting, given: Iterable[str]) -> bool:
    return setting.key in _FILES and isinstance(setting.value, str) and PurePosixPath(setting.value).name in given


def _count(settings: Settings, keys: Iterable[str], *, default: int | None = None) -> int | None:
    """The number under the first of these keys that is there; None where only a shell could tell it."""
    left_open = False
    for key in keys:
        found = [each for each in settings if each.key == key]
        if found and re.fullmatch(r"\d{1,6}", str(found[-1].value)) and not found[-1].is_open:
            settings.take(key, "dp")
            return int(found[-1].value)
        # Batch scripts and launch lines often leave their size to the scheduler, which is no mistake.
        if found:
            if not found[-1].is_open:
                return None
            # A batch script may say what the launch line takes from the scheduler.
            settings.pass_over(key)
            left_open = True
    return None if left_open else default
