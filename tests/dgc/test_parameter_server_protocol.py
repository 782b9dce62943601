"""Invalid messages are refused, and the other workers train on."""

from __future__ import annotations

import random

import pytest
import torch
from ps_helpers import World

from dgc.codec import Codec
from dgc.parameter_server import dual_way, protocol
from dgc.parameter_server.protocol import FROM_SERVER, FROM_WORKER, HEADER, Kind, Message
from dgc.sparse import Sparse

CODEC = Codec('fp16', 'packed')
PUSH = Message(Kind.PUSH, 2**64 - 1, 7, 3, 2**64 - 2, 9, 5, b'body')


def altered(frame: bytes, offset: int, new: bytes) -> bytes:
    return frame[:offset] + new + frame[offset + len(new) :]


def test_a_message_has_the_documented_bytes():
    frame = PUSH.encode()
    expected = (
        b'DGS\x03' + (2).to_bytes(2, 'little') + (3).to_bytes(2, 'little') + b'\xff' * 8
        + (7).to_bytes(8, 'little') + (2**64 - 2).to_bytes(8, 'little')
        + b''.join(n.to_bytes(8, 'little') for n in (9, 5, 4)) + b'body'
    )  # fmt: skip
    assert frame == expected
    assert len(frame) == HEADER.size + 4 == 60
    assert protocol.decode(frame, FROM_WORKER) == PUSH


@pytest.mark.parametrize(
    ('frame', 'reason'),
    [
        (b'', '0 bytes are no message'),
        (PUSH.encode()[: HEADER.size - 1], '55 bytes are no message'),
        (altered(PUSH.encode(), 0, b'HTTP'), 'begins with'),
        (altered(PUSH.encode(), 3, b'\x01'), 'begins with'),
        (altered(PUSH.encode(), 4, b'\xff\xff'), 'kind 65535'),
        (altered(PUSH.encode(), 4, bytes([Kind.ANSWER, 0])), 'kind 17'),
        (PUSH.encode() + b'x', '4 bytes was announced, 5 arrived'),
        (altered(PUSH.encode(), 48, b'\xff' * 8), 'bytes was announced'),
    ],
)
def test_invalid_frames_are_refused(frame, reason):
    with pytest.raises(protocol.ProtocolError, match=reason):
        protocol.decode(frame, FROM_WORKER)
    world = World(dual_way)
    reply = protocol.decode(world.server.handle(frame, 0.0), FROM_SERVER)
    assert reply.kind is Kind.REFUSED and reason in reply.text


def parts() -> list[Sparse]:
    sparse = Sparse(torch.tensor([1.0, -2.0]), torch.tensor([1, 499]), 500)
    return [
        sparse,
        Sparse(torch.arange(3.0), None, 3),
        Sparse(torch.empty(0), torch.empty(0).long(), 9),
    ]


def test_sections_are_decoded_as_they_were_encoded():
    body = b''.join(protocol.encode_section(part, CODEC) for part in parts())
    assert len(body) % protocol.SECTION_ALIGNMENT == 0
    for part, there in zip(
        parts(), protocol.decode_sections(body, [500, 3, 9], CODEC), strict=True
    ):
        assert torch.equal(part.to_dense(), there.to_dense()) and part.is_dense == there.is_dense


@pytest.mark.parametrize(
    ('numels', 'change', 'reason'),
    [
        ([500, 3], lambda body: body, 'goes on after'),
        ([500, 3, 9, 1], lambda body: body, 'too few sections'),
        ([501, 3, 9], lambda body: body, '500 elements, where 501'),
        ([500, 3, 9], lambda body: body[:-8], 'longer than its message|too few'),
        ([500, 3, 9], lambda body: altered(body, 8, b'\xff' * 7), 'longer than its message'),
        ([500, 3, 9], lambda body: altered(body, 0, b'\x02'), 'form 2'),
        ([500, 3, 9], lambda body: altered(body, 16, b'DOG'), 'begins with'),
        ([500, 3, 9], lambda body: altered(body, 0, b'\x00'), 'elements, where 500'),
    ],
)
def test_invalid_bodies_are_refused(numels, change, reason):
    body = change(b''.join(protocol.encode_section(part, CODEC) for part in parts()))
    with pytest.raises(ValueError, match=reason):
        protocol.decode_sections(body, numels, CODEC)


def test_no_message_is_longer_than_max_message_bytes():
    """The longest ones: a model, and a dense answer."""
    world = World(lambda: dual_way(1.0), slots=1)
    longest, deliver = [0], world.deliver

    def measured(frame):
        reply = deliver(frame)
        longest.append(max(len(frame), len(reply or b'')))
        return reply

    world.deliver = measured
    worker = world.join()
    worker.step()
    worker.optimizer.close()
    assert 4 * 1451 < max(longest) <= world.server.max_message_bytes < max(longest) + 3000


@pytest.mark.parametrize('seed', range(3))
def test_the_server_survives_damaged_frames_and_the_others_train_on(seed):
    """A worker's own frames with changed bytes, truncated and extended."""
    draw = random.Random(seed)
    world = World(lambda: dual_way(0.05, values='int8', indices='packed'), slots=3)
    good, other = world.join(), world.join()
    frames, deliver = [], world.deliver

    def kept(frame):
        frames.append(frame)
        return deliver(frame)

    world.deliver = kept
    bad = world.join()
    for worker in (bad, bad):
        worker.step()
    world.deliver = deliver
    refused = 0
    for _ in range(400):
        frame = bytearray(draw.choice(frames))
        for _ in range(draw.choice([0, 1, 1, 2, 20])):
            frame[draw.randrange(len(frame))] = draw.randrange(256)
        cut = draw.choice([None, None, draw.randrange(len(frame))])
        extra = bytes(draw.choice([0, 0, 5]))
        reply = world.server.handle(bytes(frame[:cut]) + extra, 0.0)
        refused += reply is not None and protocol.decode(reply, FROM_SERVER).kind is Kind.REFUSED
    assert refused > 200
    for worker in (good, other, good):
        worker.step()
        worker.assert_recorded()


def test_an_update_with_an_infinity_is_refused():
    world = World(lambda: dual_way(1.0), slots=1)
    worker = world.join()
    before = [values.clone() for values in world.server.model.flats]
    numels = world.server.model.numels
    bad = [Sparse(torch.full((numel,), torch.inf), None, numel) for numel in numels]
    body = b''.join(protocol.encode_section(part, CODEC) for part in bad)
    message = worker.optimizer._message(Kind.PUSH, body)._replace(sequence=99, update=1)
    reply = protocol.decode(world.server.handle(message.encode(), 0.0), FROM_SERVER)
    assert reply.kind is Kind.REFUSED and 'infinity' in reply.text
    assert all(map(torch.equal, before, world.server.model.flats))


@pytest.mark.parametrize('kind', sorted(protocol.WITHOUT_REPLY - {Kind.HEARTBEAT}))
def test_messages_without_reply_are_refused_in_the_log_alone(kind, caplog):
    """A worker would take a reply for that to its next request."""
    world = World(lambda: dual_way(0.05))
    worker = world.join()
    session = worker.optimizer._link.session
    assert world.deliver(Message(kind, session, 0, body=b'1234567').encode()) is None
    assert 'refused a message' in caplog.text
    worker.step()
    worker.assert_recorded()


def test_a_refusal_is_one_printable_line():
    reply = protocol.refusal(None, 'a\n\x1b[31mb' + 'c' * 5000)
    assert reply.text.startswith('a [31mb') and len(reply.text) <= 1024
