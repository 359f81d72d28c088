"""Header fields with values that never come again, such as a request's id.

HPACK keeps what it sends in a table, in the hope of sending an index next time. A value that is different each time
only fills that table, and every later field of that name is compared with all of them in vain: so it is told not to.
"""

from __future__ import annotations

from typing import Any, Final

try:
    from ngh2 import NeverIndexedHeader
except ImportError:  # the other engine has no such thing, and does without
    NeverIndexedHeader = tuple  # type: ignore[assignment,misc]

# Compiled code looks up an imported name each time, and keeps one that is final at hand.
_Kind: Final = NeverIndexedHeader
_new: Final = tuple.__new__  # a named tuple's own constructor takes twice as long


def once(name: bytes, value: bytes) -> Any:
    """A field that HPACK does not keep; equal to the pair.

    ``Any``, and to be put into a ``list[Any]``: compiled code makes a plain pair of whatever is declared as one.
    """
    return _new(_Kind, (name, value))
