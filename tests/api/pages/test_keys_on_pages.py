"""Keys on pages: a cookie that opens the tenant's pages, is worth nothing to the API, and cannot be used by a foreign page."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from app.service.db.keys import create_key, revoke_key

PAGES = ("/", "/plans", "/plans/plan-example", "/plans/plan-example/ranked/1", "/calibrations", "/calibrations/x")
POSTS = ("/plans", "/web/check", "/plans/plan-example/cancel", "/key", "/key/forget")


def sign_in(client: TestClient, key: str, own: dict[str, str], **more: str) -> None:
    client.cookies.clear()
    answer = client.post("/key", data={"key": key, **more}, headers=own)
    assert answer.status_code == 303


@pytest.mark.parametrize("path", PAGES)
def test_a_page_asks_for_a_key(public: TestClient, key_of: dict[str, str], browser: dict[str, str], path: str) -> None:
    answer = public.get(path, headers=browser)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert 'action="/key"' in answer.text
    assert f'name="next" value="{path}"' in answer.text


def test_a_key_opens_the_pages_of_its_tenant_alone(
    public: TestClient, key_of: dict[str, str], own: dict[str, str], form: dict[str, str]
) -> None:
    sign_in(public, key_of["alice"], own)
    assert "alice" in public.get("/key", headers=own).text
    mine = public.post("/plans", data=form, headers=own).headers["location"]
    assert public.get(mine, headers=own).status_code == 200
    assert mine in public.get("/plans", headers=own).text
    sign_in(public, key_of["bob"], own)
    for path in (mine, f"{mine}/progress", f"{mine}/ranked/1", f"{mine}/response.json", f"{mine}/finished"):
        assert public.get(path, headers=own).status_code == 404, path
    assert public.post(f"{mine}/cancel", headers=own).status_code == 404
    assert mine not in public.get("/plans", headers=own).text
    assert public.get(f"/?from={mine.rpartition('/')[2]}", headers=own).status_code == 404
    theirs = public.post("/plans", data=form, headers=own).headers["location"]
    assert theirs != mine


def test_the_cookie_is_out_of_reach_and_ends_with_the_browser(
    public: TestClient, key_of: dict[str, str], own: dict[str, str]
) -> None:
    told = public.post("/key", data={"key": key_of["alice"]}, headers=own).headers["set-cookie"].lower()
    assert "httponly" in told
    assert "samesite=lax" in told, "a link in a chat opens the page"
    assert "secure" not in told, "the browser would drop it on plain HTTP"
    assert "max-age" not in told
    assert "expires" not in told
    public.cookies.clear()
    https = {**own, "Origin": "https://testserver"}
    told = public.post("https://testserver/key", data={"key": key_of["alice"]}, headers=https).headers["set-cookie"]
    assert "secure" in told.lower()


@pytest.mark.parametrize("key", ["mw_wrong", "", "ключ", "x" * 5000, "a;b", "mw_\r\nSet-Cookie: x=1"])
def test_a_wrong_key_is_told_so(public: TestClient, key_of: dict[str, str], own: dict[str, str], key: str) -> None:
    answer = public.post("/key", data={"key": key}, headers=own)
    assert answer.status_code in (401, 413)
    assert "set-cookie" not in answer.headers
    if answer.status_code == 401:
        assert ("This key is not valid" if key else "No key was entered") in answer.text


def test_signing_out_takes_the_key_away(public: TestClient, key_of: dict[str, str], own: dict[str, str]) -> None:
    sign_in(public, key_of["alice"], own)
    assert public.post("/key/forget", headers=own).status_code == 303
    assert public.get("/plans", headers=own).status_code == 401


def test_a_revoked_key_opens_no_page(public: TestClient, key_of: dict[str, str], own: dict[str, str]) -> None:
    engine = public.app.state.service.engine  # type: ignore[attr-defined]
    key, secret = create_key(engine, tenant="carol", name="test")
    sign_in(public, secret, own)
    assert public.get("/plans", headers=own).status_code == 200
    revoke_key(engine, key.id)
    answer = public.get("/plans", headers=own)
    assert answer.status_code == 401
    assert "no longer valid" in answer.text
    assert "no longer valid" in public.get("/key", headers=own).text


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/plans"), ("POST", "/v1/plans"), ("DELETE", "/v1/plans/plan-example"), ("POST", "/v1/calibrations"),
     ("GET", "/v1/plans/plan-example/events"), ("POST", "/v1/evaluate"), ("GET", "/v1/plans/plan-example/exports/megatron")],
)  # fmt: skip
def test_the_api_accepts_no_cookie(
    public: TestClient, key_of: dict[str, str], own: dict[str, str], method: str, path: str
) -> None:
    sign_in(public, key_of["alice"], own)
    assert public.request(method, path, headers=own, json={} if method == "POST" else None).status_code == 401


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "sender",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://testserver.evil.example"},
        {"Origin": "http://testserver:81"},
        {"Origin": "http://[broken"},
        {},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_a_foreign_page_changes_nothing(
    public: TestClient,
    key_of: dict[str, str],
    own: dict[str, str],
    form: dict[str, str],
    sender: dict[str, str],
    path: str,
) -> None:
    sign_in(public, key_of["alice"], own)
    answer = public.post(path, data={**form, "key": key_of["bob"]}, headers={"Accept": "text/html", **sender})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_foreign_page_changes_nothing_where_no_key_is_needed(client: TestClient, form: dict[str, str]) -> None:
    assert client.post("/plans", data=form, headers={"Origin": "https://evil.example"}).status_code == 403


def test_a_page_of_the_service_is_known_behind_a_proxy(
    public: TestClient, own: dict[str, str], key_of: dict[str, str]
) -> None:
    """Over TLS browsers say it themselves, whatever the proxy makes of the host."""
    headers = {**own, "Origin": "https://plans.example", "Sec-Fetch-Site": "same-origin"}
    assert public.post("/key", data={"key": key_of["alice"]}, headers=headers).status_code == 303


def test_a_keyless_service_shows_no_page_under_a_public_name(client: TestClient, browser: dict[str, str]) -> None:
    answer = client.get("http://evil.example/plans", headers=browser)
    assert answer.status_code == 403
    posted = client.post("http://evil.example/web/check", data={}, headers={**browser, "Origin": "http://evil.example"})
    assert posted.status_code == 403


@pytest.mark.parametrize(
    ("after", "reached"),
    [("/plans", "/plans"), ("/?from=x", "/?from=x"), ("//evil.example", "/"), ("/\\evil.example", "/"),
     ("https://evil.example", "/"), ("", "/"), ("/a\r\nb", "/")],
)  # fmt: skip
def test_a_key_leads_on_to_pages_of_the_service_alone(
    public: TestClient, key_of: dict[str, str], own: dict[str, str], after: str, reached: str
) -> None:
    answer = public.post("/key", data={"key": key_of["alice"], "next": after}, headers=own)
    assert answer.headers["location"] == reached
