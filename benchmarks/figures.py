"""How every benchmark says what it found: one JSON object, or a line for each figure."""

import json
from typing import Any


def tell(figures: dict[str, Any], *, quick: bool, as_json: bool) -> None:
    """Print the figures of a run; `quick` is one of them."""
    figures = {**figures, "quick": quick}
    if as_json:
        print(json.dumps(figures))
        return
    width = max(map(len, figures)) + 2
    for name, value in figures.items():
        print(f"{name:{width}}{value}")
