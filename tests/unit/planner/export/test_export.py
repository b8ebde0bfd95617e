"""From a plan to files: scripts, batch and Kubernetes files, and refusals with the nearest plan."""

import json
import subprocess
from copy import deepcopy

import pytest
import yaml

from cost_models.errors import InvalidInputError, NotExpressibleError
from planner.export.export import export_row, version_of
from planner.export.formats.arguments import read_script
from planner.export.launch_plan import launch_plan
from planner.export.quantities import Quantities
from planner.export.settings import InputFile
from planner.export.targets import TARGETS
from planner.rows import evaluate_rows

ROW = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 2},
    "training": {"seq_length": 8192, "global_batch_size": 128, "precision": "bf16", "framework": "megatron"},
    "strategy": {"tp": 2, "pp": 2, "zero": 1, "micro_batch_size": 1, "recompute": "none"},
}


def _row(**strategy):
    row = deepcopy(ROW)
    row["strategy"] |= strategy
    return row


@pytest.fixture(scope="module")
def files():
    return {file.path: file for file in export_row(ROW, "megatron")}


def _settings(file):
    return {setting.key: setting.value for setting in read_script(InputFile(file.path, file.content))}


def test_the_launch_line_starts_one_rank_for_each_gpu(files):
    found = _settings(files["launch.sh"])
    assert (found["--nnodes"], found["--nproc-per-node"]) == ("2", "8")
    assert (found["--tensor-model-parallel-size"], found["--pipeline-model-parallel-size"]) == ("2", "2")


def test_scripts_are_bash_and_may_be_executed(files):
    for name in ("launch.sh", "mock.sh", "job.sbatch"):
        assert files[name].executable
        checked = subprocess.run(["bash", "-n"], input=files[name].content, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def _run(script, tmp_path, **environment):
    """Runs a script with a stand-in for torchrun that prints its arguments, one a line."""
    runner = tmp_path / "torchrun"
    runner.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    runner.chmod(0o755)
    path = tmp_path / "launch.sh"
    path.write_text(script)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **environment}
    return subprocess.run(
        ["bash", str(path), "--extra", "a b"], capture_output=True, text=True, env=environment, check=False
    )


def test_what_the_script_runs_on_the_second_node(files, tmp_path):
    done = _run(files["launch.sh"].content, tmp_path, NODE_RANK="1", MASTER_ADDR="head", MEGATRON_LM=str(tmp_path))
    assert done.returncode == 0, done.stderr
    words = done.stdout.split("\n")
    assert words[:10] == [
        "--nnodes", "2", "--nproc-per-node", "8", "--node-rank", "1", "--master-addr", "head", "--master-port", "29500",
    ]  # fmt: skip
    assert words[-3:-1] == ["--extra", "a b"]


@pytest.mark.parametrize("missing", ["NODE_RANK", "MASTER_ADDR", "MEGATRON_LM"])
def test_the_script_says_what_it_is_not_told(files, tmp_path, missing):
    given = {"NODE_RANK": "0", "MASTER_ADDR": "head", "MEGATRON_LM": str(tmp_path)}
    del given[missing]
    done = _run(files["launch.sh"].content, tmp_path, **given)
    assert done.returncode != 0
    assert missing in done.stderr


def test_one_node_needs_no_address(tmp_path):
    row = _row(tp=1, pp=1)
    row["cluster"] = {"preset": "dgx-h100", "num_nodes": 1}
    (script,) = [file for file in export_row(row, "megatron") if file.path == "launch.sh"]
    done = _run(script.content, tmp_path, MEGATRON_LM=str(tmp_path))
    assert done.stdout.split("\n")[:3] == ["--standalone", "--nproc-per-node", "8"]


def test_slurm_starts_one_task_on_each_node(files):
    found = _settings(files["job.sbatch"])
    assert found["#SBATCH --nodes"] == "2"
    assert found["#SBATCH --ntasks-per-node"] == "1"
    assert found["#SBATCH --gpus-per-node"] == "8"


