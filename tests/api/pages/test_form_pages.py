"""The form: it shows what a request resolves to, refuses what the API refuses, and loses nothing."""

from __future__ import annotations

import html
import json
import re
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient


def problems(text: str) -> dict[str, list[str]]:
    """The problems of a page, by the pointer of the field that shows them."""
    found: dict[str, list[str]] = {}
    for pointer, inside in re.findall(
        r'<div class="problem"[^>]*data-pointer="([^"]*)"[^>]*>(.*?)</div>', text, re.DOTALL
    ):
        told = [html.unescape(each) for each in re.findall(r"<p[^>]*>(.*?)</p>", inside, re.DOTALL)]
        if told:
            found[pointer] = told
    return found


def resolved(text: str) -> str:
    inside = re.search(r'<output id="resolved".*?</output>', text, re.DOTALL)
    assert inside
    return " ".join(re.sub(r"<[^>]+>", "", inside[0]).split())


def finished(client: TestClient, path: str, headers: dict[str, str]) -> str:
    end_at = time.monotonic() + 60.0
    while "Searching for the best plan" in (text := client.get(path, headers=headers).text):
        assert time.monotonic() < end_at
        time.sleep(0.1)
    return text


def test_the_form_can_be_sent_as_it_is_opened(client: TestClient, browser: dict[str, str]) -> None:
    """2 nodes of 8 GPUs; 512 sequences of 8,192 tokens are 4,194,304; Llama 3.1 8B has 8.03B parameters (its card)."""
    page = client.get("/", headers=browser)
    assert page.status_code == 200
    assert problems(page.text) == {}
    assert resolved(page.text) == "8.03B parameters 16 GPUs 4,194,304 tokens per step"


def test_every_field_has_a_label_a_sentence_and_a_place_for_its_problem(
    client: TestClient, browser: dict[str, str]
) -> None:
    text = client.get("/", headers=browser).text
    controls = re.findall(r'<(?:input|select|textarea) [^>]*?\bid="([^"]+)"[^>]*', text)
    fields = [name for name in controls if name != "model-file"]
    assert len(fields) > 30
    for name in fields:
        assert f'for="{name}"' in text
        assert f'aria-describedby="{name}-help {name}-problem"' in text
        assert re.search(rf'id="{name}-help">\s*\w[^<]*\.', text), name
        assert text.count(f'id="{name}-problem"') == 1


def test_a_sent_form_ends_in_the_report(client: TestClient, form: dict[str, str], own: dict[str, str]) -> None:
    sent = client.post("/plans", data=form, headers=own, follow_redirects=False)
    assert sent.status_code == 303
    assert "llama-3.1-8b on 8 GPUs" in finished(client, sent.headers["location"], own)


def test_the_form_and_the_api_ask_for_the_same_plan(
    client: TestClient, form: dict[str, str], own: dict[str, str], asked: dict[str, Any]
) -> None:
    """`form` says in fields what `asked` says in JSON: the digests are equal, hence the ids."""
    posted = client.post("/v1/plans", json=asked).json()
    sent = client.post("/plans", data=form, headers=own, follow_redirects=False)
    assert sent.headers["location"] == f"/plans/{posted['id']}"


@pytest.mark.parametrize(
    ("changed", "pointer", "told"),
    [
        ({"training.seq_length": "128kk"}, "/training/seq_length", "seq_length is '128kk'; it must be a whole number."),
        ({"training.seq_length": ""}, "/training/seq_length", "seq_length is required."),
        ({"cluster.num_nodes": "-3"}, "/cluster/num_nodes", "num_nodes is -3; it must be at least 1."),
        ({"cluster.num_nodes": "0"}, "/cluster/num_nodes", "num_nodes is 0; it must be at least 1."),
        ({"cluster.gpu": "H100"}, "/cluster/gpu", "'H100' is not a GPU preset."),
        ({"model.preset": "lama-3.1-8b"}, "/model/preset", "'lama-3.1-8b' is not a model preset."),
        ({"training.precision": "nvfp4"}, "/training/precision", "precision is 'nvfp4', which H100-SXM-80GB does not have."),
        ({"model.by": "document", "model.document": '{"model_type": "t5"}'}, "/model/document", "t5"),
        ({"model.by": "document", "model.document": "{"}, "/model/document", "this is not JSON"),
        ({"model.by": "document", "model.document": ""}, "/model/document", "nothing is written here."),
        ({"training.document": '{"seq_len": 1}'}, "/training/document", "'seq_len' is not a known field."),
        ({"constraints.document": '{"fixed": {"tp": "x"}}'}, "/constraints/document", "tp is 'x'"),
        ({"targets.deadline_h": "24"}, "/targets/deadline_h", "total_tokens"),
        ({"training.adapter.target_modules": "all-linear"}, "/training/adapter/rank", "rank is required"),
        ({"cluster.calibration": "nobodys"}, "/cluster/calibration", "nobodys"),
    ],
)  # fmt: skip
def test_a_refused_form_names_the_field_and_keeps_every_value(
    client: TestClient, form: dict[str, str], own: dict[str, str], changed: dict[str, str], pointer: str, told: str
) -> None:
    filled = {**form, **changed}
    page = client.post("/plans", data=filled, headers=own)
    assert page.status_code == 422
    found = problems(page.text)
    assert any(told in each for each in found.get(pointer, [])), found
    assert 'aria-invalid="true"' in page.text
    for name, value in filled.items():
        shown = html.escape(value)
        kept = [
            rf'name="{re.escape(name)}" value="{re.escape(shown)}"',
            rf'name="{re.escape(name)}" value="{re.escape(shown)}" checked',
            rf'<select id="[^"]*" name="{re.escape(name)}".*?<option value="{re.escape(shown)}" selected',
            rf'<textarea id="[^"]*" name="{re.escape(name)}"[^>]*>\n{re.escape(html.escape(value, quote=False))}</textarea>',
        ]
        text = html.unescape(page.text) if "textarea" in value else page.text.replace("&#34;", '"')
        assert any(re.search(each.replace("&quot;", '"'), text, re.DOTALL) for each in kept), (name, value)
    # The same words as those with which the API refuses it, and what is shown while one types.
    checked = client.post("/web/check", data=filled, headers=own)
    assert checked.status_code == 200
    assert problems(checked.text) == found


