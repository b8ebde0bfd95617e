"""Which run-time knobs a plan has, how they are spelled, and their tuning from the command line and from Python."""

from __future__ import annotations

import copy
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import meshwright
from app.cli.main import run
from app.errors import NotFoundError, WrongStateError
from app.knobs.tuning import KnobTuning
from cost_models.errors import InvalidInputError, NotExpressibleError
from cost_models.inputs.fields import LARGEST, SMALLEST
from planner.knobs import default_values, knobs_of, spelled

BUCKETS = ("zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size")


def strategy(**given: Any) -> dict[str, Any]:
    plain = {
        "dp": 64, "cp": 2, "zero": 1, "overlap": {"grad_reduce": True}, "offload": {"optimizer_fraction": 0.0},
    }  # fmt: skip
    return plain | given


def test_megatron_has_buckets_where_reduction_overlaps() -> None:
    """A million parameters a replica, 40 million at least; ten times that to either side."""
    knob = knobs_of("megatron", strategy())["--ddp-bucket-size"]
    assert default_values("megatron", strategy()) == {"--ddp-bucket-size": 128_000_000}
    assert (knob.low, knob.high, knob.is_log) == (12_800_000, 1_280_000_000, True)
    assert default_values("megatron", strategy(dp=8, cp=1)) == {"--ddp-bucket-size": 40_000_000}
    with pytest.raises(NotExpressibleError, match="no knob"):
        knobs_of("megatron", strategy(overlap={"grad_reduce": False}))


def test_a_plan_that_offloads_has_its_share() -> None:
    offloading = strategy(zero=3, offload={"optimizer_fraction": 0.5})
    assert set(knobs_of("megatron", offloading)) == {"--optimizer-offload-fraction"}
    assert default_values("deepspeed", offloading)["zero_optimization.offload_optimizer.ratio"] == 0.5
    assert "zero_optimization.offload_optimizer.ratio" not in knobs_of("deepspeed", offloading | {"zero": 2})


def test_deepspeed_has_other_knobs_by_stage() -> None:
    assert tuple(knobs_of("deepspeed", strategy(zero=2))) == BUCKETS
    assert set(knobs_of("deepspeed", strategy(zero=3))) == {
        BUCKETS[0],
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_max_live_parameters",
    }


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp"])
def test_what_has_no_knob_says_so(framework: str) -> None:
    with pytest.raises(NotExpressibleError, match=framework) as caught:
        knobs_of(framework, strategy(zero=3))
    assert "none in its configuration" in caught.value.hint


def test_defaults_lie_in_their_ranges() -> None:
    for framework in ("megatron", "deepspeed", "megatron-deepspeed", "nanotron"):
        for zero in (0, 1, 2, 3):
            plan = strategy(zero=zero, offload={"optimizer_fraction": 1.0})
            try:
                knobs = knobs_of(framework, plan)
            except NotExpressibleError:
                continue
            for name, value in default_values(framework, plan).items():
                assert knobs[name].low <= value <= knobs[name].high, name


def test_arguments_and_keys_are_spelled_as_the_framework_reads_them() -> None:
    assert spelled({"--ddp-bucket-size": 5}) == {"arguments": ["--ddp-bucket-size", "5"]}
    nested = {"zero_optimization": {"reduce_bucket_size": 5, "offload_optimizer": {"ratio": 0.5}}}
    assert spelled({BUCKETS[0]: 5, "zero_optimization.offload_optimizer.ratio": 0.5}) == {"config": nested}


@pytest.fixture(scope="module")
def response() -> dict[str, Any]:
    return meshwright.plan(
        {
            "model": {"preset": "llama-3.1-8b"},
            "cluster": {"preset": "dgx-h100", "num_nodes": 1},
            "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "deepspeed"},
            "top_k": 2,
        }
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'knobs.db'}"


