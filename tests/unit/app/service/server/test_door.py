"""Who may stay connected: counted by client, told once a minute, and never more than the process has files for."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from app.service.metrics import Metrics
from app.service.server.door import Door, door_of
from app.service.server.figures import ConnectionFigures
from app.settings import Settings


@dataclass(eq=False)
class Visit:
    """A connection that notes whether it had to go."""

    address: str
    has_gone: bool = False

    def make_room(self) -> None:
        self.has_gone = True


def test_what_goes_wrong_is_logged_once_a_minute_with_its_count() -> None:
    now = [1000.0]
    door = Door(most=10, most_per_client=10, clock=lambda: now[0])
    with capture_logs() as log:
        for _ in range(500):
            door.note("slow-head")
        now[0] += 59.0
        door.note("slow-head")
        assert [line["slow_head"] for line in log] == [1]
        now[0] += 1.0
        door.note("slow-body")
    assert [(line.get("slow_head"), line.get("slow_body")) for line in log] == [(1, None), (500, 1)]
    assert door.ended == {"slow-head": 501, "slow-body": 1}


@pytest.mark.parametrize(
    ("addresses", "are_one"),
    [
        (("10.0.0.1", "10.0.0.1"), True),
        (("10.0.0.1", "10.0.0.2"), False),
        (("2001:db8::1", "2001:db8::ffff:1"), True),  # one /64
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("::ffff:10.0.0.1", "10.0.0.1"), True),
        (("fe80::1%eth0", "fe80::2%eth0"), True),
        (("", ""), True),
    ],
)
def test_a_client_is_an_address_or_a_network_of_ipv6(addresses: tuple[str, str], are_one: bool) -> None:
    door = Door(most=10, most_per_client=1)
    first, second = (Visit(address) for address in addresses)
    assert door.enter(first)
    assert door.enter(second)
    assert first.has_gone == are_one


def test_who_is_being_answered_never_goes_and_who_left_counts_no_more() -> None:
    door = Door(most=2, most_per_client=2)
    busy, waiting, new, last = (Visit(address) for address in ("a", "b", "c", "d"))
    assert door.enter(busy)
    door.works(busy)
    assert door.enter(waiting)
    assert door.enter(new)
    assert (busy.has_gone, waiting.has_gone) == (False, True)
    door.leave(waiting)
    door.works(new)
    assert door.connections == 2
    assert not door.enter(last), "there is nobody whose place it could take"
    assert not any(each.has_gone for each in (busy, new, last))
    door.leave(busy)
    door.leave(last)
    assert door.enter(Visit("e"))
    assert not new.has_gone


@pytest.fixture
def files_256() -> Iterator[None]:
    """A process that may have 256 files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("files_256")
def test_connections_take_at_most_half_of_the_files_that_a_process_may_open() -> None:
    door = door_of(Settings(max_connections=200, max_connections_per_client=150))
    assert (door.most, door.most_per_client) == (128, 128)
    assert door_of(Settings(max_connections=100)).most == 100


def test_prometheus_sees_how_many_are_open_and_why_others_were_ended() -> None:
    door = Door(most=2, most_per_client=2)
    metrics = Metrics(jobs=dict, workers=lambda: 0)
    metrics.watch(ConnectionFigures(door))
    for address in ("a", "b", "c"):
        door.enter(Visit(address))
    door.note("slow-head")
    door.note("slow-head")
    lines = metrics.text().decode().splitlines()
    assert "meshwright_connections 3.0" in lines
    assert 'meshwright_connections_ended_total{reason="too-many"} 1.0' in lines
    assert 'meshwright_connections_ended_total{reason="slow-head"} 2.0' in lines