def test_what_can_be_said_is_said_while_another_part_is_wrong(
    client: TestClient, form: dict[str, str], own: dict[str, str]
) -> None:
    form |= {"cluster.num_nodes": "many", "training.global_batch_size": "few"}
    checked = client.post("/web/check", data=form, headers=own).text
    assert set(problems(checked)) == {"/cluster/num_nodes", "/training/global_batch_size"}
    assert resolved(checked) == "8.03B parameters 2 fields need a change"


def test_experts_are_counted_in_all_and_active(client: TestClient, form: dict[str, str], own: dict[str, str]) -> None:
    """Mixtral 8x7B: 46.7B parameters of which 12.9B are active (Mistral's announcement)."""
    checked = client.post("/web/check", data={**form, "model.preset": "mixtral-8x7b"}, headers=own).text
    assert resolved(checked).startswith("46.7B parameters 12.9B active for one token 8 GPUs")


def test_a_pasted_config_is_read_as_hugging_face_writes_it(
    client: TestClient, form: dict[str, str], own: dict[str, str]
) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 1000,
        "intermediate_size": 128, "num_key_value_heads": 4, "tie_word_embeddings": True,
    }  # fmt: skip
    form |= {"model.by": "document", "model.document": json.dumps(config, indent=2).replace("\n", "\r\n")}
    checked = client.post("/web/check", data=form, headers=own).text
    # 2 layers of 4·64² + 3·64·128 weights and two norms, the embedding, the last norm: 146,240.
    assert problems(checked) == {}
    assert resolved(checked).startswith("0.15M parameters")


def test_again_fills_the_form_with_the_request(client: TestClient, form: dict[str, str], own: dict[str, str]) -> None:
    form |= {"constraints.document": '{"fixed": {"tp": 2}}', "include.pareto": "true", "time_limit_s": "30"}
    sent = client.post("/plans", data=form, headers=own, follow_redirects=False)
    plan_id = sent.headers["location"].rpartition("/")[2]
    again = client.get(f"/?from={plan_id}", headers=own)
    assert again.status_code == 200
    assert problems(again.text) == {}
    for shown in (
        'name="training.seq_length" value="4096"',
        'name="include.pareto" value="true" checked',
        'value="gpu" checked',
    ):
        assert shown in again.text
    assert client.get("/?from=nothing", headers=own).status_code == 404


def test_the_pages_are_no_part_of_the_api_document(client: TestClient) -> None:
    assert not [
        path
        for path in client.get("/openapi.json").json()["paths"]
        if not path.startswith(("/v1", "/healthz", "/readyz", "/metrics"))
    ]


@pytest.mark.parametrize("address", ["/web/check", "/plans"])
def test_numbers_of_thousands_of_digits_are_refused_at_their_field(
    client: TestClient, form: dict[str, str], own: dict[str, str], address: str
) -> None:
    # Each can be read, and their product has no text.
    digits = "9" * 3990
    given = form | {"training.seq_length": "", "training.global_batch_size": ""}
    given["training.document"] = f'{{"seq_length": {digits}, "global_batch_size": {digits}}}'
    answer = client.post(address, data=given, headers=own)
    assert answer.status_code == (200 if address == "/web/check" else 422)
    assert "it must be at most 1000000000000000" in html.unescape(answer.text)
