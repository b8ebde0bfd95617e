"""A traced step, sorted into terms: sums worked out by hand on short traces in the format that PyTorch's profiler exports."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.trial_forms.forms import DENSE, MIXTURE
from profiler.trial.plan import trial_plan
from profiler.trial.terms import (
    EMBEDDING,
    HEAD,
    LOSS,
    OPTIMIZER,
    SETTLE,
    STEP,
    Precedence,
    Work,
    of_step,
    shares,
    terms_of_trace,
)

TENSOR = {"tp": 2, "sequence_parallel": True}
MAIN, ENGINE = 10, 11
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


class Trace:
    """A trace that is written down event by event; times in microseconds."""

    def __init__(self, length: float) -> None:
        self.events: list[dict[str, Any]] = []
        self._launches = 0
        self.span(STEP, 0, length, "user_annotation")

    def span(
        self, name: str, start: float, length: float, kind: str = "cpu_op", *, thread: int = MAIN, **args: Any
    ) -> None:
        event = {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}
        self.events.append(event | {"args": {key.replace("_", " "): value for key, value in args.items()}})

    def kernel(
        self,
        name: str,
        start: float,
        length: float,
        *,
        launched: float,
        thread: int = MAIN,
        stream: int = 7,
        **args: Any,
    ) -> None:
        self._launches += 1
        number = {"correlation": self._launches}
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": thread,
            "ts": launched,
            "dur": 1,
        }
        self.events.append(launch | {"args": number})
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}
        self.events.append(kernel | {"args": number | {key.replace("_", " "): value for key, value in args.items()}})

    def terms(self, *, pipeline: bool = False, spans_all: str | None = None) -> dict[str, float]:
        """Microseconds by term."""
        found = terms_of_trace(self.events, pipeline=pipeline, spans_all=spans_all)
        return {name: round(value * 1e6, 6) for name, value in found.items()}


def _whole_step() -> Trace:
    """A step of 1,000 µs: forward on the main thread from 0, backward on the engine's from 100; kernels run one after the other.

    Kernels: embedding 200..220, product 220..320, attention 320..380, norm 380..400, head 400..450, loss 450..470; backward of the loss
    470..490, head 490..590, attention 590..700, layer's product 700..850, its gradient added 850..860, embedding 860..880; optimizer
    880..950. Nothing runs from 0 to 200 and from 950 to 1,000: 250 in all.
    """
    trace = Trace(1000)
    trace.span(EMBEDDING, 0, 10, "user_annotation")
    trace.span("aten::embedding", 1, 8, Sequence_number=1)
    trace.kernel("void indexSelectLargeIndex", 200, 20, launched=5)
    trace.span("aten::linear", 10, 10, Sequence_number=2)
    trace.span("aten::mm", 12, 6, Sequence_number=2)
    trace.kernel(GEMM, 220, 100, launched=13)
    trace.span("aten::scaled_dot_product_attention", 20, 10, Sequence_number=3)
    trace.kernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma", 320, 60, launched=25)
    trace.span("aten::_fused_rms_norm", 30, 5, Sequence_number=4)
    trace.kernel("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel", 380, 20, launched=31)
    trace.span(HEAD, 40, 10, "user_annotation")
    trace.span("aten::mm", 41, 6, Sequence_number=5)
    trace.kernel(GEMM, 400, 50, launched=43)
    trace.span(LOSS, 50, 10, "user_annotation")
    trace.span("aten::cross_entropy_loss", 51, 6, Sequence_number=6)
    trace.kernel("cunn_SoftMaxForward", 450, 20, launched=53)
    backward = (
        (100, 6, "NllLossBackward0", "cunn_SoftMaxBackward", 470, 20),
        (110, 5, "MmBackward0", GEMM, 490, 100),
        (
            120,
            3,
            "ScaledDotProductCudnnAttentionBackward0",
            "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma",
            590,
            110,
        ),
        (130, 2, "MmBackward0", GEMM, 700, 150),
        (140, None, "torch::autograd::AccumulateGrad", POINTWISE, 850, 10),
        (150, 1, "EmbeddingBackward0", "void embedding_backward_kernel", 860, 20),
    )
    for start, number, node, kernel, kernel_start, length in backward:
        told = {} if number is None else {"Sequence_number": number, "Fwd_thread_id": 1}
        trace.span(f"autograd::engine::evaluate_function: {node}", start, 9, thread=ENGINE, **told)
        trace.span(node, start + 1, 7, thread=ENGINE, **told)
        trace.span("aten::mm" if node == "MmBackward0" else "aten::anything", start + 2, 5, thread=ENGINE)
        trace.kernel(kernel, kernel_start, length, launched=start + 3, thread=ENGINE)
    trace.span(OPTIMIZER, 160, 20, "user_annotation")
    trace.span("aten::_fused_adamw_", 162, 10)
    trace.kernel("void multi_tensor_apply_kernel<FusedAdam>", 880, 70, launched=165)
    return trace


def test_a_kernel_of_a_compiled_region_says_itself_that_it_is_attention() -> None:
    trace = Trace(100)
    trace.span("Torch-Compiled Region: 0/0", 0, 20, "user_annotation")
    trace.kernel("triton_tem_fused_flex_attention_0", 10, 40, launched=5)
    trace.kernel("triton_poi_fused_mul_silu_1", 50, 30, launched=15)
    assert trace.terms() == {"attention": 40, "elementwise": 30, "launch": 30}


def test_every_kernel_goes_to_the_term_of_what_launched_it() -> None:
    assert _whole_step().terms() == {
        "gemm": 100 + 150, "attention": 60 + 110, "elementwise": 20, "launch": 250, "embedding": 20 + 20, "head": 50 + 100,
        "loss": 20 + 20, "grad_accumulation": 10, "optimizer": 70,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "degree"),
    [
        ({**TENSOR}, "tp"),
        ({"pp": 2}, "pp"),
        ({"cp": 2, "zero": 3}, "cp"),
        ({"dp": 2, "zero": 3, "ep": 2, "moe_dispatcher": "alltoall"}, "ep"),
        # DDP's reductions are not marked, and their group is that of the keys as well.
        ({"cp": 2, "zero": 0}, None),
        ({"dp": 2, "zero": 3}, None),
        ({**TENSOR, "dp": 2, "zero": 3}, None),
    ],
)
def test_a_degree_holds_all_ranks_or_none_does(strategy: dict[str, Any], degree: str | None) -> None:
    model = MIXTURE if "ep" in strategy else DENSE
    training = {"seq_length": 32, "global_batch_size": 8}
    row = {"model": model, "training": training, "strategy": {"micro_batch_size": 1, **strategy}}
    assert trial_plan(row).spans_all == degree


@pytest.mark.parametrize(
    ("spans_all", "expected"),
    [
        ("tp", {"tp_comm": 40, "dp_comm": 30}),
        ("cp", {"cp_comm": 40, "dp_comm": 30}),
        ("ep", {"ep_comm": 40, "dp_comm": 30}),
        (None, {"dp_comm": 40 + 30}),
    ],
)
def test_the_group_of_all_ranks_is_that_of_the_degree_that_holds_them(
    spans_all: str | None, expected: dict[str, float]
) -> None:
    """On two GPUs a mesh gives tensor parallelism the first group of all. A gather of 40 µs, and FSDP's own of 30, in that group."""
    trace = Trace(100)
    told = {"Process_Group_Description": "default_pg", "Group_size": 2, "Collective_name": "_allgather_base"}
    kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    trace.kernel(kernel, 0, 40, launched=1, stream=20, **told)
    trace.span("FSDP::all_gather (layers.0)", 3, 4, "user_annotation")
    trace.kernel(kernel, 40, 30, launched=4, stream=21, **told)
    assert trace.terms(spans_all=spans_all) == {**expected, "launch": 30}


