"""The one border between text that an agent made and anything a person looks at.

Terminal escapes, other control characters and bidirectional overrides are made
visible instead of obeyed. Idempotent, and never longer in cells than it needs.
"""

from __future__ import annotations

import re

# CSI, OSC/DCS/SOS/PM/APC strings (ended by BEL or ST, or by the end of the text), two-byte escapes;
# the same in their 8-bit C1 forms. ECMA-48 sections 5.3 to 5.6.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str, *, multiline: bool = False) -> str:
    """Text that is safe to show. Newlines become spaces unless ``multiline``."""
    text = text.replace("\r\n", "\n")
    text = _ESCAPES.sub("", text)
    text = _CONTROLS.sub("\ufffd", text)
    text = _SURROGATES.sub("\ufffd", text)
    if multiline:
        return text
    return text.replace("\n", " ").replace("\t", " ")
