"""How often one key may ask."""

from __future__ import annotations

import pytest

from app.errors import TooManyRequestsError
from app.service.rates import Rates


def test_each_key_has_its_own_count_and_uploads_one_beside_requests() -> None:
    rates = Rates(requests="3/hour", uploads="1/hour")
    for _ in range(3):
        rates.count_request("a")
    with pytest.raises(TooManyRequestsError) as refused:
        rates.count_request("a")
    told = refused.value.context
    assert (told["quota"], told["limit"], told["used"]) == ("requests", 3, 3)
    assert 1 <= told["retry_after_s"] <= 7200
    assert "3 requests in an hour" in refused.value.message
    rates.count_request("b")
    rates.count_upload("a")
    with pytest.raises(TooManyRequestsError, match="1 uploads in an hour"):
        rates.count_upload("a")


def test_without_a_limit_nothing_is_counted() -> None:
    rates = Rates(requests=None, uploads=None)
    for _ in range(1000):
        rates.count_request("a")
        rates.count_upload("a")