def test_a_collective_counts_where_nothing_computes_beside_it() -> None:
    """Products 0..100 and 150..250; a tensor-parallel gather 80..160 shows from 100 to 150, a reduction of gradients 200..300 from 250
    to 300, and FSDP's copy 300..310, which waits for nothing else, for 10."""
    trace = Trace(400)
    trace.span("aten::mm", 0, 10, Sequence_number=1)
    trace.kernel(GEMM, 0, 100, launched=1)
    trace.kernel(GEMM, 150, 100, launched=2)
    gather = {"Process_Group_Description": "mesh_tp", "Group_size": 2, "Collective_name": "_allgather_base"}
    trace.kernel(
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 80, 80, launched=20, stream=20, **gather
    )
    # An older profiler tells the group with the host's operation alone.
    trace.span("record_param_comms", 30, 5, Process_Group_Description="mesh_shard", Group_size=2)
    trace.kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 200, 100, launched=31, stream=21)
    trace.span("FSDP::all_gather_copy_out", 40, 5, "user_annotation")
    trace.span("fsdp::split_with_sizes_copy", 41, 3)
    trace.kernel("void at::native::split_with_sizes_copy_out", 300, 10, launched=42)
    assert trace.terms() == {"gemm": 200, "tp_comm": 50, "dp_comm": 50 + 10, "launch": 90}


def test_waiting_for_another_stage_is_the_bubble() -> None:
    """Two receives of one size take 100 and 30 µs: the first waited for 70. The barrier at the end waits for the other stage, too."""
    trace = Trace(300)
    transfer = {
        "Process_Group_Description": "mesh_pp", "Group_size": 2, "Collective_name": "recv", "In_msg_nelems": 4096, "Out_msg_nelems": 4096,
    }  # fmt: skip
    trace.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 0, 100, launched=1, stream=20, **transfer)
    trace.span("aten::mm", 10, 10, Sequence_number=1)
    trace.kernel(GEMM, 100, 50, launched=11)
    trace.kernel(
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 150, 30, launched=30, stream=20, **transfer
    )
    trace.kernel(GEMM, 180, 50, launched=12)
    trace.span(SETTLE, 250, 50, "user_annotation")
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 260, 40, launched=251, stream=22, Group_size=2)
    assert trace.terms(pipeline=True) == {"gemm": 100, "pp_comm": 30 + 30, "pp_bubble": 70 + 40, "launch": 30}
    # Without a pipeline it is the slowest rank that the others wait for.
    assert trace.terms()["jitter"] == 40


