"""The first error of a trial is told, whichever rank wrote it and whatever it brought about."""

from __future__ import annotations

import pytest

from profiler.trial.reasons import Errors, of_codes

# As PyTorch 2.11, torchrun, DeepSpeed 0.19 and NCCL 2.28 write them; addresses and paths are shortened.
OUT_OF_MEMORY = """\
step 1: 1.2 s
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 80, in <module>
[rank1]:     main()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.80 GiB
"""
ELASTIC = """\
W1129 10:00:01.000 1 torch/distributed/elastic/multiprocessing/api.py:966] Sending process 71 closing signal SIGTERM
E1129 10:00:01.200 1 torch/distributed/elastic/multiprocessing/api.py:940] failed (exitcode: 1) local_rank: 0 (pid: 70) of binary: python
Traceback (most recent call last):
  File "/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""
PEER = """\
[rank0]: Traceback (most recent call last):
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error
"""
LAUNCHED = """\
[default0]:Traceback (most recent call last):
[default0]:  File "train.py", line 3, in <module>
[default0]:    import deepspeed
[default0]:ModuleNotFoundError: No module named 'deepspeed'
"""
CHAINED = """\
Traceback (most recent call last):
KeyError: 'fsdp_version'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
ValueError: fsdp_version is missing
"""
ON_THE_NEXT_LINE = """\
Traceback (most recent call last):
huggingface_hub.errors.StrictDataclassFieldValidationError:
    Validation error for field 'hidden_size': expected int
"""
COLOURED = "\x1b[31mRuntimeError: CUDA error: an illegal memory access was encountered\x1b[0m\nCUDA kernel errors might be reported later\n"
CUDA_IN_NCCL = "torch.distributed.DistBackendError: NCCL error in: x.cpp:5, unhandled cuda error. Last error:\nCuda failure 2 'out of memory'\n"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (LAUNCHED, "ModuleNotFoundError: No module named 'deepspeed'"),
        (LAUNCHED + ELASTIC, "ModuleNotFoundError: No module named 'deepspeed'"),
        (ELASTIC + LAUNCHED, "ModuleNotFoundError: No module named 'deepspeed'"),
        (PEER + "RuntimeError: shape '[2]' is invalid\n", "RuntimeError: shape '[2]' is invalid"),
        (CHAINED, "KeyError: 'fsdp_version'"),
        (
            ON_THE_NEXT_LINE,
            "huggingface_hub.errors.StrictDataclassFieldValidationError: Validation error for field 'hidden_size': expected int",
        ),
        (COLOURED, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("mock.sh: line 9: torchrun: command not found\n", "mock.sh: line 9: torchrun: command not found"),
        ("train.py: error: unrecognized arguments: --warmup 3\n", "train.py: error: unrecognized arguments: --warmup 3"),
        ("The plan is for 2 ranks, but 1 were started.\n", "The plan is for 2 ranks, but 1 were started."),
        ("step 1: 0.5 s\nFutureWarning: this API will go\n", None),
        ("wandb: ERROR is not what this line says\n", None),
    ],
)  # fmt: skip
def test_the_cause_is_told_before_what_it_brought_about(text: str, first: str | None) -> None:
    errors = Errors()
    errors.hear(text.splitlines())
    assert errors.first == first
    assert errors.out_of_memory is None


@pytest.mark.parametrize("text", [OUT_OF_MEMORY, PEER + OUT_OF_MEMORY + ELASTIC, CUDA_IN_NCCL])
def test_device_memory_that_does_not_suffice_is_told_apart(text: str) -> None:
    errors = Errors()
    errors.hear(text.splitlines())
    assert errors.out_of_memory is not None
    assert "out of memory" in errors.out_of_memory
    assert "remote process" not in errors.out_of_memory


def test_where_there_is_nothing_but_a_consequence_it_is_told() -> None:
    errors = Errors()
    errors.hear(PEER.splitlines())
    assert str(errors.first).startswith("torch.distributed.DistBackendError: NCCL error")


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([0, 0], None),
        ([-9, 3], "it ended with code 3 and said nothing"),
        ([0, -11], "a process was ended by SIGSEGV"),
        ([-9], "a process was ended by SIGKILL, as the kernel does where host memory runs out"),
    ],
)
def test_exit_codes_say_what_nobody_wrote(codes: list[int | None], said: str | None) -> None:
    assert of_codes(codes) == said
