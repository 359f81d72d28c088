"""Header fields with values that never come again, such as a request's id.

HPACK keeps what it sends in a table, in the hope of sending an index next time. A value that is different each time
only fills that table, and every later field of that name is compared with all of them in vain: so it is told not to.
"""

from __future__ import annotations

from typing import Final

from shared.net.fields import Header

try:
    from ngh2 import NeverIndexedHeader
except ImportError:  # the other engine has no such thing, and does without
    NeverIndexedHeader = tuple  # type: ignore[assignment,misc]

# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_Kind: Final = NeverIndexedHeader
_new: Final = tuple.__new__  # a named tuple's own constructor takes twice as long


def once(name: bytes, value: bytes) -> Header:
    """A field that HPACK does not keep; equal to the pair."""
    field: Header = _new(_Kind, (name, value))
    return field
