"""The stylesheet and the scripts of the pages: written into a file that needs no network, or linked where a service shows it."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from markupsafe import Markup

STYLE = "report.css"
EVERYWHERE = ("sort.js",)
"""Scripts of every page; a section names what it needs besides."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What `base.html` needs around the content: texts for a file, or paths for a served page."""

    inline_styles: tuple[Markup, ...] = ()
    inline_scripts: tuple[Markup, ...] = ()
    policy: str = ""
    """The Content-Security-Policy of a file; a service sends its own as a header."""
    linked_styles: tuple[str, ...] = ()
    first_scripts: tuple[str, ...] = ()
    """Paths of scripts that run in this order before the page is parsed, as libraries with extensions must."""
    linked_scripts: tuple[str, ...] = ()


@cache
def asset(name: str) -> str:
    """The text of an asset by its name, such as "report.css"."""
    return (files("app.report") / "assets" / name).read_text("utf-8")


def frame_of_file(scripts: Iterable[str], *, wanted: bool = True) -> Frame:
    """The frame of a page that holds everything; without the scripts where they are not wanted."""
    styles = (Markup(in_few_bytes(asset(STYLE))),)  # noqa: S704 - our own file
    texts = tuple(_inline(name) for name in _once(scripts)) if wanted else ()
    # Only these very texts may run or style the page, and nothing may be fetched: what a response names cannot change that.
    allowed = _hashes(texts) or "'none'"
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hashes(styles)}; script-src {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )
    return Frame(inline_styles=styles, inline_scripts=texts, policy=policy)


def frame_of_page(scripts: Iterable[str], *, assets: str = "/assets") -> Frame:
    """The frame of a served page, whose assets lie under the given path."""
    return Frame(
        linked_styles=(f"{assets}/{STYLE}",),
        linked_scripts=tuple(f"{assets}/{name}" for name in _once(scripts)),
    )


def in_few_bytes(style: str) -> str:
    """A stylesheet without comments and without the spaces at the beginning of lines."""
    return re.sub(r"\n\s*", "\n", re.sub(r"/\*.*?\*/\s*", "", style, flags=re.DOTALL))


def _once(scripts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*EVERYWHERE, *scripts]))


def _inline(name: str) -> Markup:
    text = asset(name)
    # The browser ends the element at the first closing tag, wherever it stands.
    assert "</script" not in text.lower()
    assert "</style" not in text.lower()
    return Markup(text)  # noqa: S704 - our own file


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)
