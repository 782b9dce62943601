"""The parameter server over real sockets, on loopback: keys, refusals, reconnection, time-outs."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import zmq
from ps_helpers import Worker, World

from dgc.parameter_server import (
    Address,
    Budget,
    ServerError,
    ServerSettings,
    dual_way,
    parse_address,
    protocol,
)
from dgc.parameter_server.protocol import Kind, Message
from dgc.parameter_server.server import WorkerSlots
from dgc.parameter_server.settings import choose_secret, read_key_file, write_key_file
from dgc.parameter_server.sockets import Service, SocketLink, derive_key

LOOPBACK = Address('127.0.0.1', 0)
KEY = derive_key(bytes(range(32)))


@contextmanager
def served(world: World, key=None, address=LOOPBACK):
    """The world's server, on a thread of its own, until the block ends."""
    over = threading.Event()
    service = Service(world.server, address, key)
    thread = threading.Thread(target=lambda: service.run(lambda: not over.is_set()))
    thread.start()
    try:
        yield service.address
    finally:
        over.set()
        thread.join()
        service.close()


def join(world: World, address: Address, key=None, patience: float = 20.0) -> Worker:
    """A worker over sockets."""
    link = SocketLink(address, key, heartbeat=0.1, patience=patience)
    return Worker(world, link=link)


