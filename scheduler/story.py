"""`decisions` of one shard, read from the latest snapshot on, record after record.

What belongs here: where the latest snapshot begins, whether it is whole, that each record
continues the chain of those before it, and what a scheduler needs to go on writing. What does
not: what decisions mean.
"""

from schemas.codec import DecodeError, chain, decode_header, decode_value
from schemas.decisions import Chain, Decision, DecisionRecord, SnapshotChunk
from schemas.log import Log, Partition, Reader, Record, UnavailableError
from schemas.topics import Topics

#: Records read from the end of `decisions` to find the latest snapshot, the first try.
TAIL_RECORDS = 64
#: Records in one poll.
POLL_RECORDS = 1_000
#: How long one poll waits for what must come, and how many in a row may stay empty.
POLL_S = 0.1
SILENT_POLLS_MAX = 300

WAY_OUT = "Restore the topic, or start a new deployment under another FAIRLANE_PREFIX."


class RecoveryError(Exception):
    """The shard can't start: the log lacks or contradicts something; the message says what."""


class Story:
    """What was decided, from the latest snapshot on.

    Args:
        log, topics, shard: which partition of `decisions`.
    """

    def __init__(self, log: Log, topics: Topics, shard: int) -> None:
        self.partition: Partition = (topics.decisions, shard)
        self.digest = b""  #: of the last record that was read
        self.snapshot = -1  #: offset of the latest snapshot's first chunk
        self.snapshot_ms = 0  #: when it was written; without one, when the first decision was
        self.snapshot_bytes = 0
        self.bytes_since = 0  #: of decisions since that snapshot
        self.next = 0  #: offset behind the last record that was read
        self._log = log
        self._reader: Reader | None = None
        self._rest: list[Record] = []  #: what was read with the snapshot
        self._first_chunk = -1  #: of a snapshot that is passed
        self._chunk_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether `begin` was called."""
        return self._reader is not None

    def begin(self) -> bytes | None:
        """Find the latest snapshot and read it; None when there is none.

        Raises RecoveryError when it is not whole, or the beginning of the log is missing.
        """
        reader = self._reader = self._log.reader()
        bounds = reader.bounds(self.partition)
        snapshot, tail_start, tail = self._find(reader, bounds.low, bounds.end)
        if 0 < bounds.low > snapshot:
            raise RecoveryError(
                f"{self._name} begins at offset {bounds.low} and holds no snapshot: its beginning "
                f"was deleted. {WAY_OUT}"
            )
        start = snapshot if snapshot >= 0 else bounds.low
        if start < tail_start:
            reader.assign({self.partition: start})
            tail = []
        self._rest = [record for record in tail if record.offset >= start]
        return None if snapshot < 0 else self._load(reader, bounds.end, snapshot)

    def poll(self, wait_s: float) -> list[tuple[Record, Decision]] | None:
        """The next decisions, each checked against the chain; None when no record came."""
        assert self._reader is not None
        records, self._rest = self._rest, []
        records = records or self._reader.poll(POLL_RECORDS, wait_s)
        found = []
        for record in records:
            decided = self._verified(record)
            if isinstance(decided, SnapshotChunk):
                self._pass(record, decided)
            else:
                self.snapshot_ms = self.snapshot_ms or record.timestamp_ms
                self.bytes_since += len(record.value)
                found.append((record, decided))
        return found if records else None

    def reached(self, end: int) -> bool:
        """Whether everything below `end` was returned by `poll`."""
        reader = self._reader
        return reader is not None and not self._rest and reader.reached(self.partition, end)

    @property
    def end(self) -> int:
        """End of the partition now."""
        reader = self._reader or self._log.reader()
        try:
            return reader.bounds(self.partition).end
        finally:
            if reader is not self._reader:
                reader.close()

    def close(self) -> None:
        """Free the client."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @property
    def _name(self) -> str:
        return f"{self.partition[0]}[{self.partition[1]}]"

    def _find(self, reader: Reader, low: int, end: int) -> tuple[int, int, list[Record]]:
        """Offset of the latest snapshot's first chunk, -1 when there is none; and what was read.

        That is all from an offset on, (snapshot, offset, records), and `reader` goes on there.
        """
        back = TAIL_RECORDS
        while True:
            start = max(low, end - back)
            reader.assign({self.partition: start})
            records: list[Record] = []
            while not reader.reached(self.partition, end):
                records += self._more(reader, end)
            for record in reversed(records):
                if record.offset >= end:
                    continue  # came meanwhile: of a snapshot perhaps the first chunk alone
                seal, decided = decoded(record)
                if isinstance(decided, Decision):
                    return seal.snapshot, start, records
                if decided.index == 0:
                    return record.offset, start, records
            if start == low:
                return -1, start, records
            back *= 16

    def _more(self, reader: Reader, end: int) -> list[Record]:
        """The next records, which must come; [] when the end is reached."""
        for _ in range(SILENT_POLLS_MAX):
            records = reader.poll(POLL_RECORDS, POLL_S)
            if records or reader.reached(self.partition, end):
                return records
        raise UnavailableError(f"{self._name} does not answer")

    def _load(self, reader: Reader, end: int, snapshot: int) -> bytes:
        """Read the snapshot that begins there."""
        chunks: list[bytes] = []
        while self._rest or not reader.reached(self.partition, end):
            records, self._rest = self._rest or self._more(reader, end), []
            for at, record in enumerate(records):
                chunk = self._verified(record)
                if not isinstance(chunk, SnapshotChunk) or chunk.index != len(chunks):
                    raise self._cut_off(snapshot)
                chunks.append(chunk.data)
                if len(chunks) == chunk.count:
                    data = b"".join(chunks)
                    self.snapshot, self.snapshot_ms = snapshot, record.timestamp_ms
                    self.snapshot_bytes = len(data)
                    self._rest = records[at + 1 :]
                    return data
        raise self._cut_off(snapshot)

    def _cut_off(self, snapshot: int) -> RecoveryError:
        return RecoveryError(f"{self._name}@{snapshot}: the snapshot is not whole")

    def _pass(self, record: Record, chunk: SnapshotChunk) -> None:
        """A later snapshot says what is known already; the next recovery begins there."""
        if chunk.index == 0:
            self._first_chunk, self._chunk_bytes = record.offset, 0
        self._chunk_bytes += len(chunk.data)
        if chunk.index == chunk.count - 1:
            self.snapshot, self.snapshot_ms = self._first_chunk, record.timestamp_ms
            self.snapshot_bytes, self.bytes_since = self._chunk_bytes, 0

    def _verified(self, record: Record) -> Decision | SnapshotChunk:
        """Decode a record and check that it continues the chain; a snapshot begins a new one."""
        seal, decided = decoded(record)
        begins = isinstance(decided, SnapshotChunk) and decided.index == 0
        digest = chain(b"" if begins else self.digest, record.value)
        if digest != seal.digest:
            raise RecoveryError(
                f"{record.place} (decision {seal.seq}): the digest does not match: this record "
                "was changed, or the one before it is missing. Restore the topic from a copy."
            )
        self.digest, self.next = digest, record.offset + 1
        return decided


def decoded(record: Record) -> tuple[Chain, Decision | SnapshotChunk]:
    """A record of `decisions` and its seal. Raises RecoveryError when it can't be read."""
    try:
        seal: Chain = decode_header(record, Chain)
        decided: Decision | SnapshotChunk = decode_value(record, DecisionRecord)
    except DecodeError as error:
        raise RecoveryError(f"{error}. A decision was changed or cut off.") from error
    return seal, decided
