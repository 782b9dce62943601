"""Where rank 0 listens for the workers of a parameter server: failures row 17."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from dgc.parameter_server import Address, ServerError, ServerSettings
from utils.training import parameter_server
from utils.training.parameter_server import choose_bind_address, own_address

SEVERAL_MACHINES = SimpleNamespace(local_size=1, size=4)
V4, V6 = socket.AF_INET, socket.AF_INET6


def resolves(monkeypatch, *addresses):
    """Let every host name have these addresses; an exception is raised."""

    def getaddrinfo(host, port, type=0):  # noqa: A002
        if isinstance(addresses[0], Exception):
            raise addresses[0]
        return [(V6 if ':' in a else V4, type, 6, '', (a, 0)) for a in addresses]

    monkeypatch.setattr(socket, 'getaddrinfo', getaddrinfo)


@pytest.mark.parametrize(
    ('addresses', 'expected'),
    [
        (['10.0.0.7'], '10.0.0.7'),
        (['fd00::7', '10.0.0.7'], '10.0.0.7'),
        (['fe80::1', 'fd00::7'], 'fd00::7'),  # link-local addresses need an interface
        (['127.0.1.1', '10.0.0.7'], '10.0.0.7'),
    ],
)
def test_it_is_one_that_other_machines_can_reach(monkeypatch, addresses, expected):
    """failures row 17: hosts with IPv6 only were a traceback."""
    resolves(monkeypatch, *addresses)
    address, secret = choose_bind_address(ServerSettings(), SEVERAL_MACHINES)
    assert address == Address(expected, 0)
    assert len(secret) == 32


@pytest.mark.parametrize(
    ('addresses', 'message'),
    [
        ([socket.gaierror(-2, 'Name or service not known')], 'has no address.*not known'),
        ([UnicodeError('label too long')], 'has no address.*label too long'),
        (['127.0.1.1'], 'is 127.0.1.1 here, where other machines cannot reach it'),
        (['::1'], 'is ::1 here'),
    ],
)
def test_a_host_name_without_such_an_address_names_the_setting(monkeypatch, addresses, message):
    """failures row 17: gaierror was a traceback."""
    resolves(monkeypatch, *addresses)
    with pytest.raises(ServerError, match=message) as raised:
        own_address('node7')
    assert 'set configs.server.bind to an address of rank 0' in str(raised.value)
    assert str(raised.value).startswith('node7')


@pytest.mark.parametrize('loopback', ['127.0.0.1', '::1'])
def test_on_one_machine_it_is_the_loopback_address_without_a_key(monkeypatch, loopback):
    monkeypatch.setattr(parameter_server, 'loopback', lambda: loopback)
    engine = SimpleNamespace(local_size=4, size=4)
    assert choose_bind_address(ServerSettings(), engine) == (Address(loopback, 0), None)
