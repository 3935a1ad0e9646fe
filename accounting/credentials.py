"""Security options of the deployment's Kafka client, as Faust's client takes them.

The options are librdkafka's, since every other process uses them; what has no counterpart
here is refused by name rather than left out: a connection less secure than was asked for
must not come about.
"""

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import faust

_PREFIXES = ("sasl.", "security.", "ssl.", "enable.ssl.")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_KNOWN = frozenset(
    {
        "enable.ssl.certificate.verification",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)


class CredentialsError(Exception):
    """An option has no counterpart here, or a file of it can't be read."""


class Mapped(NamedTuple):
    """What Faust takes (None: no security), and options that only tune the other client."""

    credentials: Any
    ignored: tuple[str, ...]


def credentials(options: Mapping[str, str]) -> Mapped:
    """Map librdkafka's options. Raises CredentialsError naming what can't be mapped."""
    ignored = tuple(sorted(name for name in options if not name.startswith(_PREFIXES)))
    strange = sorted(name for name in options if name.startswith(_PREFIXES) and name not in _KNOWN)
    if strange:
        raise CredentialsError(
            f"the accounting's Kafka client has no {', '.join(strange)}; it knows "
            f"{', '.join(sorted(_KNOWN))}"
        )
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise CredentialsError(f"security.protocol {protocol!r} is none of {', '.join(_PROTOCOLS)}")
    context = _context(options) if protocol.endswith("ssl") else None
    if protocol.startswith("sasl"):
        return Mapped(_sasl(options, context), ignored)
    return Mapped(faust.SSLCredentials(context) if context else None, ignored)


def _sasl(options: Mapping[str, str], context: ssl.SSLContext | None) -> faust.SASLCredentials:
    mechanism = options.get("sasl.mechanism") or options.get("sasl.mechanisms") or ""
    if mechanism not in _MECHANISMS:
        raise CredentialsError(
            f"sasl.mechanism {mechanism!r} is none of {', '.join(_MECHANISMS)}, which the "
            "accounting's Kafka client can do"
        )
    return faust.SASLCredentials(
        username=options.get("sasl.username", ""),
        password=options.get("sasl.password", ""),
        mechanism=mechanism,
        ssl_context=context,
    )


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"))
        if certificate := options.get("ssl.certificate.location"):
            context.load_cert_chain(
                certificate, options.get("ssl.key.location"), options.get("ssl.key.password")
            )
    except (OSError, ssl.SSLError) as error:
        raise CredentialsError(f"ssl.*.location: {error}") from error
    if options.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if options.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
