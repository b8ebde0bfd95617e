"""Logs: one JSON object per line on standard error, with the id of the request where there is one.

Only the loggers of the service and of uvicorn are configured, so that an application around this one keeps its own.
"""

from __future__ import annotations

import logging
import sys

import structlog

OWN_LOGGERS = ("meshwright", "uvicorn")


def configure_logs(level: str) -> None:
    """Sends what the service and uvicorn log at this level or above to standard error."""
    # Both kinds of record, structlog's own and those that uvicorn makes with the standard library, pass through these, so that
    # every line has the same fields.
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    render: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.JSONRenderer(),
    ]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render))
    for name in OWN_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # The middleware already logs each request once, with its id and its duration; uvicorn's line has neither.
    logging.getLogger("uvicorn.access").disabled = True
