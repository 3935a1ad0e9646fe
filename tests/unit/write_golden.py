"""Write the golden files of kinds that have none yet: `python -m tests.unit.write_golden`.

Never overwrites: a changed encoding of the same version is a broken promise, not a file
to renew.
"""

import json
from pathlib import Path

from schemas.codec import encode
from schemas.records import VERSION
from tests.support.record_samples import SAMPLES, kind_of

GOLDEN = Path(__file__).parent / "golden"

if __name__ == "__main__":
    for sample in SAMPLES:
        path = GOLDEN / f"{kind_of(sample)}.v{VERSION}.json"
        if not path.exists():
            shown = {"hex": encode(sample).hex(), "repr": repr(sample)}
            path.write_text(json.dumps(shown, indent=1) + "\n")
            print(path)
