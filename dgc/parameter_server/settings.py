"""Addresses, key files and time-outs of a server and its workers.

Nothing here needs pyzmq; sockets.py has the connections.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SECRET_BYTES = 32
ROOT = 0  # user who may own everybody's files
JOURNALS = ('written', 'synced', 'off')
UNPROTECTED = 'unprotected'  # as the name of the key file: no key, also beyond this machine


class ServerError(RuntimeError):
    """A server cannot be started or reached, or refuses this worker. The text names the remedy."""


class Address(NamedTuple):
    """Where a server listens. ``port`` 0 stands for any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``host:port``, with brackets around an IPv6 address."""
        return f'[{self.host}]:{self.port}' if ':' in self.host else f'{self.host}:{self.port}'

    @property
    def endpoint(self) -> str:
        """The address in ZeroMQ's notation."""
        return f'tcp://{self}'


def parse_address(text: str, setting: str) -> Address:
    """Parse ``host:port`` or ``[host]:port``. Raises ServerError that names ``setting``."""
    match = re.fullmatch(r'(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]/]+)):(\d{1,5})', text)
    if match is None or int(match[3]) > 65535:
        raise ServerError(f'{setting} = {text!r} is no host:port, such as 127.0.0.1:5555')
    return Address(match[1] or match[2], int(match[3]))


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is an address that only this machine can reach."""
    if host == 'localhost':
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class ServerSettings:
    """The settings ``configs.server``. Seconds are wall-clock seconds.

    Attributes:
        bind: ``host:port`` where the server listens, port 0 for any free one. Under a launcher the
            default is the loopback address, or with several machines the address of rank 0's host
            name.
        address: ``host:port`` of the server, for a worker that is started by hand.
        workers: Number of workers that may train at the same time. Under a launcher it is the
            number of processes minus one.
        key: Key file that server and workers share, or 'unprotected' for none beyond this machine.
        heartbeat: Seconds between two heartbeats of a worker.
        timeout: Seconds without a message or heartbeat after which a worker's slot is freed.
        patience: Seconds without a server, or without a free slot, after which a worker gives up.
        checkpoint_seconds: Seconds between two checkpoints of the server.
        journal: How the server writes updates before it acknowledges them: 'written' to the system,
            which survives the process; 'synced' to the disk, which survives a power cut; 'off'.
        max_norm_ratio: The server refuses an update whose norm is more than this many times the
            median of the accepted ones before it; None accepts every finite update.
        connections: Connections to the server at the same time. By default 256 and 4 for each
            worker, or fewer where the limit of open files is low.

    Raises:
        ValueError: If the settings contradict each other.
    """

    bind: str | None = None
    address: str | None = None
    workers: int | None = None
    key: str | None = None
    heartbeat: float = 2.0
    timeout: float = 20.0
    patience: float = 120.0
    checkpoint_seconds: float = 60.0
    journal: str = 'written'
    max_norm_ratio: float | None = None
    connections: int | None = None

    def __post_init__(self) -> None:
        for name in ('heartbeat', 'timeout', 'patience', 'checkpoint_seconds'):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f'configs.server.{name} must be above 0, got {getattr(self, name)}'
                )
        if self.timeout < 2 * self.heartbeat:
            raise ValueError(
                f'configs.server.timeout = {self.timeout} leaves no time for a late heartbeat: '
                f'set it to at least {2 * self.heartbeat}, or configs.server.heartbeat lower'
            )
        if self.journal not in JOURNALS:
            raise ValueError(
                f'configs.server.journal = {self.journal!r} is none of {", ".join(JOURNALS)}'
            )
        if self.max_norm_ratio is not None and not self.max_norm_ratio > 1:
            raise ValueError(
                f'configs.server.max_norm_ratio must be above 1, got {self.max_norm_ratio}'
            )
        if self.bind is not None and self.address is not None:
            raise ValueError(
                'configs.server.bind and configs.server.address are both set: '
                'a process either serves or trains'
            )


def draw_secret() -> bytes:
    """Draw a new secret of 32 random bytes."""
    return secrets.token_bytes(SECRET_BYTES)


def write_key_file(path: Path) -> None:
    """Create a key file with a new secret, readable by its owner only.

    Raises:
        ServerError: If the file exists already or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ServerError(f'key file {path} cannot be made: {error.strerror}') from error
    with os.fdopen(descriptor, 'w') as file:
        file.write(draw_secret().hex() + '\n')


def user(number: int) -> str:
    """The name of a user, or its number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f'user {number}'


def read_key_file(path: Path) -> bytes:
    """Read the secret of a key file.

    Raises:
        ServerError: If the file is missing, another user owns it, others can read it or replace it,
            or it holds no key.
    """
    try:
        with path.open() as file:
            status, text = os.fstat(file.fileno()), file.read(4 * SECRET_BYTES)
        folder = path.resolve().parent.stat()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f'configs.server.key = {str(path)!r} cannot be read: {error}') from error
    for owner, what in ((status.st_uid, f'key file {path}'), (folder.st_uid, f'folder of {path}')):
        if owner not in (os.geteuid(), ROOT):
            raise ServerError(
                f'{what} belongs to {user(owner)}, who could set another key: use a file of '
                f'{user(os.geteuid())} in a folder of the same'
            )
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ServerError(f'key file {path} can be read by others: chmod 600 {path}')
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX:
        raise ServerError(
            f'key file {path} can be replaced by others: chmod go-w {path.resolve().parent}'
        )
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b''
    if len(secret) != SECRET_BYTES:
        raise ServerError(
            f'{path} is no key file: make one with `python -m dgc.parameter_server --new-key FILE`'
        )
    return secret


def choose_secret(setting: str | None, host: str) -> bytes | None:
    """Return the secret to use for connections through ``host``; None to connect without a key.

    Args:
        setting: ``configs.server.key``: a key file, 'unprotected', or None, which is accepted for
            loopback addresses only.
        host: Address at which the server listens or is reached.

    Raises:
        ServerError: If connections would cross a network unprotected without an explicit request.
    """
    if setting == UNPROTECTED:
        return None
    if setting is not None:
        return read_key_file(Path(setting))
    if not is_loopback(host):
        raise ServerError(
            f'{host} is beyond this machine, and configs.server.key is not set: name a key file '
            f'(python -m dgc.parameter_server --new-key FILE), or {UNPROTECTED!r} to do without'
        )
    return None
