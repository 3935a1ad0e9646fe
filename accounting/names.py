"""Names that the accounting and its readers agree on."""

from schemas.topics import Topics


def group(topics: Topics) -> str:
    """Consumer group of a deployment's accounting: below its offsets everything is counted."""
    return f"{topics.prefix}.accounting"