def test_a_tuning_goes_on_in_another_process(response: dict[str, Any], url: str) -> None:
    tuning = meshwright.start_knobs(response, storage=url, name="ours")
    first = tuning.ask()
    defaults = {name: knob["default"] for name, knob in tuning.knobs.items()}
    assert first["values"] == defaults
    later = meshwright.resume_knobs(url)
    assert later.name == "ours"
    later.tell(first["trial"], 2.0)
    second, third = later.ask(), later.ask()
    later.tell(second["trial"], 1.5)
    later.tell(third["trial"], None)
    best = meshwright.resume_knobs(url, name="ours").best()
    assert best["best"] == {**second, "step_time_s": 1.5}
    assert best["gain_fraction"] == pytest.approx(0.25)  # 1 - 1.5 / 2.0
    assert (best["told"], best["failed"], best["open"]) == (2, 1, 0)
    assert best["predicted_step_time_s"] == response["plans"][0]["evaluation"]["step_time_s"]


def test_no_connection_stays_open_between_two_questions(response: dict[str, Any], url: str) -> None:
    """The write lock of SQLite is free at any time, and a process that ends leaves nothing that Python warns of."""
    tuning = KnobTuning.start(response, storage=url)
    tuning.tell(tuning.ask()["trial"], 1.0)
    own = [Path(descriptor).resolve() for descriptor in Path("/proc/self/fd").iterdir()]
    assert Path(url.partition(":///")[2]).resolve() not in own


def test_in_memory_a_tuning_lasts_as_long_as_it_is_held(response: dict[str, Any]) -> None:
    tuning = KnobTuning.start(response, storage="sqlite://")
    tuning.tell(tuning.ask()["trial"], 1.0)
    assert tuning.best()["told"] == 1


def test_without_the_defaults_there_is_no_gain(response: dict[str, Any], url: str) -> None:
    tuning = meshwright.start_knobs(response, storage=url)
    assert tuning.best()["best"] is None
    tuning.ask()
    tuning.tell(tuning.ask()["trial"], 1.5)
    assert tuning.best()["gain_fraction"] is None


def test_what_is_wrong_is_named(response: dict[str, Any], url: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        meshwright.resume_knobs(url)
    assert not (tmp_path / "knobs.db").exists()
    with pytest.raises(InvalidInputError, match="the response has 2 plans, and none of them has rank 7"):
        meshwright.start_knobs(response, storage=url, plan=7)
    with pytest.raises(InvalidInputError, match="not a plan response"):
        meshwright.start_knobs({"plans": []}, storage=url)
    with pytest.raises(InvalidInputError, match="cannot be used"):
        meshwright.start_knobs(response, storage="knobs.db")
    tuning = meshwright.start_knobs(response, storage=url, name="a")
    with pytest.raises(WrongStateError, match="already"):
        meshwright.start_knobs(response, storage=url, name="a")
    meshwright.start_knobs(response, storage=url, name="b")
    with pytest.raises(InvalidInputError, match="several tunings: a, b"):
        meshwright.resume_knobs(url)
    with pytest.raises(NotFoundError, match="no tuning named c"):
        meshwright.resume_knobs(url, name="c")
    with pytest.raises(WrongStateError, match="trial 5 of a is not open"):
        tuning.tell(5, 1.0)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="is not between"):
            tuning.tell(0, seconds)


