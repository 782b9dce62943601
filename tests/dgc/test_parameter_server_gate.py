"""The gate in front of a server: what peers can make it keep, and that workers train on."""

from __future__ import annotations

import random
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
import zmq
from ps_helpers import World
from test_parameter_server_sockets import KEY, LOOPBACK, join

from dgc.parameter_server import ServerError, dual_way, protocol
from dgc.parameter_server.framing import ENCRYPTION, Framer, Limits, Violation
from dgc.parameter_server.gate import COMMANDS, SHORT_IN_FLIGHT, Bounds, most_connections
from dgc.parameter_server.limited import LINES, LimitedLog
from dgc.parameter_server.protocol import SHORT, Kind, Message
from dgc.parameter_server.sockets import Service, use_worker_key
from tools.faults.server import attacks
from tools.faults.server.peer import COMMAND, GREETING, LONG, MORE, READY, Peer, frame, head

LIMITS = Limits(message=1000, in_flight=2000)
OPENING = GREETING + frame(READY, COMMAND)


class Served:
    """The world's server and its service, on a thread of its own."""

    def __init__(self, world: World, key=None, connections=None) -> None:
        self.world = world
        self.service = Service(world.server, LOOPBACK, key, connections=connections)
        self.over = threading.Event()
        self.thread = threading.Thread(
            target=self.service.run, args=(lambda: not self.over.is_set(),)
        )

    def __enter__(self) -> Served:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()
        self.service.close()

    @property
    def gate(self):
        return self.service._gate

    def worker(self, key=None):
        return join(self.world, self.service.address, key)

    def join_by_hand(self) -> tuple[Peer, int]:
        """A peer that holds a slot, and its session."""
        peer = Peer(self.service.address)
        body = b''.join(self.world.server._digests.values())
        peer.send(Message(Kind.JOIN, 77, 1, body=body).encode())
        assert protocol.decode(peer.receive(), protocol.FROM_SERVER).kind is Kind.WELCOME
        return peer, 77


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'it takes too long'
        time.sleep(0.02)


def is_closed(side: socket.socket) -> bool:
    """Whether the server has closed a connection, after what it sent before."""
    side.settimeout(10.0)
    try:
        while side.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_a_stream_passes_as_it_is_however_it_is_cut():
    draw = random.Random(0)
    for _ in range(30):
        sizes = [draw.choice([0, 1, 255, 256, 1000]) for _ in range(5)]
        stream = OPENING + frame(b'\x04PING\0\0', COMMAND)
        stream += b''.join(frame(draw.randbytes(size)) for size in sizes)
        framer, passed, rest = Framer(b'NULL', LIMITS, 56), b'', stream
        while rest:
            piece = rest[: draw.randrange(1, 400)]
            out, read = framer.feed(memoryview(piece))
            passed, rest = passed + out, rest[read:]
            assert framer.in_flight <= LIMITS.in_flight
            framer.taken(draw.randrange(3))
        assert passed == stream


@pytest.mark.parametrize(
    ('stream', 'reason'),
    [
        (b'GET / HTTP/1.1', 'no message'),
        (GREETING[:10] + b'\x01\x05', 'no message'),  # an older version, whose frames differ
        (GREETING.replace(b'NULL\0', b'PLAIN'), 'another key'),
        (GREETING + frame(b'x'), 'no message'),  # before the handshake
        (GREETING + head(1 << 30, COMMAND), 'no message'),
        (OPENING + frame(b'\x09SUBSCRIBEx', COMMAND), 'no message'),
        (OPENING + frame(b'x', MORE), 'several frames'),
        (OPENING + head(1 << 40, MORE), 'several frames'),
        (OPENING + head(1001, LONG), 'a message of 1001 bytes, longer than 1000'),
        (OPENING + b'\x80\0', 'several frames'),
    ],
)
def test_what_is_no_message_or_too_long_is_a_violation(stream, reason):
    framer = Framer(b'NULL', LIMITS, 56)
    with pytest.raises(Violation, match=reason):
        framer.feed(memoryview(stream))


