"""What a long-lived process writes about itself: lines of text, or of JSON with run and tenant beside the words."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(enc_hook=str)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document: dict[str, Any] = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts: dict[str, Any] = getattr(record, "facts", {})
        document |= {name: value for name, value in facts.items() if value is not None}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return _encoder.encode(document).decode()


def set_up_logs(*, in_json: bool, access: bool) -> None:
    """Everything goes to standard error: standard output belongs to whoever started us."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonLines() if in_json else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("runwright").setLevel(logging.INFO)
    logging.getLogger("runwright.access").setLevel(logging.INFO if access else logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
