"""What an engine of one's own imports: the Protocol and the values of its one method.

from fairlane.engine import EngineBatch, EngineOutcome, End, Usage

class Upper:
    def run(self, batch, cancelled):
        return [EngineOutcome(End.SUCCEEDED, r.body.upper()) for r in batch.requests]
"""

from schemas.reasons import Reason
from schemas.records import End, Usage
from workers.engine import EngineBatch, EngineOutcome, EngineRequest, cancelled, failed
from workers.ports import Engine, VirtualEngine

__all__ = [
    "End",
    "Engine",
    "EngineBatch",
    "EngineOutcome",
    "EngineRequest",
    "Reason",
    "Usage",
    "VirtualEngine",
    "cancelled",
    "failed",
]