def test_messages_wait_for_room_and_pass_when_others_are_taken():
    framer = Framer(b'NULL', LIMITS, 56)
    stream = OPENING + 3 * frame(bytes(900))
    passed, read = framer.feed(memoryview(stream))
    assert passed == stream[:read] and framer.in_flight == 1800
    assert framer.feed(memoryview(stream)[read:]) == (b'', 0)
    framer.taken(1)
    assert framer.feed(memoryview(stream)[read:]) == (stream[read:], len(stream) - read)


def test_a_message_longer_than_all_that_may_be_in_flight_passes_alone():
    framer = Framer(b'NULL', Limits(1000, 10), 56)
    assert framer.feed(memoryview(OPENING + frame(bytes(900))))[1] == len(OPENING) + 909


@pytest.mark.parametrize('flags', [MORE, 0], ids=['in frames', 'in one frame'])
def test_a_stranger_cannot_send_a_long_message(flags):
    world = World(lambda: dual_way(0.05), slots=2)
    with Served(world) as served:
        good = served.worker()
        for _ in range(3):
            peer = Peer(served.service.address)
            peer.socket.sendall(frame(bytes(SHORT + 1), flags))
            assert is_closed(peer.socket)
            peer.close()
        good.step()
        good.assert_recorded()
        good.optimizer.close()


def test_idle_connections_are_bounded_and_workers_come_in_between(caplog):
    world = World(lambda: dual_way(0.05), slots=2)
    with Served(world, connections=8) as served:
        files = len(list(Path('/proc/self/fd').iterdir()))
        peers = [socket.create_connection(served.service.address) for _ in range(50)]
        good = served.worker()
        peers += [Peer(served.service.address).socket for _ in range(50)]
        for _ in range(3):
            good.step()
        until(lambda: len(list(served.gate)) <= 8)
        own = len(peers) + 16  # of this test, and of the worker
        assert len(list(Path('/proc/self/fd').iterdir())) <= files + own + 3 * 8
        good.assert_recorded()
        good.optimizer.close()
        for each in peers:
            each.close()
    assert world.server.version == 3
    assert 'there are too many' in caplog.text and 'further lines' in caplog.text
    assert caplog.text.count('there are too many') <= LINES


def test_a_connection_that_no_worker_uses_is_closed_and_a_waiting_worker_is_not():
    world = World(lambda: dual_way(0.05), slots=1)
    world.server.timeout = 1.0
    with Served(world) as served:
        peer = Peer(served.service.address)
        begin = time.monotonic()
        good = served.worker()
        assert is_closed(peer.socket)
        assert 0.5 < time.monotonic() - begin < 8
        good.step()  # its heartbeats have held its connections
        assert good.optimizer._link._connections == 1
        good.optimizer.close()


def test_a_joined_peer_cannot_send_several_frames_or_many_losses(caplog):
    world = World(lambda: dual_way(0.05), slots=2)
    with Served(world) as served:
        peer, session = served.join_by_hand()
        many = bytes(8 * (protocol.MAX_LOSSES + 1))
        for _ in range(20):
            peer.send(Message(Kind.LOSSES, session, 0, body=many).encode())
        peer.send(Message(Kind.LOSSES, session, 0, body=bytes(8 * protocol.MAX_LOSSES)).encode())
        until(lambda: world.notes.losses_seen)
        peer.socket.sendall(frame(bytes(1000), MORE))
        assert is_closed(peer.socket)
    assert len(world.notes.losses_seen) == 1
    assert 'losses in a message of at most' in caplog.text


def test_with_a_key_the_frames_of_a_message_stop_at_the_bound():
    """Which of them is the last one is encrypted, so the gate counts them, and lets no more in."""
    world = World(lambda: dual_way(0.05), slots=2)
    with (
        Served(world, KEY) as served,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as bad,
    ):
        good = served.worker(KEY)
        use_worker_key(bad, KEY)
        bad.linger, bad.sndhwm = 0, 1
        bad.connect(served.service.address.endpoint)
        bad.send_multipart([bytes(SHORT)] * 200)
        limit = Bounds(1, world.server.max_message_bytes).other.in_flight
        strangers = lambda: [each for each in served.gate if not each.session]  # noqa: E731
        until(lambda: any(each.waiting for each in strangers()))
        assert all(each.framer.in_flight <= limit for each in strangers())
        for _ in range(3):
            good.step()
        good.assert_recorded()
        good.optimizer.close()


