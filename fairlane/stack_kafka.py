"""How a single Kafka node is set up: its properties, its storage, its command line.

What belongs here: Kafka's own names and their reasons. What does not: processes, ports, waiting.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from fairlane.stack_tools import StackError, Tools

#: Formatting takes 1.7 s on an idle machine.
FORMAT_SECONDS_MAX = 120

#: Starts fastest and stays smallest: one collector thread, the first compiler only.
_SMALL = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Runs fastest: both compilers, and few collections. Left to itself the collector can't keep to
#: its pause on busy cores, takes the smallest young space for that, and stops everything each
#: second for 20 to 300 ms; with this one, twice a minute.
_FAST = ("-Xms2g", "-Xmx2g", "-Xmn1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")

#: What one node that serves tests and a single user needs, whoever starts it.
SINGLE_NODE: Mapping[str, str] = {
    # One node: Kafka's inner topics can have one replica only, and need few partitions.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # A topic exists because somebody made it with the right settings, never by accident.
    "auto.create.topics.enable": "false",
    # Members are few and local: no waiting for more, and the dead are noticed soon.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # A killed broker may register again only when its old session has run out.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # How often the transactions of the killed are looked for.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # The default of 128 MB doesn't fit a small heap.
    "log.cleaner.dedupe.buffer.size": "2097152",
}


def server_properties(data: Path, host: str, kafka_port: int, controller_port: int) -> str:
    """The text of server.properties for one node that is broker and controller."""
    listeners = f"PLAINTEXT://{host}:{kafka_port},CONTROLLER://{host}:{controller_port}"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"{host}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        **SINGLE_NODE,
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def format_storage(tools: Tools, properties: Path, cluster_id: str, log: Path) -> None:
    """Make the data folder Kafka's own; needed once before the first start.

    Raises:
        StackError: Kafka's tool refused or hung; its words are in the message.
    """
    command = [
        *(str(tools.java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-cp", f"{tools.jars}/*", "kafka.tools.StorageTool", "format", "--standalone"),
        *("-t", cluster_id, "-c", str(properties)),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FORMAT_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(
            f"formatting Kafka's storage took over {FORMAT_SECONDS_MAX} s: this machine is too"
            " busy; try again"
        ) from error
    with log.open("ab") as out:
        out.write(done.stdout)
    if done.returncode != 0:
        raise StackError(
            f"Kafka's storage tool refused {properties}; its words are in {log}:\n"
            f"{done.stdout.decode(errors='replace')[-1000:]}"
        )


def server_command(tools: Tools, properties: Path, benchmark: bool) -> list[str]:
    """The command line of the broker."""
    return [
        str(tools.java),
        *(_FAST if benchmark else _SMALL),
        "-Djava.net.preferIPv4Stack=true",
        "-XX:+ExitOnOutOfMemoryError",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        *("-cp", f"{tools.jars}/*", "kafka.Kafka", str(properties)),
    ]