@pytest.mark.parametrize(("name", "kind"), [("pytorchjob.yaml", "PyTorchJob"), ("jobset.yaml", "JobSet")])
def test_kubernetes_files_carry_the_scripts_and_ask_for_the_gpus(files, name, kind):
    config, job = yaml.safe_load_all(files[name].content)
    assert (config["kind"], job["kind"]) == ("ConfigMap", kind)
    assert config["data"]["launch.sh"] == files["launch.sh"].content
    text = json.dumps(job)
    assert '"nvidia.com/gpu": 8' in text
    if kind == "PyTorchJob":
        replicas = job["spec"]["pytorchReplicaSpecs"]
        assert [replicas[role]["replicas"] for role in ("Master", "Worker")] == [1, 1]
    else:
        spec = job["spec"]["replicatedJobs"][0]["template"]["spec"]
        assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")


def test_scripts_begin_with_the_plan_and_its_price(files):
    """The head names the job, the degrees above 1, and the seconds and GiB of the evaluation that it was given."""
    predicted = {
        "step_time_s": 12.345,
        "step_time_range_s": [11.0, 13.5],
        "memory": {"peak_device_bytes": 50.0 * 2**30},
    }
    for name in ("launch.sh", "mock.sh"):
        (script,) = [file.content for file in export_row(ROW, "megatron", predicted=predicted) if file.path == name]
        first, second = script.splitlines()[1:3]
        assert first.startswith("# llama-3.1-8b on 16 GPUs for megatron 0.16: tp 2, pp 2, dp 4, zero 1, micro-batch 1")
        assert second == "# Predicted: 12.3 s a step (11 to 13.5), 50.0 GiB on the fullest GPU."
        assert "Predicted" not in files[name].content


def test_only_a_run_on_own_data_is_told_of_it(files):
    assert "Add --data-path" in files["launch.sh"].content
    assert "base of rotary positions" in files["launch.sh"].content
    assert "data-path" not in files["mock.sh"].content
    assert "rotary positions" not in files["mock.sh"].content
    assert "made-up tokens" in files["mock.sh"].content


