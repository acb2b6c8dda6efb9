"""What an index part says of its objects; no digest covers that, so anything may be there."""

from __future__ import annotations

from typing import Any


def stated_objects(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a part says of each of its objects, by path; entries that are none are left out.

    Args:
        facts: the second of `layout.read_table`.
    """
    entries = facts.get("objects")
    return {
        entry["path"]: entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
        and isinstance(entry.get("path"), str)
        and isinstance(entry.get("bytes"), int)
    }
