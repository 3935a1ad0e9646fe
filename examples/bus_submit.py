"""Requests over the bus: put them into your inbox, wait for what becomes of them.

Needs confluent-kafka and nothing of Fairlane; any other client of Kafka does the same. The
tenant needs an inbox (`inbox = "refuse"` in the policy) and two rights: to write to
`fairlane.inbox.<tenant>` and to read `fairlane.results.<tenant>`.

    python examples/bus_submit.py --kafka localhost:9092 --tenant acme --endpoint chat hello world
"""

import argparse
import json
import sys
import time
import uuid

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

#: Nothing for so long, and the rest is given up.
PATIENCE_S = 60.0


def submit(kafka: str, topic: str, bodies: dict[str, dict[str, object]]) -> None:
    """Write the requests by name; they stand in the inbox when this returns."""
    failed: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error.str())

    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for name, body in bodies.items():
        # An idempotency key as well: to run this again after a doubt takes nothing in twice.
        headers: dict[str, str | bytes | None] = {"idempotency-key": name, "x-request-id": name}
        producer.produce(topic, json.dumps(body).encode(), headers=headers, on_delivery=delivered)
    left = producer.flush(PATIENCE_S)
    if failed or left:
        raise SystemExit(f"{topic}: {len(failed)} refused by Kafka, {left} not confirmed: {failed}")


def outcomes(consumer: Consumer, names: set[str]) -> None:
    """Print what becomes of the requests, as it comes; each once."""
    waiting, deadline = set(names), time.monotonic() + PATIENCE_S
    while waiting and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        answer = json.loads(message.value() or b"")
        name = answer.get("x_request_id")
        if name not in waiting:
            continue  # of another run, or told before
        deadline = time.monotonic() + PATIENCE_S
        if answer["kind"] == "ended":
            print(json.dumps({"id": answer["id"], "state": answer["state"], "name": name}))
            print(json.dumps(answer.get("output", answer.get("detail"))))
        elif answer["kind"] == "refused":
            print(json.dumps({"refused": answer.get("reason"), "detail": answer["detail"]}))
        else:
            continue  # "repeated": the outcome comes, or came, under this id
        waiting.discard(name)
    if waiting:
        sys.exit(f"no outcome of {len(waiting)} requests within {PATIENCE_S:.0f} s")


def main() -> None:
    """Submit each text of the command line as one request."""
    parser = argparse.ArgumentParser(description="Submit requests over Kafka.")
    parser.add_argument("--kafka", required=True, help="bootstrap address")
    parser.add_argument("--tenant", required=True, help="whose inbox")
    parser.add_argument("--endpoint", required=True, help="model to be called")
    parser.add_argument("--prefix", default="fairlane", help="topic prefix of the deployment")
    parser.add_argument("texts", nargs="+", help="inputs")
    given = parser.parse_args()

    results = f"{given.prefix}.results.{given.tenant}"
    consumer = Consumer(
        {
            "bootstrap.servers": given.kafka,
            "group.id": f"{given.tenant}-bus-submit",
            "enable.auto.commit": False,
            # Copies of results are written in transactions: an aborted one is not to be seen.
            "isolation.level": "read_committed",
        }
    )
    # From what is the end now: found before the first request is written.
    _, end = consumer.get_watermark_offsets(TopicPartition(results, 0), timeout=PATIENCE_S)
    consumer.assign([TopicPartition(results, 0, end)])
    bodies: dict[str, dict[str, object]] = {
        str(uuid.uuid4()): {"endpoint": given.endpoint, "input": text} for text in given.texts
    }
    submit(given.kafka, f"{given.prefix}.inbox.{given.tenant}", bodies)
    outcomes(consumer, set(bodies))
    consumer.close()


if __name__ == "__main__":
    main()
