"""`fairlane inbox` on the command line."""

import pytest

from fairlane.__main__ import SERVICES
from fairlane.cli_services import parser


def test_it_is_a_service_and_takes_no_option_of_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    given = parser().parse_args(["inbox", "--instance", "i", "--redis-down", "closed"])
    assert given.service in SERVICES
    assert (given.service, given.redis_down) == ("inbox", "closed")
    for option in ("--port", "--processes", "--drain-s"):
        with pytest.raises(SystemExit):
            parser().parse_args(["inbox", option, "1"])
        assert option in capsys.readouterr().err
    assert parser().parse_args(["ingress", "--processes", "2"]).processes == 2
