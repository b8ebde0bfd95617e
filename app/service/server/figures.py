"""Figures of the server's connections, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.service.server.door import Door


class ConnectionFigures(Collector):
    """How many connections are open, and how many the server has ended, by reason."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def collect(self) -> Iterable[Metric]:
        """The figures as of now."""
        yield GaugeMetricFamily("meshwright_connections", "Open connections.", value=self._door.connections)
        ended = CounterMetricFamily(
            "meshwright_connections_ended", "Connections that the server ended, or could not take.", labels=["reason"]
        )
        # A copy, because this runs in a thread beside the event loop.
        for reason, count in self._door.ended.copy().items():
            ended.add_metric([reason], count)
        yield ended