@pytest.mark.parametrize(
    ("path", "value", "pointer"),
    [
        (("plans", 0, "strategy"), None, "/plans/0/strategy"),
        (("plans", 0, "strategy", "zero"), "1", "/plans/0/strategy/zero"),
        (("plans", 0, "strategy", "dp"), -4, "/plans/0/strategy/dp"),
        (("plans", 0, "strategy", "offload"), None, "/plans/0/strategy/offload"),
        (("plans", 0, "strategy", "offload", "optimizer_fraction"), 5, "/plans/0/strategy/offload/optimizer_fraction"),
        (("plans", 0, "evaluation"), {}, "/plans/0/evaluation/step_time_s"),
        (("request", "training", "framework"), [], "/request/training/framework"),
        (("request_digest",), None, "/request_digest"),
    ],
)
def test_a_damaged_response_is_named_and_nothing_is_stored(
    response: dict[str, Any], url: str, tmp_path: Path, path: tuple[Any, ...], value: Any, pointer: str
) -> None:
    damaged = copy.deepcopy(response)
    *parents, last = path
    part: Any = damaged
    for name in parents:
        part = part[name]
    part[last] = value
    with pytest.raises(InvalidInputError) as caught:
        meshwright.start_knobs(damaged, storage=url)
    assert caught.value.problems[0].pointer == pointer
    assert not (tmp_path / "knobs.db").exists()


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "\0", "x" * 301])
def test_a_name_can_be_read_and_stored(response: dict[str, Any], url: str, name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        meshwright.start_knobs(response, storage=url, name=name)
    assert caught.value.problems[0].pointer == "/name"


@pytest.mark.parametrize("url", ["postgresql+psycopg://host:port/x", "sqlite:///file.db?timeout=soon", "sqlite:////"])
def test_a_url_that_cannot_be_used_is_bad_input(
    response: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.db").touch()
    for call in (lambda: meshwright.start_knobs(response, storage=url), lambda: meshwright.resume_knobs(url)):
        with pytest.raises(InvalidInputError) as caught:
            call()
        assert caught.value.problems[0].pointer == "/storage"


def test_a_file_of_something_else_is_left_as_it_is(response: dict[str, Any], url: str, tmp_path: Path) -> None:
    file = tmp_path / "knobs.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute("create table mine (x)")
        other.commit()
    before = file.read_bytes()
    for call in (lambda: meshwright.start_knobs(response, storage=url), lambda: meshwright.resume_knobs(url)):
        with pytest.raises(WrongStateError, match=r"belongs to something else"):
            call()
    assert file.read_bytes() == before
    file.write_bytes(b"")
    with pytest.raises(NotFoundError, match="holds no tuning"):
        meshwright.resume_knobs(url)
    assert file.read_bytes() == b""


def test_tables_of_another_optuna_and_studies_of_others_are_named(response: dict[str, Any], url: str) -> None:
    optuna = pytest.importorskip("optuna")
    alien = optuna.create_study(study_name="alien", storage=url)
    for knobs in (
        None,
        [1],
        {"a": {"low": None, "high": None, "choices": None}},
        {"a": {"colour": 1, "choices": None}},
    ):
        if knobs is not None:
            alien.set_user_attr("knobs", knobs)
            alien.set_user_attr("seed", 1)
        with pytest.raises(WrongStateError, match="did not start"):
            meshwright.resume_knobs(url)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute("update alembic_version set version_num = 'v99'")
        file.execute("update version_info set schema_version = 99")
        file.commit()
    with pytest.raises(WrongStateError, match="another version of Optuna"):
        meshwright.resume_knobs(url)


def test_times_and_trials_that_cannot_be_are_refused(response: dict[str, Any], url: str) -> None:
    tuning = meshwright.start_knobs(response, storage=url)
    tuning.ask()
    for seconds in (1e-300, 1e300):
        with pytest.raises(InvalidInputError, match="is not between"):
            tuning.tell(0, seconds)
    for trial in (-1, 2**31, 10**30):
        with pytest.raises(WrongStateError, match="is not open"):
            tuning.tell(trial, 1.0)
    assert tuning.best()["open"] == 1


def test_a_long_response_is_read_and_memory_is_no_storage(
    response: dict[str, Any], url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "response.json"
    file.write_text(json.dumps({**response, "warnings": ["x" * (2 << 20)]}))
    assert run(["knobs", "start", str(file), "--storage", "sqlite://"]) == 2
    assert "/storage" in capsys.readouterr().err
    assert run(["knobs", "start", str(file), "--storage", url]) == 0
    assert run(["knobs", "ask", "--storage", url]) == 0
    assert run(["knobs", "tell", "0", "2.5", "--storage", url]) == 0
    capsys.readouterr()
    assert run(["knobs", "best", "--storage", url]) == 0
    assert "No trial so far is faster than the framework's defaults" in capsys.readouterr().out


def test_a_password_is_never_shown(response: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        meshwright.start_knobs(response, storage="nosuch://user:secret@host/name")
    assert "secret" not in str(caught.value)
    assert "nosuch://host/name" in str(caught.value)


def test_the_commands(response: dict[str, Any], url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "response.json"
    file.write_text(json.dumps(response))

    def of(*arguments: str) -> tuple[int, str, str]:
        code = run(["knobs", *arguments, "--storage", url])
        return code, *capsys.readouterr()

    code, out, _ = of("start", str(file), "--plan", "1")
    assert code == 0
    described = "gradients reduced at a time (parameters), 50,000,000 to 1,000,000,000, default 500,000,000"
    assert f"zero_optimization.reduce_bucket_size: {described}" in out
    code, out, _ = of("ask")
    assert out.startswith("trial 0\n")
    assert json.loads(out.partition("\n")[2])["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    assert json.loads(of("ask", "--json")[1])["trial"] == 1
    assert of("tell", "0", "2.5")[0] == 0
    assert of("tell", "1", "--failed")[0] == 0
    code, _, err = of("tell", "0")
    assert (code, "--failed" in err) == (2, True)
    code, out, err = of("best")
    assert "2.5 s a step" in out
    assert "No trial so far is faster than the framework's defaults" in out
    assert "1 told, 1 failed, 0 open" in err
    assert json.loads(of("best", "--json")[1])["best"]["trial"] == 0
    assert of("tell", "0", "2.5")[0] == 2


def test_without_a_rank_or_a_seed_it_is_the_first_plan_and_seed_0(
    response: dict[str, Any], url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal seeds propose equal values behind the defaults."""
    file = tmp_path / "response.json"
    file.write_text(json.dumps(response))
    assert run(["knobs", "start", str(file), "--storage", url]) == 0
    assert capsys.readouterr().out.startswith(f"tuning {response['request_digest'][:12]}-1\n")
    assert run(["knobs", "ask", "--storage", url]) == 0
    assert '\n  "zero_optimization": {\n    "' in capsys.readouterr().out

    def second(tuning: KnobTuning) -> Any:
        tuning.ask()
        return tuning.ask()["values"]

    proposed = KnobTuning.resume(url).ask()["values"]
    unsaid = KnobTuning.start(response, storage=f"sqlite:///{tmp_path / 'unsaid'}.db")
    assert unsaid.name.endswith("-1")
    assert second(unsaid) == proposed
    assert second(KnobTuning.start(response, storage=url, name="said", seed=0)) == proposed
    assert second(KnobTuning.start(response, storage=url, name="other", seed=1)) != proposed
    for options in (["--plan", "0"], ["--seed", "-1"]):
        assert run(["knobs", "start", str(file), "--storage", url, *options]) == 2


def test_a_gain_over_the_defaults_is_told(
    response: dict[str, Any], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.5 s are 25 % less than 2.0 s."""
    tuning = meshwright.start_knobs(response, storage=url)
    for step_time_s in (2.0, 1.5):
        tuning.tell(tuning.ask()["trial"], step_time_s)
    assert run(["knobs", "best", "--storage", url]) == 0
    said = capsys.readouterr().out
    assert "1.5 s a step; the plan predicted" in said
    assert "That is 25.00 % less than with the framework's defaults (2 s)." in said


def test_the_smallest_and_the_largest_time_are_told(response: dict[str, Any], url: str) -> None:
    tuning = meshwright.start_knobs(response, storage=url)
    for step_time_s in (LARGEST, SMALLEST):
        tuning.tell(tuning.ask()["trial"], step_time_s)
    assert (tuning.best()["told"], tuning.best()["best"]["step_time_s"]) == (2, SMALLEST)
