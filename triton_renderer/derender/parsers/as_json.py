"""Values as JSON text."""

import json
from typing import Any


def as_json(value: Any) -> str:
    """`value` as JSON in the reference's spacing, in Unicode where UTF-8 can carry it.

    Raises ValueError or RecursionError where JSON has nothing for it: infinity, what is no number, no end of nesting.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value, allow_nan=False)
    return text
