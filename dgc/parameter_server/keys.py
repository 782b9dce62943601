"""Who may talk to whom: one shared secret, from which both sides derive their CURVE key pairs.

CURVE (RFC 26) encrypts and authenticates every connection. The server knows the one public key
that its workers have, and they know the server's; who has another secret never gets a message in.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from dgc.parameter_server.errors import ServerError

SECRET = 32  # bytes
UNPROTECTED = 'unprotected'  # in the place of a key file: no key, asked for by name


class Pair(NamedTuple):
    """A CURVE key pair, each in Z85."""

    public: bytes
    secret: bytes


class Key(NamedTuple):
    """The key pairs of both sides."""

    server: Pair
    worker: Pair


def derive(secret: bytes) -> Key:
    """The key pairs of 32 bytes that only the server and its workers know."""
    return Key(_pair(secret, b'server'), _pair(secret, b'worker'))


def _pair(secret: bytes, role: bytes) -> Pair:
    raw = hashlib.blake2b(secret, digest_size=SECRET, person=b'dgc ' + role).digest()
    encoded = z85.encode(raw)
    return Pair(zmq.curve_public(encoded), encoded)


def draw() -> bytes:
    """A new secret."""
    return secrets.token_bytes(SECRET)


def write(path: Path) -> None:
    """Make a key file that only its owner can read. Raises ServerError where there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ServerError(f'key file {path} cannot be made: {error.strerror}') from error
    with os.fdopen(descriptor, 'w') as file:
        file.write(draw().hex() + '\n')


def read(path: Path) -> bytes:
    """The secret in a key file. Raises ServerError for one that is missing, open to others, or no
    key."""
    try:
        with path.open() as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(4 * SECRET)
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f'configs.server.key = {str(path)!r} cannot be read: {error}') from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ServerError(f'key file {path} can be read by others: chmod 600 {path}')
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b''
    if len(secret) != SECRET:
        raise ServerError(
            f'{path} is no key file: make one with `python -m dgc.parameter_server --new-key FILE`'
        )
    return secret


def choose(setting: str | None, host: str) -> Key | None:
    """The key for talking by way of ``host``; None for none.

    setting: a key file, 'unprotected', or None: fit for this machine's own addresses only.
    Raises ServerError where a network would see what is said, and nobody has asked for that.
    """
    if setting == UNPROTECTED:
        return None
    if setting is not None:
        return derive(read(Path(setting)))
    if not is_loopback(host):
        raise ServerError(
            f'{host} is beyond this machine, and configs.server.key is not set: name a key file '
            f'(python -m dgc.parameter_server --new-key FILE), or {UNPROTECTED!r} to do without'
        )
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == 'localhost':
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
