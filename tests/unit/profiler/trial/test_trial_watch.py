"""A trial's processes are followed, and ended with all that they have started, whatever they do and whoever dies first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.trial.processes import MARK, PARENT, Processes, marked
from profiler.trial.watch import Ending, Heard, Limits, Watch, available_bytes

GUARD = [sys.executable, "-m", "profiler.trial.guard"]
DETACHED = "setsid sleep 600 & setsid sh -c 'setsid sleep 600 & sleep 600' & "
"""Leaves processes in sessions of their own, one of them an orphan's child, as torchrun leaves its workers."""


def _hear(line: str) -> Heard | None:
    word, _, value = line.partition(" ")
    return Heard(step_s=float(value)) if word == "step" else Heard(phase="build") if word == "build" else None


def _watched(
    script: str, folder: Path, *, goes_on: Callable[[int, float], bool] | None = None, warm_up: int = 1, **limits: float
) -> tuple[Ending, str | None, Watch]:
    """A shell script run as a trial of one warm-up step and two that count."""
    processes = Processes()
    output = folder / "output.txt"
    processes.start(["sh", "-c", script], environment=os.environ, output=output)
    watch = Watch(
        processes,
        [output],
        limits=Limits(**{"deadline_s": 30.0, **limits}),
        warm_up=warm_up,
        steps=2,
        hear=_hear,
        goes_on=goes_on,
    )
    try:
        ending, reason = watch.until_it_ends()
    finally:
        assert processes.end() == ()
    assert marked(processes.mark) == ()
    return ending, reason, watch


@pytest.mark.parametrize(
    ("script", "limits", "said"),
    [
        ("sleep 60", {"start_s": 0.2}, "nothing came for 0.2 s in the phase start after 0 steps"),
        ("echo build; sleep 60", {"build_s": 0.2}, "nothing came for 0.2 s in the phase build after 0 steps"),
        ("echo step 1; sleep 60", {"step_s": 0.2}, "nothing came for 0.2 s in the phase step after 1 steps"),
        (
            "echo step 1; echo step 1; echo step 1; sleep 60", {"finish_s": 0.2},
            "nothing came for 0.2 s in the phase finish after 3 steps",
        ),
        (DETACHED + "echo step 1; wait", {"step_s": 0.4}, "nothing came for 0.4 s in the phase step after 1 steps"),
        ("sleep 60", {"deadline_s": 0.2}, "it had not ended after its 0.2 s, in the phase start after 0 steps"),
    ],
)  # fmt: skip
def test_a_phase_that_lasts_too_long_ends_the_trial(
    script: str, limits: dict[str, float], said: str, tmp_path: Path
) -> None:
    assert _watched(script, tmp_path, **limits)[:2] == ("hang", said)


def test_the_warm_up_shares_one_limit(tmp_path: Path) -> None:
    """Three steps of 0.3 s in a warm-up of four: each is far from the limit of 0.5 s, all are not."""
    steps = "echo step 0.3; sleep 0.3; " * 3
    ending, reason, _ = _watched(f"{steps} sleep 60", tmp_path, warm_up=4, warm_up_s=0.5, step_s=60.0)
    assert ending == "hang"
    assert str(reason).startswith("nothing came for 0.5 s in the phase warm-up after ")


def test_what_a_trial_wrote_is_heard_to_the_last_line(tmp_path: Path) -> None:
    """Even what ends without a line feed, and what a progress bar overwrites."""
    script = "printf 'step 1.5\\r10 %%\\rstep 0.5\\nstep 0.25\\nValueError: bad'; exit 1"
    ending, reason, watch = _watched(script, tmp_path)
    assert (ending, reason) == ("ended", None)
    assert watch.step_s == [1.5, 0.5, 0.25]
    assert watch.errors.first == "ValueError: bad"


def test_a_trial_may_be_ended_after_a_step(tmp_path: Path) -> None:
    asked: list[tuple[int, float]] = []

    def goes_on(number: int, took_s: float) -> bool:
        asked.append((number, took_s))
        return number < 1

    ending, reason, watch = _watched("echo step 3; echo step 2; sleep 60", tmp_path, goes_on=goes_on)
    assert (ending, reason, watch.ended_early) == ("ended", None, True)
    assert asked == [(0, 3.0), (1, 2.0)]


def test_too_much_host_memory_ends_the_trial(tmp_path: Path) -> None:
    """A limit of 32 MiB, and a program that fills 200 MB."""
    script = f"{sys.executable} -c 'import time; held = bytearray(b\"x\" * 200_000_000); time.sleep(60)'"
    ending, reason, _ = _watched(script, tmp_path, host_bytes=2.0**25)
    assert ending == "host-memory"
    assert str(reason).endswith("GiB of host memory, more than their limit of 0.0 GiB")


def test_what_is_available_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       64 kB\nMemAvailable:    3 kB\n")
    assert available_bytes(meminfo) == 3072.0
    assert available_bytes(tmp_path / "none") == float("inf")


@pytest.mark.parametrize("killed", ["launcher", "guard", "script"])
def test_nothing_is_left_whoever_is_killed(killed: str, tmp_path: Path) -> None:
    """A launcher starts the guard, which starts a script, which leaves three processes in sessions of their own."""
    launcher = (
        "import os, sys\nfrom pathlib import Path\nfrom profiler.trial.processes import Processes\n"
        "trial = Processes()\n"
        f"trial.start({GUARD!r} + ['sh', '-c', sys.argv[1]], environment=os.environ, output=Path(sys.argv[2]))\n"
        "print(trial.mark, flush=True)\ninput()\ntrial.end()\n"
    )
    output = tmp_path / "output.txt"
    script = f"{DETACHED} echo script $$; wait"
    with subprocess.Popen(
        [sys.executable, "-c", launcher, script, str(output)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        mark = process.stdout.readline().strip()
        # The guard, the script, and its setsid processes: two of sleep, two of the inner shell.
        _until(lambda: "script" in output.read_text() and len(marked(mark)) >= 6)
        shell = int(output.read_text().split()[1])
        guard = int(Path(f"/proc/{shell}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill({"launcher": process.pid, "guard": guard, "script": shell}[killed], signal.SIGKILL)
        if killed == "guard":
            # Whoever killed it left the launcher, which ends what is left when it is done.
            process.communicate("\n")
        _until(lambda: marked(mark) == ())
        process.kill()


def test_a_process_that_lost_its_parent_before_it_could_ask_ends_itself() -> None:
    program = "from profiler.trial.processes import die_with_parent\ndie_with_parent()\nprint('lives')"
    environment = {**os.environ, PARENT: "1", MARK: "x"}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (-signal.SIGKILL, "")


def _until(is_so: Callable[[], bool]) -> None:
    end_at = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < end_at
        time.sleep(0.02)
