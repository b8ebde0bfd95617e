"""Launch files over HTTP: as JSON and as an archive, and what is refused."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest
from fastapi.testclient import TestClient


@pytest.fixture
def planned(client: TestClient, asked: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = client.post("/v1/plans", json=asked).json()
    return document


def test_launch_files_of_the_second_plan(client: TestClient, planned: dict[str, Any]) -> None:
    response = client.get(f"/v1/plans/{planned['id']}/exports/megatron", params={"plan": 2})
    assert response.status_code == 200, response.text
    files = {file["path"]: file["content"] for file in response.json()["files"]}
    assert {"launch.sh", "mock.sh", "job.sbatch", "plan.json"} <= files.keys()
    strategy = planned["plans"][1]["strategy"]
    assert f"--tensor-model-parallel-size {strategy['tp']} " in files["launch.sh"].replace("\\\n", " ")


def test_an_archive_holds_the_same_files_and_scripts_can_be_run(client: TestClient, planned: dict[str, Any]) -> None:
    url = f"/v1/plans/{planned['id']}/exports/megatron"
    files = {file["path"]: file["content"] for file in client.get(url).json()["files"]}
    refused = client.get(url, headers={"Accept": "application/zip;q=0, */*"})
    assert refused.headers["content-type"] == "application/json"
    response = client.get(url, headers={"Accept": "Application/ZIP"})
    assert response.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files
        assert archive.getinfo("launch.sh").external_attr >> 16 == 0o755


@pytest.mark.parametrize(
    ("target", "params", "code", "words"),
    [
        ("megatrn", {}, "invalid-input", "megatron"),
        ("megatron", {"plan": 99}, "invalid-input", "no plan 99"),
        ("megatron", {"version": "9.9"}, "invalid-input", "9.9"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    client: TestClient, planned: dict[str, Any], target: str, params: dict[str, Any], code: str, words: str
) -> None:
    response = client.get(f"/v1/plans/{planned['id']}/exports/{target}", params=params)
    assert (response.status_code, response.json()["code"]) == (422, code)
    assert words in response.text


def test_a_plan_of_nobody_is_not_found(client: TestClient) -> None:
    assert client.get("/v1/plans/plan-nobody/exports/megatron").status_code == 404