def test_commands_alone_end_a_connection():
    world = World(lambda: dual_way(0.05), slots=2)
    with Served(world) as served:
        peer = Peer(served.service.address)
        peer.socket.settimeout(20.0)
        pings = 200 * frame(b'\x04PING\0\0', COMMAND)
        with pytest.raises(ConnectionError):
            for _ in range(COMMANDS):
                peer.socket.sendall(pings)
        peer.close()


def test_a_worker_that_pushes_first_on_a_new_connection_comes_through():
    """As where the connection broke while ZeroMQ held the message: it is closed, and the worker
    says who it is on the next one."""
    world = World(lambda: dual_way(1.0), slots=1)
    with Served(world) as served:
        worker = served.worker()
        worker.step()
        assert world.server.max_message_bytes > SHORT
        for _ in range(3):
            for connection in served.gate:
                served.gate.drop(connection, 'a test')
            worker.step()
            worker.assert_recorded()
        assert world.server.version == 4
        worker.optimizer.close()


def test_the_number_of_connections_follows_the_limit_of_open_files(monkeypatch):
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (1024, 1024))
    assert 200 < most_connections(None, 4) <= (1024 - 96) // 3
    assert most_connections(20, 4) == 20
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (20_000, 20_000))
    assert most_connections(None, 4) == 256 + 16
    with pytest.raises(ServerError, match=r'configs\.server\.connections = 8 is too few for 4'):
        most_connections(8, 4)
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (128, 128))
    with pytest.raises(ServerError, match=r'128 open files are too few.*`ulimit -n`'):
        most_connections(None, 4)


def test_lines_of_one_kind_are_limited_and_counted(caplog, monkeypatch):
    caplog.set_level('INFO')
    now = [0.0]
    monkeypatch.setattr(time, 'monotonic', lambda: now[0])
    log = LimitedLog('dgc.test')
    for number in range(500):
        log.warning('peer %d is bad', number)
        log.info('another kind')
    assert len(caplog.records) == 2 * (LINES + 1)
    now[0] = 61.0
    log.warning('peer %d is bad', 500)
    assert '490 further lines of the kind' in caplog.text and 'peer 500 is bad' in caplog.text


@pytest.fixture(scope='module')
def attacked():
    """A server at which a worker trains, with room for another."""
    world = World(lambda: dual_way(0.05), slots=2)
    world.server.timeout = 1.0
    with Served(world, connections=16) as served:
        yield served, served.worker()


@pytest.mark.parametrize('name', attacks.ATTACKS)
def test_a_server_under_attack_serves_its_worker(attacked, name, monkeypatch):
    """The short form of `python -m tools.faults.server`."""
    served, worker = attacked
    monkeypatch.setattr(attacks, 'MANY', 100)
    monkeypatch.setattr(attacks, 'VOLUME', 5_000_000)
    monkeypatch.setattr(attacks, 'PATIENCE', 1.0)
    server, gate = served.world.server, served.gate
    join = b''.join(server._digests.values())
    deadline = time.monotonic() + 0.3
    draw, longest = random.Random(name), server.max_message_bytes
    target = attacks.Target(served.service.address, join, longest, deadline, draw)
    attack = threading.Thread(target=attacks.ATTACKS[name], args=(target,))
    version, most = server.version, 0
    attack.start()
    while attack.is_alive():
        worker.step()
        connections = list(gate)
        limit = max(2 * (longest + ENCRYPTION), SHORT_IN_FLIGHT)
        assert all(each.framer.in_flight <= limit for each in connections)
        most = max(most, len(connections))
    worker.step()
    worker.assert_recorded()
    assert server.version > version + 1 and most <= 16
