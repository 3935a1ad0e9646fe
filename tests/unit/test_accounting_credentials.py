"""The Kafka client's security options, as the accounting's client takes them."""

import ssl

import faust
import pytest

from accounting.credentials import CredentialsError, credentials


def test_without_options_there_are_no_credentials() -> None:
    assert credentials({}) == (None, ())
    assert credentials({"client.id": "x"}) == (None, ("client.id",))


def test_a_password_goes_along() -> None:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "acct",
        "sasl.password": "secret",
    }
    found = credentials(options).credentials
    assert isinstance(found, faust.SASLCredentials)
    assert (found.username, found.password) == ("acct", "secret")
    assert found.protocol.value == "SASL_PLAINTEXT"
    assert found.mechanism is not None
    assert found.mechanism.value == "SCRAM-SHA-512"


def test_transport_security_checks_names_unless_told_otherwise() -> None:
    strict = credentials({"security.protocol": "ssl"}).credentials
    assert strict.context.check_hostname
    named = {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}
    lax = credentials(named).credentials
    assert (lax.context.check_hostname, lax.context.verify_mode) == (False, ssl.CERT_REQUIRED)
    open_ = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    found = credentials({**open_, "enable.ssl.certificate.verification": "false"}).credentials
    assert found.protocol.value == "SASL_SSL"
    assert found.ssl_context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sasl.oauthbearer.config": "x"}, r"has no sasl\.oauthbearer\.config; it knows"),
        ({"security.protocol": "tls"}, r"security\.protocol 'tls' is none of"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism '' is none of"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"},
            r"ssl\.\*\.location: .*No such file",
        ),
    ],
    ids=["no counterpart", "protocol", "mechanism", "file"],
)
def test_what_cannot_be_mapped_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(CredentialsError, match=message):
        credentials(options)
