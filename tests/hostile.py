"""Texts that do something where they are shown as they are, and texts that only look unusual."""

from __future__ import annotations

import unicodedata

HOSTILE = {
    "title": "\x1b]0;FORGED\x07",
    "clipboard": "\x1b]52;c;Y3VybCBldmls\x07",
    "screen": "\x1b[2J\x1b[1;1Hspikeguard: all is well",
    "one-byte controls": "\x9b31mred\x9d0;FORGED\x9c",
    "line": "agreed\nFORGED  server  approve",
    "windows line": "agreed\r\nFORGED",
    "start of line": "agreed\rFORGED",
    "separators": "a\x0bFORGED\x0cFORGED\x1cFORGED\x85FORGED\u2028FORGED\u2029FORGED",
    "override": "step-\u202egnp.exe\u202c",
    "isolate": "\u2067evil\u2066",
    "unseen": "pol\u200bicy\u2060 \ufeff1\u00ad \u3164\u2800",
    "tags": "ok\U000e0041\U000e0042",
    "joiner alone": "pol\u200dicy",
    "markdown": "[click](https://evil.example) ![x](https://evil.example/p.png) *b* ~~c~~ $d$",
    "rows": "| a | b |\n| --- | --- |\n\n# FORGED\n\n- FORGED",
    "addresses": "see https://evil.example, <https://evil.example> and www.evil.example",
    "entities": "&#x202e;&lt;b&gt;",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x'",
    "formula": '=HYPERLINK("https://evil.example")',
    "spaced formula": " @SUM(1+1)*cmd|' /C calc'!A0",
    "list": "1. FORGED",
    "template": "{{ 7 * 7 }} {% raw %} %s %(name)s {0}",
    "long": "x" * 490,
}
HARMLESS = (
    "Ада Лавлейс",
    "עדה לאבלייס",
    "نمی\u200cخواهم",  # noqa: RUF001
    "क्\u200dष",
    "艾达",
    "\U0001f469\U0001f3fd\u200d\U0001f680",  # an astronaut: two emoji, a skin tone and a joiner
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "naïve ½ µ² → 3 €",
)
_ACTED_ON = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def acted_on(text: str, keep: str = "\n") -> list[str]:
    """The characters of `text` that a terminal or a page would act on."""
    for harmless in HARMLESS:
        text = text.replace(harmless, "")
    return [c for c in text if unicodedata.category(c) in _ACTED_ON and c not in keep]