@pytest.mark.parametrize(("asked", "script"), [({}, "launch.sh"), ({"LAUNCH": "mock.sh"}, "mock.sh")])
def test_the_batch_script_runs_either_variant_on_every_node(files, tmp_path, asked, script):
    """Stand-ins: scontrol lists two nodes, the second one later than its reader may wait; srun prints what it is given and where the nodes meet."""
    for name, body in (
        ("scontrol", "echo first; sleep 0.1; echo second"),
        ("srun", 'printf "%s\\n" "$@" "$MASTER_ADDR:$MASTER_PORT"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sbatch").write_text(files["job.sbatch"].content)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_SUBMIT_DIR": "/there",
        **asked,
    }
    command = ["bash", str(tmp_path / "job.sbatch"), "--extra"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split("\n")[-5:-1] == ["bash", f"/there/{script}", "--extra", "first:29500"]


def test_a_program_of_a_source_tree_starts_from_it_in_the_folder_of_the_launch(tmp_path):
    """nanotron's run_train.py is in its repository and not in its package; config.yaml lies beside launch.sh."""
    row = _row(pp=1)
    row["training"]["framework"] = "nanotron"
    (script,) = [file.content for file in export_row(row, "nanotron") if file.path == "launch.sh"]
    place = {"NODE_RANK": "0", "MASTER_ADDR": "head"}
    done = _run(script.replace("exec torchrun", 'echo "in $PWD"; exec torchrun'), tmp_path, NANOTRON="/src", **place)
    assert done.stdout.startswith(f"in {tmp_path}\n")
    assert "\n/src/run_train.py\n--config-file\nconfig.yaml\n" in done.stdout
    assert "NANOTRON" in _run(script, tmp_path, **place).stderr


def test_a_pod_runs_the_scripts_in_a_folder_that_programs_may_write_to(files):
    """A ConfigMap is mounted read-only; the container copies it into a volume of its own, where the script then runs."""
    for name in ("pytorchjob.yaml", "jobset.yaml"):
        config, job = yaml.safe_load_all(files[name].content)
        pod = (
            job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
            if name == "pytorchjob.yaml"
            else job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        )
        (container,) = pod["containers"]
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["files"]["configMap"]["name"] == config["metadata"]["name"]
        assert volumes["launch"]["emptyDir"] == {}
        assert (
            f"cp -L {places['files']}/* {places['launch']}/ && exec bash {places['launch']}/launch.sh"
            in container["command"][2]
        )
        assert container["env"] == [{"name": "MEGATRON_LM", "value": "REPLACE-WITH-ITS-FOLDER-OF-Megatron-LM"}]


def test_the_exported_row_prices_like_the_plan(files):
    row = json.loads(files["plan.json"].content)
    priced, original = evaluate_rows([row, ROW])
    assert priced["step_time_s"] == original["step_time_s"]
    assert priced["memory"] == original["memory"]


def test_pools_are_nodes_of_different_sizes_in_the_order_of_the_stages(tmp_path):
    row = _row(tp=2, pp=2, dp=4, pool_per_stage=["new", "old"], layers_per_stage=[20, 12])
    row["cluster"] = {
        "network": {"fabric": "infiniband"},
        "pools": [
            {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 4},
            {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        ],
    }
    files = {file.path: file for file in export_row(row, "megatron")}
    for rank, ranks in enumerate(("8", "4", "4")):
        given = {"NODE_RANK": str(rank), "MASTER_ADDR": "head", "MEGATRON_LM": str(tmp_path)}
        words = _run(files["launch.sh"].content, tmp_path, **given).stdout.split("\n")
        assert words[:4] == ["--nnodes", "3", "--nproc-per-node", ranks]
    nodes = [line for line in files["job.sbatch"].content.split("\n") if "--nodes=" in line or "hetjob" in line]
    assert nodes == ["#SBATCH --nodes=1", "#SBATCH hetjob", "#SBATCH --nodes=2"]
    assert "jobset.yaml" not in files


def test_a_target_of_another_framework_is_refused_with_those_that_can():
    row = deepcopy(ROW)
    row["training"]["framework"] = "nanotron"
    with pytest.raises(NotExpressibleError) as caught:
        export_row(row, "megatron")
    assert caught.value.context["field"] == "training.framework"


def test_a_strategy_that_no_framework_runs_is_refused_before_anything_is_written():
    with pytest.raises(InvalidInputError, match="heads"):
        export_row(_row(tp=3, pp=1, dp=1), "megatron")


def test_a_version_may_name_a_patch_or_a_series():
    plan = launch_plan(ROW)
    target = TARGETS["megatron"]
    assert version_of(target, "0.17.1", plan) == "0.17"
    assert version_of(target, None, plan) == "0.16"
    with pytest.raises(InvalidInputError, match="not known"):
        version_of(target, "0.5", plan)


def test_what_was_not_said_is_refused_by_name():
    quantities = Quantities(launch_plan(_row()), target="toy", version="1")
    for field in quantities.unsaid():
        if field != "zero":
            quantities[field]
    with pytest.raises(NotExpressibleError) as caught:
        quantities.finish()
    assert caught.value.context["field"] == "zero"
    assert quantities["zero"] == 1
    quantities.finish()


@pytest.mark.parametrize(
    ("strategy", "idle"),
    [
        ({"tp": 1, "pp": 1}, "sequence_parallel"),
        ({"pp": 1, "tp": 2}, "schedule"),
        ({"tp": 2}, "cp_comm"),
        ({}, "moe_dispatcher"),
    ],
)
def test_fields_that_make_no_difference_need_not_be_said(strategy, idle):
    quantities = Quantities(launch_plan(_row(**strategy)), target="toy", version="1")
    assert not quantities.matters(idle)
    assert idle not in quantities.unsaid()