@pytest.mark.parametrize('key', [None, KEY], ids=['open', 'with a key'])
def test_two_workers_train_over_sockets(key):
    world = World(lambda: dual_way(0.05), slots=2, updates=40)
    with served(world, key) as address:
        workers = [join(world, address, key) for _ in range(2)]

        def train(worker):
            while not worker.optimizer.finished:
                worker.step()
            worker.optimizer.close()

        threads = [threading.Thread(target=train, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert world.server.version == 40 and world.server.drained


@pytest.mark.parametrize('theirs', [None, derive_key(bytes(32))], ids=['no key', 'another key'])
def test_a_worker_without_the_key_is_refused_and_the_others_train_on(theirs, caplog):
    world = World(lambda: dual_way(0.05), slots=2)
    with served(world, KEY) as address:
        good = join(world, address, KEY)
        with pytest.raises(ServerError, match=r'same configs\.server\.key'):
            join(world, address, theirs, patience=1.0)
        good.step()
        good.assert_recorded()
        good.optimizer.close()
    assert len(world.notes.updates) == 1
    assert 'closed a connection of 127.0.0.1: it has another key, or none' in caplog.text


def test_a_request_after_the_connection_was_refused_does_not_block():
    world = World(lambda: dual_way(0.05), slots=2)
    with served(world, KEY) as address:
        link = SocketLink(address, patience=1.0)
        link.open(1000)
        time.sleep(1.0)  # ZeroMQ gives a connection up whose handshake is refused
        with pytest.raises(ServerError, match=r'same configs\.server\.key'):
            link.request(Message(Kind.JOIN, link.session, 1))
        link.close()


def test_a_worker_with_the_servers_key_but_not_the_workers_is_refused():
    world = World(lambda: dual_way(0.05), slots=2)
    half = KEY._replace(worker=derive_key(bytes(32)).worker)
    with served(world, KEY) as address, pytest.raises(ServerError, match='no parameter server'):
        join(world, address, half, patience=1.0)


def test_messages_that_are_too_long_or_invalid_end_their_connection_only(caplog):
    caplog.set_level('INFO')
    world = World(lambda: dual_way(0.05), slots=2)
    with served(world) as address:
        good = join(world, address)
        with zmq.Context() as context, context.socket(zmq.DEALER) as bad:
            bad.linger = 0
            bad.connect(address.endpoint)
            bad.send(bytes(world.server.max_message_bytes + 1))
            assert not bad.poll(300)
            bad.send(b'GET / HTTP/1.1')
            assert bad.poll(3000)
            reply = protocol.decode(bad.recv(), protocol.FROM_SERVER)
            assert reply.kind is Kind.REFUSED and 'no message' in reply.text
        with socket.create_connection(address) as raw:
            raw.sendall(b'GET / HTTP/1.1\r\n\r\n' + os.urandom(200))
            time.sleep(0.3)
        good.step()
        good.assert_recorded()
        good.optimizer.close()
    assert world.server.version == 1
    assert 'longer than 4096' in caplog.text and 'something that is no message' in caplog.text
    assert 'are no message' in caplog.text


def test_a_peer_that_requests_and_never_reads_does_not_fill_the_memory():
    many, reply, handled = 100, bytes(1 << 20), []
    server = SimpleNamespace(
        handle=lambda frame, now, peer: handled.append(peer) or reply,
        max_message_bytes=1 << 21, drained=False, tick=lambda now: None, extend_deadlines=None,
        budget=Budget(1, 1, 1), workers=WorkerSlots(1), timeout=10.0,
    )  # fmt: skip
    with (
        Service(server, LOOPBACK) as service,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as deaf,
    ):
        deaf.linger, deaf.rcvhwm = 0, 1
        deaf.connect(service.address.endpoint)
        for _ in range(many):
            deaf.send(b'x')
        service.run(lambda: len(handled) < many)
        kept = 0
        while deaf.poll(500):
            deaf.recv()
            kept += 1
    assert 0 < kept < many / 2  # the kernel's buffers hold some of them


def test_a_worker_waits_for_a_server_that_restarts_on_the_same_port():
    world = World(lambda: dual_way(0.05), slots=1)
    with served(world) as address:
        worker = join(world, address)
        worker.step()
        state = world.server.state_dict()
    world.restart(state)
    step = threading.Thread(target=worker.step)
    step.start()
    time.sleep(0.3)
    with served(world, address=address):
        step.join(20)
        assert not step.is_alive()
        assert world.server.version == 2
        worker.assert_recorded()
        worker.optimizer.close()


def test_a_server_that_answers_and_ends_is_not_reported_as_lost(monkeypatch, caplog):
    """As after the LEAVE of the last worker, whose reply and end arrive together."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    link = SocketLink(Address('127.0.0.1', router.bind_to_random_port('tcp://127.0.0.1')))
    link.open(1000)
    send = link._send

    def send_and_let_the_server_end(frame):
        send(frame)
        asked = None
        while asked is None or asked.kind is not Kind.LEAVE:
            sender, received = router.recv_multipart()
            asked = protocol.decode(received, protocol.FROM_WORKER)
        router.send_multipart([sender, asked.reply(Kind.LEFT).encode()])
        context.destroy(linger=1000)
        time.sleep(0.2)  # in which the link notices the end

    monkeypatch.setattr(link, '_send', send_and_let_the_server_end)
    assert link.request(Message(Kind.LEAVE, link.session, 1)).kind is Kind.LEFT
    assert 'is lost' not in caplog.text
    link.close()


def test_a_worker_gives_up_on_a_server_that_never_comes():
    with socket.socket() as taken:  # a port where nobody listens
        taken.bind(('127.0.0.1', 0))
        address = Address(*taken.getsockname())
        start = time.monotonic()
        with pytest.raises(ServerError, match=r'no parameter server at .*patience.*running'):
            join(World(dual_way), address, patience=0.5)
        assert time.monotonic() - start < 10


def test_heartbeats_hold_a_slot_and_their_end_frees_it():
    world = World(lambda: dual_way(0.05), slots=1)
    world.server.timeout = 1.0
    with served(world) as address:
        worker = join(world, address)
        time.sleep(1.5)
        assert len(world.server.workers) == 1
        worker.optimizer._link._heartbeat.stop()
        deadline = time.monotonic() + 10
        while len(world.server.workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not len(world.server.workers)
        worker.step()  # it joins again
        worker.assert_recorded()
        worker.optimizer.close()


def test_a_server_that_was_busy_drops_no_worker():
    """While it reads no messages, heartbeats wait in its socket."""
    world = World(lambda: dual_way(0.05), slots=2)
    world.server.timeout = 1.0
    service = Service(world.server, LOOPBACK)
    over, busy = threading.Event(), threading.Event()

    def between() -> bool:
        if busy.is_set():
            busy.clear()
            time.sleep(2.5)
        return not over.is_set()

    thread = threading.Thread(target=service.run, args=(between,))
    thread.start()
    workers = [join(world, service.address) for _ in range(2)]
    tickets = [worker.optimizer._ticket for worker in workers]
    busy.set()
    for worker in workers:
        worker.step()
        worker.assert_recorded()
    assert [worker.optimizer._ticket for worker in workers] == tickets
    for worker in workers:
        worker.optimizer.close()
    over.set()
    thread.join()
    service.close()


def test_a_port_in_use_is_an_error():
    world = World(dual_way)
    with served(world) as address, pytest.raises(ServerError, match='cannot listen at'):
        Service(world.new_server(), address)


@pytest.mark.parametrize('host', ['127.0.0.1', '127.1.2.3', 'localhost', '::1'])
def test_loopback_needs_no_key(host):
    assert choose_secret(None, host) is None


@pytest.mark.parametrize('host', ['0.0.0.0', '10.0.0.1', 'example.org', '::', '*'])
def test_beyond_loopback_a_key_is_required_unless_unprotected_is_set(host, tmp_path):
    with pytest.raises(ServerError, match=r"configs\.server\.key is not set: .*'unprotected'"):
        choose_secret(None, host)
    assert choose_secret('unprotected', host) is None
    write_key_file(tmp_path / 'key')
    assert choose_secret(str(tmp_path / 'key'), host) is not None


def test_a_key_file_is_private_and_never_overwritten(tmp_path):
    path = tmp_path / 'key'
    write_key_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(read_key_file(path)) == 32 and read_key_file(path) == read_key_file(path)
    with pytest.raises(ServerError, match='cannot be made'):
        write_key_file(path)
    path.chmod(0o644)
    with pytest.raises(ServerError, match='chmod 600'):
        read_key_file(path)
    path.chmod(0o600)
    for text in ('', 'xyz', 'ab' * 31):
        path.write_text(text)
        with pytest.raises(ServerError, match='no key file'):
            read_key_file(path)
    with pytest.raises(ServerError, match='cannot be read'):
        read_key_file(tmp_path / 'missing')


def test_a_key_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / 'key'
    write_key_file(path)
    mine = os.geteuid()
    monkeypatch.setattr('dgc.parameter_server.settings.ROOT', -1)
    monkeypatch.setattr(os, 'geteuid', lambda: mine + 4321)
    with pytest.raises(ServerError, match=r'key file .* belongs to .*user \d+ in a folder'):
        read_key_file(path)
    monkeypatch.setattr('dgc.parameter_server.settings.ROOT', mine)
    assert len(read_key_file(path)) == 32  # that of root is accepted


def test_a_key_file_that_others_could_replace_is_refused(tmp_path):
    folder = tmp_path / 'keys'
    folder.mkdir()
    write_key_file(folder / 'key')
    for mode in (0o770, 0o707):
        folder.chmod(mode)
        with pytest.raises(ServerError, match='can be replaced by others: chmod go-w'):
            read_key_file(folder / 'key')
    folder.chmod(0o1777)  # as /tmp, where only its owner may replace a file
    assert len(read_key_file(folder / 'key')) == 32


def test_both_sides_derive_different_pairs():
    assert KEY.server != KEY.worker and KEY != derive_key(bytes(32))
    assert len({*KEY.server, *KEY.worker}) == 4


@pytest.mark.parametrize(
    ('text', 'address'),
    [
        ('127.0.0.1:5555', Address('127.0.0.1', 5555)),
        ('[::1]:0', Address('::1', 0)),
        ('node-3.local:65535', Address('node-3.local', 65535)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text, 'it') == address
    assert parse_address(str(address), 'it') == address


@pytest.mark.parametrize(
    'text', ['', 'host', 'host:', ':5', 'a b:5', 'tcp://a:5', 'h:65536', '::1']
)
def test_an_invalid_address_is_an_error_that_names_the_setting(text):
    with pytest.raises(ServerError, match=r'configs\.server\.bind = .* is no host:port'):
        parse_address(text, 'configs.server.bind')


@pytest.mark.parametrize(
    ('settings', 'remedy'),
    [
        ({'timeout': 0.0}, 'timeout must be above 0'),
        ({'timeout': 3.0, 'heartbeat': 2.0}, 'at least 4'),
        ({'journal': 'sometimes'}, 'none of written, synced, off'),
        ({'bind': 'a:1', 'address': 'a:1'}, 'serves or trains'),
    ],
)
def test_contradictory_settings_are_refused(settings, remedy):
    with pytest.raises(ValueError, match=remedy):
        ServerSettings(**settings)


def test_a_message_of_an_unknown_session_changes_nothing():
    world = World(dual_way)
    for kind in (Kind.STATISTICS, Kind.LOSSES, Kind.HEARTBEAT):
        assert world.server.handle(Message(kind, 5, 1).encode(), 0.0) is None
    reply = protocol.decode(
        world.server.handle(Message(Kind.PUSH, 5, 1).encode(), 0.0), protocol.FROM_SERVER
    )
    assert reply.kind is Kind.REJOIN
    assert world.server.version == 0 and not len(world.server.workers)
