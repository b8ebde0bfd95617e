"""What a visitor has filled into a form: the fields of a body that a browser encodes, read with a bound on memory and number."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from app.errors import MediaTypeError
from app.service.api.dependencies import Here
from app.service.api.strict_json import read_body
from app.service.web.visitors import Visitor

_MOST_FIELDS = 200
_URLENCODED = "application/x-www-form-urlencoded"


# It asks for the visitor although it needs none, so that nothing of a body is read for somebody without a key.
async def filled_form(request: Request, service: Here, _visitor: Visitor) -> dict[str, str]:
    """The fields by name; where a name occurs twice, its last value.

    Raises:
        MediaTypeError, BodyTooLargeError: the body is not that of a form, or larger than the service accepts.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Files are read by the page's script into a field of text, so that no form needs the encoding that carries files.
    if media_type != _URLENCODED:
        raise MediaTypeError(
            f"the body is {media_type or 'of no media type'}, not a form", hint="Send the form of the page."
        )
    raw = await read_body(request, max_bytes=service.settings.max_body_bytes)
    return await run_in_threadpool(_fields, raw)


def _fields(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise MediaTypeError("the form has more fields than it can have", hint="Send the form of the page.") from error
    # Browsers send line breaks as CR LF, whatever was pasted. U+0000 cannot be stored, and no field means it.
    return {name: text.replace("\r\n", "\n").replace("\0", "\ufffd") for name, text in pairs}


FilledForm = Annotated[dict[str, str], Depends(filled_form)]
