"""Text of others made safe to show: controls and what changes the direction or hides is printed as an escape."""

from __future__ import annotations

import re

#: C0 and C1 controls but tab and newline, bidirectional controls, zero-width characters, and lone surrogates.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


#: What begins something in Markdown. An underscore within a word does not.
MARKS = re.compile(r"[\\`*|\[\]]")


def visible(text: str) -> str:
    r"""``text`` with every character of HIDDEN as ``\uXXXX`` (``\UXXXXXXXX`` beyond 16 bits); tab and newline stay.

    For what people read: terminal, Markdown, HTML (which is escaped as HTML besides). What is stored keeps the text
    itself, and a backslash is left alone, so the result cannot be turned back.
    """
    return HIDDEN.sub(lambda match: _escaped(ord(match.group())), text)


def without_html(text: str) -> str:
    """``visible(text)`` as a paragraph of Markdown in which nothing is HTML and no line begins anew."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")


def in_markdown(text: str) -> str:
    """``without_html(text)`` as words of Markdown: no cell, link, picture, code or emphasis begins in it."""
    return MARKS.sub(r"\\\g<0>", without_html(text))


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
