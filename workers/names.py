"""What a lane is called: its topics, its group, its transactional id."""

from typing import NamedTuple

from schemas.log import Partition
from schemas.topics import Topics


class LaneNames(NamedTuple):
    """Names of lane `number` of a pool; one prefix is one deployment."""

    topics: Topics
    pool: str
    number: int

    @property
    def batches(self) -> Partition:
        """Where its batches come from."""
        return self.topics.batches(self.pool), self.number

    @property
    def workers(self) -> Partition:
        """Where its holder speaks to the scheduler."""
        return self.topics.workers(self.pool), self.number

    @property
    def group(self) -> str:
        """The memberless group that keeps the progress of the pool's lanes."""
        return f"{self.topics.prefix}.lanes.{self.pool}"

    @property
    def transactional_id(self) -> str:
        """The one id of the lane: whoever initialised it last holds the lane."""
        return f"{self.topics.prefix}.lane.{self.pool}.{self.number}"

    @property
    def place(self) -> str:
        """For messages: `topic[partition]` of its batches."""
        return f"{self.batches[0]}[{self.number}]"


def members(topics: Topics, pool: str) -> str:
    """Name the group in which a pool's workers share its lanes out."""
    return f"{topics.prefix}.workers.{pool}"
