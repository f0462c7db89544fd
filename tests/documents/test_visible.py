"""What cannot be seen, or makes other text unseen, is shown as an escape."""

from __future__ import annotations

import unicodedata

import pytest

from docleak.documents.visible import in_markdown, visible, without_html


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\u001b[31mred"),
        ("a\x00b\rc\x7f\x9b", "a\\u0000b\\u000dc\\u007f\\u009b"),
        ("\u202e9.00\u2066", "\\u202e9.00\\u2066"),
        ("\u200e\u200f\u061c\u200b\u2060\ufeff", "\\u200e\\u200f\\u061c\\u200b\\u2060\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("line\n\ttab", "line\n\ttab"),
        ("Käse 19,00 € 日本 العربية 😀", "Käse 19,00 € 日本 العربية 😀"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_hidden_characters_become_escapes_and_others_stay(text: str, shown: str) -> None:
    assert visible(text) == shown
    shown.encode("utf-8")


def test_no_control_format_or_surrogate_character_of_the_first_plane_is_left() -> None:
    everything = "".join(map(chr, range(0x10000)))
    left = {character for character in visible(everything) if unicodedata.category(character) in {"Cc", "Cf", "Cs"}}
    # Soft marks of Arabic and Syriac numbers are printed glyphs, not directions.
    assert left <= {"\n", "\t", *map(chr, (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2))}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("a | b\n| c", "a \\| b \\| c"),
        ("![x](http://evil)", "!\\[x\\](http://evil)"),
        ("`code` *bold* \\", "\\`code\\` \\*bold\\* \\\\"),
        ("AT&amp;T\u202e", "AT&amp;amp;T\\\\u202e"),
        ("provider_name 19.00 €", "provider_name 19.00 €"),
    ],
)
def test_words_in_markdown_stay_words(text: str, shown: str) -> None:
    assert in_markdown(text) == shown
    assert "<" not in without_html(text)