def test_transfers_of_stages_that_name_no_group_are_theirs() -> None:
    """PyTorch sends and receives in one call (batch_isend_irecv), whose kernel says neither group nor size; clipping then waits for the other stage."""
    trace = Trace(300)
    trace.span("nccl:coalesced", 0, 5, "user_annotation")
    trace.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 0, 100, launched=1, stream=20)
    trace.span("aten::mm", 10, 10, Sequence_number=1)
    trace.kernel(GEMM, 100, 50, launched=11)
    trace.span("nccl:coalesced", 20, 5, "user_annotation")
    trace.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 150, 30, launched=21, stream=20)
    trace.span(OPTIMIZER, 160, 20, "user_annotation")
    trace.span("c10d::allreduce_", 165, 10)
    told = {"Process_Group_Description": "mesh_pp", "Group_size": 2, "Collective_name": "allreduce", "In_msg_nelems": 1}
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 180, 40, launched=166, stream=22, **told)
    assert trace.terms(pipeline=True) == {"gemm": 50, "pp_comm": 30 + 30, "pp_bubble": 70 + 40, "launch": 80}


def test_a_forward_that_runs_again_on_the_way_back_is_recomputation() -> None:
    trace = Trace(100)
    trace.span("aten::mm", 0, 5, Sequence_number=1)
    trace.kernel(GEMM, 10, 20, launched=1)
    trace.span("autograd::engine::evaluate_function: MmBackward0", 40, 40, thread=ENGINE, Sequence_number=1)
    trace.span("MmBackward0", 41, 38, thread=ENGINE, Sequence_number=1)
    # Checkpointing runs the layer again inside of the node that first needs a saved tensor; its operations make nodes of their own.
    trace.span("aten::linear", 42, 8, thread=ENGINE, Sequence_number=90)
    trace.span("aten::mm", 43, 5, thread=ENGINE, Sequence_number=90)
    trace.kernel(GEMM, 50, 20, launched=44, thread=ENGINE)
    trace.span("aten::mm", 60, 8, thread=ENGINE)
    trace.kernel(GEMM, 70, 30, launched=61, thread=ENGINE)
    assert trace.terms() == {"gemm": 20 + 30, "recompute": 20, "launch": 10 + 20}


def test_what_lies_outside_of_the_step_does_not_count() -> None:
    trace = Trace(100)
    trace.kernel(GEMM, -50, 70, launched=-60)
    trace.kernel(GEMM, 90, 70, launched=80)
    assert trace.terms() == {"gemm": 20 + 10, "launch": 70}


def test_what_computes_at_once_shares_the_time() -> None:
    works = [Work("gemm", 0, 60), Work("elementwise", 40, 100), Work("dp_comm", 0, 120, Precedence.COMMUNICATION)]
    found = {name: round(value * 1e6, 6) for name, value in shares(works, start=0, end=200).items()}
    assert found == {"gemm": 40 + 10, "elementwise": 10 + 40, "dp_comm": 20, "launch": 80}


def test_on_processors_operations_are_what_runs() -> None:
    """DTensor's gather waits 20..50 while a thread of its transport works 10..60; a send 60..70; the copies of FSDP 70..80."""
    trace = Trace(100)
    trace.span("aten::mm", 0, 10, Sequence_number=1)
    trace.span("_c10d_functional::wait_tensor", 20, 30)
    trace.span("gloo:all_gather", 10, 50, "user_annotation", thread=99)
    trace.span("gloo:send", 60, 10, "user_annotation", thread=98)
    trace.span("FSDP::all_gather_copy_out", 70, 10, "user_annotation")
    trace.span(SETTLE, 90, 10, "user_annotation")
    assert trace.terms(pipeline=True) == {
        "gemm": 10, "dp_comm": 10 + 10 + 10, "tp_comm": 30, "pp_comm": 10, "launch": 10, "pp_bubble": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("step_time_s", "expected"),
    [
        (1.0, {"gemm": 0.6, "dp_comm": 0.2, "launch": 0.2}),
        (0.8, {"gemm": 0.6, "dp_comm": 0.2}),
        (0.4, {"gemm": 0.3, "dp_comm": 0.1}),
    ],
)
def test_the_time_that_tracing_takes_is_the_hosts(step_time_s: float, expected: dict[str, float]) -> None:
    found = of_step({"gemm": 0.6, "dp_comm": 0.2, "launch": 0.7}, step_time_s=step_time_s)
    assert found == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(step_time_s)
