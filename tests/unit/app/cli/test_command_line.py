"""The command line as a program: documents it reads, options over files, exit codes, what goes to which stream."""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import meshwright
from app.cli.commands.evaluate import arriving_lines
from app.cli.commands.plan import merged_request, stop_on_interrupt, with_spare_plans
from app.cli.inputs import assignments, parse_json, read_cluster, read_model
from app.cli.main import run
from cost_models.errors import InvalidInputError
from cost_models.inputs.model import resolve_model

ROOT = Path(__file__).resolve().parents[4]
REQUESTS = ROOT / "examples" / "requests"
SMALL = [
    *("plan", "--model", "llama-3.1-8b", "--gpu", "H100-SXM-80GB", "--num-nodes", "1", "--gpus-per-node", "8"),
    *("--seq-length", "4096", "--global-batch-size", "32", "--framework", "megatron", "--precision", "bf16"),
]


@pytest.fixture
def outcome(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def of(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return of


def write(folder: Path, name: str, document: Any) -> str:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_version(outcome: Any) -> None:
    assert outcome("--version") == (0, f"meshwright {meshwright.__version__}\n", "")


def test_help_lists_the_commands(outcome: Any) -> None:
    code, out, _ = outcome("--help")
    assert code == 0
    assert all(name in out for name in ("plan", "evaluate", "serve", "db", "keys", "--install-completion"))


def test_plan_prints_a_table_on_stdout(outcome: Any) -> None:
    code, out, _ = outcome(*SMALL, "--top", "3")
    assert code == 0
    assert "8b" in out.splitlines()[0]
    _, table = re.split(r"─ *\n", out, maxsplit=1)  # the rows stand between the rule and the sentences below
    ranks = [int(row.split()[0]) for row in takewhile(str.strip, table.splitlines())]
    assert len(ranks) == 3  # of different plans: near-copies are folded, so ranks may be left out
    assert ranks[0] == 1
    assert ranks == sorted(set(ranks))


def test_plan_json_is_the_whole_response(outcome: Any) -> None:
    """Only JSON on stdout, with the stages; --top limits the plans."""
    code, out, err = outcome("--quiet", *SMALL, "--top", "2", "--json")
    response = json.loads(out)
    assert (code, err) == (0, "")
    assert [plan["rank"] for plan in response["plans"]] == [1, 2]
    assert response["plans"][0]["evaluation"]["memory"]["stages"]


def test_fixed_and_allowed_reach_the_search(outcome: Any) -> None:
    code, out, _ = outcome(*SMALL, "--fixed", "tp=2", "--allowed", "zero=[1]", "--json")
    strategies = [plan["strategy"] for plan in json.loads(out)["plans"]]
    assert code == 0
    assert {(s["tp"], s["zero"]) for s in strategies} == {(2, 1)}


def test_options_lie_over_the_request_file(outcome: Any, tmp_path: Path) -> None:
    request = {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 4, "gpus_per_node": 8},
        "training": {"seq_length": 4096, "global_batch_size": 32, "precision": "bf16", "framework": "megatron"},
        "top_k": 5,
    }
    path = write(tmp_path, "request.json", request)
    code, out, _ = outcome("plan", path, "--num-nodes", "1", "--top", "1", "--json")
    response = json.loads(out)
    assert code == 0
    assert response["request"]["cluster"]["num_nodes"] == 1
    assert len(response["plans"]) == 1


def test_numbers_as_people_write_them_reach_the_request(outcome: Any) -> None:
    """4 x 1024 tokens a sequence; 128k tokens a step are 32 such sequences; trained tokens and rates count in thousands."""
    asked = [*SMALL[:9], "--seq-length", "4k", "--global-batch-tokens", "128k", *SMALL[13:], "--top", "1", "--json"]
    limits = ("--total-tokens", "2B", "--deadline-h", "30d", "--target-min-tokens-per-s", "1k", "--time-limit", "5m")
    code, out, err = outcome(*asked, *limits, "--include", "pareto,what-if", "--include", "pareto")
    request = json.loads(out)["request"]
    assert (code, err) == (0, "")
    assert [request["training"][name] for name in ("seq_length", "global_batch_size", "total_tokens")] == [
        4096, 32, 2e9,
    ]  # fmt: skip
    assert request["targets"] == {"deadline_h": 720.0, "min_tokens_per_s": 1000.0}
    assert (request["time_limit_s"], request["include"]) == (300.0, ["pareto", "what_if"])


@pytest.mark.parametrize("named", ["path", "-"])
def test_the_header_names_the_file_and_whether_options_changed_it(
    outcome: Any, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    path = REQUESTS / "llama-3.1-70b.json"
    for options, end in (([], ""), (["--global-batch-size", "256"], " and options")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        first = outcome("plan", str(path) if named == "path" else "-", "--top", "1", *options)[1].splitlines()[0]
        assert first.rstrip().endswith(f"(from {path if named == 'path' else 'standard input'}{end})")
    assert outcome(*SMALL, "--top", "1")[1].splitlines()[0].rstrip().endswith("(from options)")


def test_help_of_plan_says_what_is_required_and_every_default(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = outcome("plan", "--help")
    required = out.partition("Job (required, here or in the request file)")[2].partition("Job (optional)")[0]
    assert code == 0
    for option in ("--model", "--cluster", "--seq-length", "--global-batch-size", "--framework", "--precision"):
        assert f"{option} " in required
    assert "Examples:" in out
    assert "[default: (10)]" in out
    assert "[default: (step_time)]" in out


def test_what_an_option_would_give_is_named_where_it_is_missing(outcome: Any, tmp_path: Path) -> None:
    arguments = ["--model", "llama-3.1-8b", "--gpu", "H100-SXM-80GB", "--precision", "bf16"]
    code, _, err = outcome("plan", *arguments)
    assert (code, err.count("error:")) == (2, 2)
    assert "error: --num-nodes: num_nodes is required\n  Give it, such as --num-nodes 4.\n" in err
    code, _, err = outcome("plan", *arguments, "--num-nodes", "1", "--gpus-per-node", "8")
    assert (code, err.count("error:")) == (2, 3)
    assert "error: --framework: framework is required\n  Give it, such as --framework megatron.\n" in err
    assert "Give it, such as --global-batch-size 512 or --global-batch-tokens 4M.\n" in err
    request = write(tmp_path, "request.json", {"cluster": {"preset": "dgx-h100"}, "training": {"seq_length": 8}})
    _, _, err = outcome("plan", request, "--model", "llama-3.1-8b")
    assert "error: /training/precision: precision is required" in err
    assert "Give it, such as --precision bf16, or write it into the request file.\n" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--top", "1001"], "error: --top: top_k is 1001; it must be at most 1000"),
        (["--include", "pareto,paretto"], "error: --include: include[1] is 'paretto'"),
        (["--objective", "speed"], "error: --objective: objective is 'speed'"),
        (["--fixed", "tp=x"], "error: --fixed tp: tp is 'x'; it must be a whole number"),
        (["--fixed", "overlap.p2p=3"], "error: --fixed overlap: "),
        (["--allowed", "pp=8"], "error: --allowed pp: pp is 8; it must be a list\n  Write it like --allowed 'pp=[1,2]'."),
        (["--training", "optimizer=adamm"], "error: --training optimizer: optimizer is 'adamm'"),
        (["--deadline-h", "30d"], "\n  Give the tokens, such as --total-tokens 15T."),
        (["--objective", "fewest_gpus"], "\n  Give one, such as --target-min-tokens-per-s 1M, or --deadline-h 30d with"),
        (["--gpus-per-node", "x"], "error: --gpus-per-node is 'x', which is not a number\n  Write it like 8."),
        (["--top", "0"], "error: --top is '0'; it must be a whole number of at least 1\n  Write it like 10.\n"),
        (["--global-batch-tokens", "4M"], "error: --global-batch-tokens: global_batch_tokens 4194304 is 1024 sequences"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_told_by_its_name(outcome: Any, arguments: list[str], told: str) -> None:
    code, out, err = outcome(*SMALL, *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_what_is_wrong_in_the_file_keeps_its_pointer(outcome: Any, tmp_path: Path) -> None:
    request = json.loads((REQUESTS / "llama-3.1-70b.json").read_text()) | {"top_k": 0}
    _, _, err = outcome("plan", write(tmp_path, "request.json", request), "--objective", "speed")
    assert "error: /top_k: top_k is 0" in err
    assert "error: --objective: objective is 'speed'" in err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pre", {"presets"}),
        ("plan --model llama-3.2", {"llama-3.2-1b", "llama-3.2-3b"}),
        ("plan --framework m", {"megatron", "megatron-deepspeed"}),
        ("plan --include p", {"pareto"}),
        ("presets gpus H100", {"H100-SXM-80GB", "H100-PCIe-80GB"}),
        ("presets things H100", set()),
    ],
)
def test_the_shell_is_offered_names(
    outcome: Any, monkeypatch: pytest.MonkeyPatch, typed: str, offered: set[str]
) -> None:
    """What the script of `--show-completion bash` asks of the program, in variables."""
    monkeypatch.setenv("_MESHWRIGHT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"meshwright {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    code, out, err = outcome()
    assert (code, err) == (0, "")
    assert set(out.split()) == offered


def test_no_feasible_plan_is_answered_and_ends_with_3(outcome: Any) -> None:
    code, out, _ = outcome("plan", str(REQUESTS / "too-small.json"), "--json")
    response = json.loads(out)
    assert code == 3
    assert response["plans"] == []
    assert sum(response["rejected"].values()) > 0
    assert outcome("plan", str(REQUESTS / "too-small.json"))[0] == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan"], "/model"),
        (["plan", "no-such-file.json"], "no-such-file.json"),
        ([*SMALL, "--num-nodes", "0"], "--num-nodes is '0'"),
        ([*SMALL, "--num-nodes", "many"], "num-nodes"),
        ([*SMALL, "--model", "lama-3.1-8b"], "llama-3.1-8b"),
        ([*SMALL, "--gpu", "H100"], "H100-SXM-80GB"),
        ([*SMALL, "--framework", "megatrom"], "megatron"),
        ([*SMALL, "--fixed", "tpp=2"], "tp"),
        ([*SMALL, "--fixed", "tp"], "key=value"),
        ([*SMALL, "--training", "sequence_length=2"], "seq_length"),
        (["plan", "--modle", "x"], "--model"),
        (["evaluate", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["keys", "list", "--db", "nonsense"], "database URL"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else None,
)
def test_bad_input_ends_with_2_and_a_message(outcome: Any, arguments: list[str], told: str) -> None:
    """The message names what is wrong, or the nearest thing that exists; stdout stays empty."""
    code, out, err = outcome(*arguments)
    assert (code, out) == (2, "")
    assert "is a field of the strategy" not in err
    assert told in err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1, column 2"),
        ("[]", "array"),
        ('{"model": NaN}', "NaN"),
        ('{"model": Infinity}', "Infinity"),
        ('{"model": 1e999}', "1e999"),
        ('{"model": {}, "model": {}}', "twice"),
        ("[" * 100_000, "nested"),
        (" " * (1 << 20) + "{}", "1 MiB"),
        ("\udcff{}", "JSON"),
    ],
    ids=["cut", "array", "nan", "infinity", "overflow", "twice", "deep", "large", "not-utf8"],
)
def test_a_request_that_is_not_strict_json_is_refused(outcome: Any, tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "request.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    code, out, err = outcome("plan", str(path))
    assert (code, out) == (2, "")
    assert told in err


def test_unreachable_service_ends_with_4(outcome: Any) -> None:
    """Port 9 (discard) of this machine is closed."""
    code, out, err = outcome(*SMALL, "--server", "http://127.0.0.1:9")
    assert (code, out) == (4, "")
    assert "127.0.0.1:9" in err


@contextmanager
def answering(status: int, document: Any, media_type: str = "application/problem+json") -> Iterator[str]:
    """Address of a service that answers everything alike."""

    class Service(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "code", "ends_with"),
    [
        (503, "unavailable", 4),
        (503, "a-code-of-a-later-release", 4),
        (422, "measurement", 5),
        (422, "search-budget", 2),
        (401, "unauthorized", 2),
        (504, "time-limit", 2),
    ],
)
def test_what_the_service_refuses_ends_with_the_code_of_its_kind(
    outcome: Any, status: int, code: str, ends_with: int
) -> None:
    """4 says that trying again later may help, 5 that this machine cannot be measured, 2 that the input is the reason."""
    refusal = {"status": status, "code": code, "detail": "for this reason", "hint": "Do that.", "errors": []}
    with answering(status, refusal) as server:
        ended, out, err = outcome(*SMALL, "--server", server)
    assert (ended, out) == (ends_with, "")
    assert code == "unauthorized" or "Do that." in err
    assert "error: for this reason" in err


@pytest.mark.parametrize(("count", "last"), [(1, "a field"), (20, "a field"), (21, "and 1 more"), (23, "and 3 more")])
def test_the_first_twenty_problems_are_shown_and_the_rest_counted(outcome: Any, count: int, last: str) -> None:
    problems = [{"pointer": f"/{number}", "message": "is wrong", "hint": "Correct a field"} for number in range(count)]
    with answering(422, {"status": 422, "code": "invalid-input", "detail": "", "errors": problems}) as server:
        code, _, err = outcome(*SMALL, "--server", server)
    assert code == 2
    assert err.count("is wrong") == min(count, 20)
    assert last in err.splitlines()[-1]
    assert err.count(" more ") == (count > 20)


def test_evaluate_answers_every_line_in_order(outcome: Any, tmp_path: Path) -> None:
    good = json.loads((REQUESTS / "evaluate.jsonl").read_text().splitlines()[0])
    lines = [
        json.dumps(good),
        "{not json",
        json.dumps(good | {"id": "last"}),
        json.dumps(good | {"strategy": {"tp": 0}}),
    ]
    code, out, err = outcome("evaluate", write(tmp_path, "rows.jsonl", "\n".join(lines) + "\n"))
    answers = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [answer["verdict"] != "invalid" for answer in answers] == [True, False, True, False]
    assert [answers[0]["id"], answers[2]["id"]] == [good["id"], "last"]


def test_evaluate_says_once_that_a_document_is_no_row_a_line(outcome: Any) -> None:
    code, out, err = outcome("evaluate", str(REQUESTS / "llama-3.1-70b.json"))
    assert (code, out) == (2, "")
    assert "one JSON document that is spread over several lines" in err
    assert "meshwright plan" in err


def test_evaluate_reads_standard_input(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are not UTF-8 spoil their own line only."""
    good = (REQUESTS / "evaluate.jsonl").read_bytes().splitlines()[0]
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"\xff\xfe\n" + good)))
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, _ = outcome("evaluate", "-")
    assert code == 0
    assert [json.loads(line)["verdict"] == "invalid" for line in out.splitlines()] == [True, False]


def test_keys_are_made_listed_and_revoked(outcome: Any, tmp_path: Path) -> None:
    db = ("--db", f"sqlite:///{tmp_path / 'service.db'}")
    assert outcome("db", "upgrade", *db)[0] == 0
    code, secret, err = outcome("keys", "create", "laptop", "--tenant", "lab", *db)
    key_id = err.split()[0]
    assert code == 0
    assert secret.strip() not in outcome("keys", "list", *db)[1]
    assert outcome("keys", "list", *db)[1].split("\t")[:3] == [key_id, "lab", "laptop"]
    assert outcome("keys", "revoke", key_id, *db)[0] == 0
    assert "revoked" in outcome("keys", "list", *db)[1]
    assert outcome("keys", "revoke", key_id, *db)[0] == 2


@pytest.mark.parametrize(
    "arguments", [["keys", "list"], ["keys", "revoke", "key-1"], ["db", "backup", "copy.db"]], ids=" ".join
)
def test_what_only_reads_the_storage_makes_none(
    outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """A misspelled path is told, and not answered with the empty list of a new file."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "folder" / "servise.db"
    code, out, err = outcome(*arguments, "--db", f"sqlite:///{file}")
    assert (code, out) == (2, "")
    assert f"there is no file {file}" in err
    assert "--db" in err
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_deletes_what_the_settings_keep_no_longer(
    outcome: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "service.db"
    db = ("--db", f"sqlite:///{file}")
    nothing = "deleted: plans 0, calibrations 0, profiling jobs 0, tunings 0, observations 0, idempotency keys 0, audit entries 0\n"
    assert outcome("db", "sweep", *db) == (0, nothing, "")
    with closing(sqlite3.connect(file)) as connection:
        row = ("lab", "old", "2020-01-01 00:00:00.000000", "H100", b"x")
        connection.execute(
            "INSERT INTO calibrations (tenant, id, created_at, gpu, document) VALUES (?, ?, ?, ?, ?)", row
        )
        connection.commit()
    assert outcome("db", "sweep", *db)[1] == nothing
    monkeypatch.setenv("MESHWRIGHT_KEEP_CALIBRATIONS_DAYS", "90")
    assert outcome("db", "sweep", *db)[1] == nothing.replace("calibrations 0", "calibrations 1")
    assert outcome("db", "sweep", *db)[1] == nothing
    with closing(sqlite3.connect(file)) as connection:
        columns = "tenant, id, status, created_at, finished_at, budget_s, attempts"
        job = ("lab", "old", "succeeded", "2020-01-01 00:00:00.000000", "2020-01-01 00:01:00.000000", 60.0, 1)
        connection.execute(f"INSERT INTO profiling_jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", job)
        connection.commit()
    assert outcome("db", "sweep", *db)[1] == nothing
    monkeypatch.setenv("MESHWRIGHT_KEEP_PROFILING_JOBS_DAYS", "90")
    assert outcome("db", "sweep", *db)[1] == nothing.replace("profiling jobs 0", "profiling jobs 1")
    monkeypatch.setenv("MESHWRIGHT_KEEP_CALIBRATIONS_DAYS", "never")
    assert outcome("db", "sweep", *db)[0] == 2


def test_the_storage_is_written_to_a_file_and_read_back(outcome: Any, tmp_path: Path) -> None:
    db, other = (("--db", f"sqlite:///{tmp_path / name}") for name in ("service.db", "other.db"))
    file = str(tmp_path / "backup.db")
    (tmp_path / "service.db").touch()
    code, _, err = outcome("db", "backup", file, *db)
    assert (code, Path(file).exists()) == (2, False)
    assert "holds nothing of meshwright's" in err
    key_id = outcome("keys", "create", "laptop", "--tenant", "lab", *db)[2].split()[0]
    code, said, _ = outcome("db", "backup", file, *db)
    assert code == 0
    assert said.startswith(f"{file}: schema ")
    assert said.endswith("; rows: audit 1, keys 1\n")
    assert outcome("db", "backup", file, *db)[0] == 2
    assert outcome("db", "backup", "--replace", *db)[0] == 2
    assert outcome("db", "restore", file, *other) == (0, said, "")
    assert outcome("keys", "list", *other)[1].split("\t")[0] == key_id
    assert "--replace" in outcome("db", "restore", file, *other)[2]
    assert outcome("db", "restore", file, "--replace", *other)[0] == 0


class TestDocuments:
    def test_a_hugging_face_config_is_recognised(self, tmp_path: Path) -> None:
        config = {"model_type": "llama", "num_hidden_layers": 2}
        path = write(tmp_path, "config.json", config)
        assert read_model(path)["hf_config"] == config
        assert read_model(str(tmp_path)) == read_model(path)

    def test_a_specification_is_taken_as_it_stands(self, tmp_path: Path) -> None:
        spec = {"name": "mine", "num_layers": 2, "hidden_size": 8}
        assert read_model(write(tmp_path, "model.json", spec)) == spec
        assert read_cluster(write(tmp_path, "cluster.json", {"preset": "dgx-h100"})) == {"preset": "dgx-h100"}

    def test_anything_else_is_a_preset(self) -> None:
        assert read_model("llama-3.1-8b") == {"preset": "llama-3.1-8b"}
        assert read_cluster("dgx-h100") == {"preset": "dgx-h100"}

    def test_assignments_are_json_or_words_and_reach_inside(self) -> None:
        pairs = ["tp=8", "recompute=full", "overlap.p2p=true", "layers_per_stage=[3,5]"]
        assert assignments(pairs, option="--fixed") == {
            "tp": 8,
            "recompute": "full",
            "overlap": {"p2p": True},
            "layers_per_stage": [3, 5],
        }

    @pytest.mark.parametrize("pair", ["tp", "=3", "tp=", "tp=1 tp.x=2"])
    def test_other_assignments_are_refused(self, pair: str) -> None:
        with pytest.raises(InvalidInputError):
            assignments(pair.split(), option="--fixed")

    def test_large_numbers_survive(self) -> None:
        assert parse_json(b'{"n": 1e300}', name="x") == {"n": 1e300}


class TestMergedRequest:
    def test_fields_are_merged_and_a_model_is_replaced(self) -> None:
        document = {"model": {"preset": "a", "num_layers": 2}, "cluster": {"preset": "c", "num_nodes": 4}}
        merged = merged_request(document, {"model": {"preset": "b"}, "cluster": {"num_nodes": 8}, "training": {}})
        assert merged == {"model": {"preset": "b"}, "cluster": {"preset": "c", "num_nodes": 8}}

    def test_a_batch_in_tokens_stands_in_for_one_in_sequences(self) -> None:
        document = {"training": {"seq_length": 8, "global_batch_size": 64}}
        for given in ({"global_batch_tokens": 16}, {"global_batch_tokens": 16, "global_batch_size": 2}):
            assert merged_request(document, {"training": given})["training"] == {"seq_length": 8, **given}

    def test_a_cluster_named_anew_replaces_the_old_one(self) -> None:
        document = {"cluster": {"gpu": "A100-SXM-80GB", "num_nodes": 4}}
        assert merged_request(document, {"cluster": {"preset": "dgx-h100"}}) == {"cluster": {"preset": "dgx-h100"}}


def test_the_first_interrupt_asks_to_stop_and_the_second_ends(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert "best plans so far" in capsys.readouterr().err


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_an_interrupted_plan_ends_with_130_and_the_best_so_far(outcome: Any, output: list[str]) -> None:
    """Ctrl-C as soon as the search listens: a shell then knows that it was interrupted, not that no plan fits."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        end_at = time.monotonic() + 60.0
        while signal.getsignal(signal.SIGINT) is before and time.monotonic() < end_at:
            time.sleep(0.001)
        if signal.getsignal(signal.SIGINT) is not before:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    large = ("--model", "llama-3.1-70b", "--num-nodes", "64", "--global-batch-size", "1024")
    code, out, err = outcome(*SMALL, *large, *output)
    thread.join()
    assert code == 130
    assert "Stopping with the best plans so far" in err
    assert json.loads(out)["status"] == "cancelled" if output else "70b" in out


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_lines_arrive_whole_however_they_are_cut(size: int) -> None:
    """A byte order mark, an empty line, a broken byte, a last line without its end."""

    class Trickle(io.BytesIO):
        def read1(self, _size: int | None = -1, /) -> bytes:
            return self.read(size)

    content = b"\xef\xbb\xbf{}\n\n\xff\n" + "é".encode() * 3
    arrived = [line for lines in arriving_lines(Trickle(content)) for line in lines]  # type: ignore[arg-type]
    assert arrived == ["{}", "", "\ufffd", "ééé"]


def test_a_name_longer_than_any_file_is_no_preset_and_is_shown_short(capsys):
    assert run(["plan", "--model", "x" * 5000, "--cluster", "dgx-h100", "--training", "seq_length=8"]) == 2
    said = capsys.readouterr().err
    assert "--model: preset is 'xxx" in said
    assert "at most 300 characters" in said
    assert len(said) < 1000


def error_of(outcome: Any, model: str) -> str:
    code, _, err = outcome(*SMALL[:1], "--model", model, *SMALL[3:])
    assert code == 2
    assert err.count("error:") == 1
    return str(err)


def test_an_id_of_a_hub_is_told_what_to_fetch(outcome: Any) -> None:
    told = error_of(outcome, "meta-llama/Llama-3.1-8B")
    assert "hf download meta-llama/Llama-3.1-8B config.json" in told
    assert "the preset 'llama-3.1-8b'" in told
    assert "No such file" in error_of(outcome, "./nowhere/config.json")


def test_an_adapters_config_is_told_apart_in_one_sentence(outcome: Any, tmp_path: Path) -> None:
    adapter = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "org/base"}
    assert "LORA adapter" in error_of(outcome, write(tmp_path, "adapter_config.json", adapter))


@pytest.mark.parametrize(
    ("path", "document", "name"),
    [
        ("my-8b.json", {"model_type": "llama"}, "my-8b"),
        ("my-8b/config.json", {"model_type": "llama"}, "my-8b"),
        ("my-8b/config.json", {"model_type": "llama", "_name_or_path": "org/their-8b"}, "org/their-8b"),
        ("models--Qwen--Qwen3-8B/snapshots/0a1b/config.json", {"model_type": "qwen3"}, "Qwen/Qwen3-8B"),
        ("spec.json", {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
                       "vocab_size": 100}, "spec"),
        ("spec.json", {"preset": "llama-3.1-8b"}, "llama-3.1-8b"),
    ],
)  # fmt: skip
def test_a_model_is_named_after_its_file(tmp_path: Path, path: str, document: dict[str, Any], name: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    assert resolve_model(read_model(write(file.parent, file.name, document))).name == name
    if file.name == "config.json" and "snapshots" not in path:
        assert resolve_model(read_model(str(file.parent))).name == name


@pytest.mark.parametrize("option", ["--tp", "--tensor-model-parallel-size"])
def test_a_strategy_field_given_as_an_option_is_told_of_fixed(outcome: Any, option: str) -> None:
    code, _, err = outcome("plan", option, "8")
    assert code == 2
    assert f"{option} is a field of the strategy: --fixed tp=VALUE" in err


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [(1, 40), (10, 40), (11, 44), (250, 1000), (251, None), (0, None), (-1, None), ("many", None), (None, None)],
)
def test_a_table_asks_for_four_times_as_many_plans_as_it_shows_and_never_for_more_than_a_thousand(
    wanted: Any, asked: int | None
) -> None:
    """Near-copies share a row; a table of fewer than ten rows asks for as many as one of ten."""
    assert with_spare_plans({"seed": 1}, wanted) == {"seed": 1} | ({} if asked is None else {"top_k": asked})


def test_ten_plans_are_shown_where_nobody_says_how_many(outcome: Any) -> None:
    code, out, _ = outcome(*SMALL)
    _, table = re.split(r"─ *\n", out, maxsplit=1)
    assert (code, len(list(takewhile(str.strip, table.splitlines())))) == (0, 10)


@pytest.mark.parametrize(
    ("port", "told"), [("0", "database URL"), ("65535", "database URL"), ("65536", "'--port'"), ("-1", "'--port'")]
)
def test_ports_go_from_0_to_65535(outcome: Any, port: str, told: str) -> None:
    """An accepted port is only used once the database is open, which it never is here."""
    code, _, err = outcome("serve", "--port", port, "--db", "nonsense")
    assert code == 2
    assert told in err
