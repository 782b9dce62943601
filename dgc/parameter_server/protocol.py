"""Messages between a server and its workers. All integers are little-endian; nothing is pickled.

    offset  bytes  field
         0      4  magic, b'DGS' and the version of this format
         4      2  kind
         6      2  slot: the index of a worker among those that may train at the same time
         8      8  session: drawn by each worker process when it starts
        16      8  sequence: number of a worker's request, from 1; a reply repeats it
        24      8  ticket: drawn by the server each time it sends a worker the model; 0 before that
        32      8  version: from a server, updates that its model includes
        40      8  update: number of a PUSH among the updates of its session, from 1; else 0
        48      8  length: bytes of the body
        56      …  body

    from a worker   body                                      reply
    JOIN            a digest of 32 bytes per aspect           WELCOME, FULL, FINISHED, REFUSED
    HELLO           empty; first on a new connection          KNOWN, REJOIN
    PUSH            a section per bucket                      ANSWER, DECLINED, FINISHED, REJOIN,
                                                              PENDING, REFUSED
    PULL            the number of a fragment (u64)            ANSWER, FINISHED, REJOIN, PENDING
    LEAVE           empty                                     LEFT
    LOSSES          float64 training losses, at most 256      none
    STATISTICS      float32 buffers of the model, in order    none
    HEARTBEAT       empty                                     none

    from a server   body
    WELCOME         worker slots, updates in all, steps per epoch (u64 each); a dense section per
                    bucket; float32 buffers of the model
    ANSWER          a section per bucket: to be added where sparse, θ itself where dense
    DECLINED        the length of a text (u64); UTF-8 text: why the update is not applied; then
                    as ANSWER
    FINISHED        empty: all updates have been made
    PENDING         empty: the round of that fragment is open, and nothing has changed
    KNOWN           empty: the session holds a slot, and may push on this connection
    REJOIN          empty: the session is unknown, or its ticket is out of date
    FULL            empty: every worker slot is taken
    LEFT            empty
    REFUSED         UTF-8 text: the reason

A section holds one bucket of an update or answer, in the order of the buckets:

    offset  bytes  field
         0      4  form: 0 dense, 1 sparse
         4      4  zero
         8      8  length: bytes of the section's data
        16      …  dense: all n elements as float32; sparse: a message of the codec
         …    0-7  zeros, up to a multiple of 8

With rounds of local steps (rounds.py), u64 each:

    WELCOME         ends with the number of the open round of each fragment
    PUSH            begins with a fragment, the samples of its movement, and the number of the round
                    that was open when the learner got the parameters from which it moved
    ANSWER          begins with the number of the open round, and 1 where the learner has pushed
                    something into it, else 0
    PUSH, ANSWER    have sections of that fragment's buckets alone

A request is sent again after a reconnection, so it may arrive twice, and counts once: the server
stores the last sequence of each session and repeats the same reply for the same sequence. It also
stores the last update number of each session, across restarts, and applies no update twice. A PUSH
with an outdated ticket is answered with REJOIN, because the record of that worker may differ.

A connection may carry messages of at most SHORT bytes until a JOIN, HELLO or other message of a
session that holds a slot has come through it. So a worker sends HELLO before it repeats a PUSH.

Every length and field is checked before it is used, and a mismatch raises ProtocolError. Sockets
disconnect a sender of more than ``max_message_bytes`` before the message is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgc.codec import Codec
from dgc.sparse import Sparse

VERSION = 3
MAGIC = b'DGS' + bytes([VERSION])
HEADER = struct.Struct('<4sHHQQQQQQ')
SECTION_HEADER = struct.Struct('<I4xQ')
BUDGET = struct.Struct('<QQQ')
TEXT_LENGTH = struct.Struct('<Q')
MOVEMENT = struct.Struct('<QQQ')  # fragment, samples, round
NUMBER = struct.Struct('<Q')  # of a fragment or a round
ROUND = struct.Struct('<QQ')  # its number, whether the learner has contributed
SECTION_ALIGNMENT = 8
DENSE, SPARSE = 0, 1
FLOAT32 = 4  # bytes
DIGEST = 32  # bytes
MAX_WORKER_SLOTS = 2**16 - 1
MAX_TEXT = 1024  # bytes of a refusal
MAX_LOSSES = 256  # in one message
MAX_SAMPLES = 2**40  # of one movement
# Bytes of a message from a peer that has not joined: JOIN is the longest that it needs.
SHORT = 4096


class ProtocolError(ValueError):
    """Bytes that are not a valid message of this protocol."""


class Kind(IntEnum):
    """The kinds of messages; see the module."""

    JOIN = 1
    PUSH = 2
    LEAVE = 3
    LOSSES = 4
    STATISTICS = 5
    HEARTBEAT = 6
    HELLO = 7
    PULL = 8
    WELCOME = 16
    ANSWER = 17
    FINISHED = 18
    REJOIN = 19
    FULL = 20
    LEFT = 21
    REFUSED = 22
    DECLINED = 23
    KNOWN = 24
    PENDING = 25


FROM_WORKER = frozenset(kind for kind in Kind if kind < Kind.WELCOME)
FROM_SERVER = frozenset(Kind) - FROM_WORKER
WITHOUT_REPLY = frozenset({Kind.LOSSES, Kind.STATISTICS, Kind.HEARTBEAT})


class Message(NamedTuple):
    """One message; see the module. ``body`` shares the storage that it was decoded from."""

    kind: Kind
    session: int
    sequence: int
    slot: int = 0
    ticket: int = 0
    version: int = 0
    update: int = 0
    body: bytes | memoryview = b''

    def encode(self) -> bytes:
        """Return the message as one frame."""
        fields = (self.kind, self.slot, self.session, self.sequence, self.ticket)
        return HEADER.pack(MAGIC, *fields, self.version, self.update, len(self.body)) + self.body

    def reply(self, kind: Kind, **fields: Any) -> Message:
        """Return a reply to this request."""
        return Message(kind, self.session, self.sequence, **fields)

    @property
    def text(self) -> str:
        """The reason in the body of a REFUSED, as one printable line."""
        return printable(self.body)


def decode(frame: bytes | memoryview, expected: frozenset[Kind]) -> Message:
    """Decode ``frame``. Raises ProtocolError unless it is valid and of an expected kind."""
    if len(frame) < HEADER.size:
        raise ProtocolError(f'{len(frame)} bytes are no message: a header has {HEADER.size}')
    magic, kind, *numbers, length = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise ProtocolError(f'a message begins with {bytes(magic)!r}, not {MAGIC!r}')
    if kind not in expected:
        raise ProtocolError(f'a message of kind {kind} is not valid in this direction')
    if length != len(frame) - HEADER.size:
        raise ProtocolError(
            f'a body of {length} bytes was announced, {len(frame) - HEADER.size} arrived'
        )
    body = memoryview(frame)[HEADER.size :]
    slot, session, sequence, ticket, version, update = numbers
    return Message(Kind(kind), session, sequence, slot, ticket, version, update, body)


def split_declined(body: bytes | memoryview) -> tuple[str, bytes | memoryview]:
    """The reason in a DECLINED's body as one printable line, and the sections behind it.

    Raises:
        ProtocolError: If the body is shorter than its text.
    """
    if len(body) < TEXT_LENGTH.size:
        raise ProtocolError(f'{len(body)} bytes are no reason')
    end = TEXT_LENGTH.size + int(TEXT_LENGTH.unpack_from(body)[0])
    if end > len(body):
        raise ProtocolError(f'a reason of {end} bytes is longer than its message')
    return printable(body[TEXT_LENGTH.size : end]), body[end:]


def printable(raw: bytes | memoryview) -> str:
    """Bytes that a peer has sent as one printable line of at most MAX_TEXT bytes."""
    text = bytes(raw[:MAX_TEXT]).decode(errors='replace')
    return ' '.join(''.join(c if c.isprintable() else ' ' for c in text).split())


def refusal(request: Message | None, reason: str) -> Message:
    """Return the reply that refuses a request; ``request`` is None if it was not decodable."""
    body = reason.encode()[:MAX_TEXT]
    if request is None:
        return Message(Kind.REFUSED, 0, 0, body=body)
    return request.reply(Kind.REFUSED, body=body)


class Budget(NamedTuple):
    """The amount of training, and the number of workers.

    Attributes:
        worker_slots: Number of workers that may train at the same time.
        steps_per_epoch: Steps of one worker in an epoch.
        updates: Updates of all workers together after which training ends.
    """

    worker_slots: int
    steps_per_epoch: int
    updates: int

    def check(self) -> None:
        """Raise ValueError for numbers with which training is impossible."""
        if not 1 <= self.worker_slots <= MAX_WORKER_SLOTS:
            raise ValueError(
                f'a server has 1 to {MAX_WORKER_SLOTS} workers, got {self.worker_slots}: '
                'set configs.server.workers'
            )
        if self.updates < 1 or self.steps_per_epoch < 1:
            raise ValueError(f'there is nothing to train: {self}')

    def encode(self) -> bytes:
        """Return the first bytes of a WELCOME."""
        return BUDGET.pack(self.worker_slots, self.updates, self.steps_per_epoch)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Budget:
        """Read the budget at the beginning of a WELCOME's body of at least ``BUDGET.size`` bytes.

        Numbers that are used as divisors are set to at least 1.
        """
        worker_slots, updates, steps_per_epoch = BUDGET.unpack_from(body)
        return cls(max(worker_slots, 1), max(steps_per_epoch, 1), updates)


def is_cheaper_dense(numel: int, k: int, codec: Codec) -> bool:
    """Return whether ``numel`` float32 are no longer than a message of ``k`` of them."""
    return codec.capacity(numel, k) >= FLOAT32 * numel


def encode_section(part: Sparse, codec: Codec, seed: int = 0) -> bytes:
    """Return one bucket's section.

    Args:
        part: The bucket's elements, sparse or dense.
        codec: Encodes a sparse part.
        seed: Of a stochastic value coding.
    """
    form, data = DENSE, part.values
    if part.indices is not None:
        form, data = SPARSE, codec.encode(part, seed)
    raw = tensor_to_bytes(data)
    return SECTION_HEADER.pack(form, len(raw)) + raw + bytes(-len(raw) % SECTION_ALIGNMENT)


def decode_sections(body: bytes | memoryview, numels: Sequence[int], codec: Codec) -> list[Sparse]:
    """Return the buckets' elements in a body of sections.

    Args:
        body: One section per bucket, and nothing else.
        numels: Elements of each bucket.
        codec: Any codec: a message states its own codings.

    Raises:
        ProtocolError: If the sections do not fit the buckets.
        CodecError: If a sparse section is damaged.
    """
    parts, offset, body = [], 0, memoryview(body)
    for numel in numels:
        if offset + SECTION_HEADER.size > len(body):
            raise ProtocolError(f'an update of {len(body)} bytes has too few sections')
        form, length = SECTION_HEADER.unpack_from(body, offset)
        offset += SECTION_HEADER.size
        if length > len(body) - offset:
            raise ProtocolError(f'a section of {length} bytes is longer than its message')
        data = body[offset : offset + length]
        if form == SPARSE:
            part = codec.decode(tensor_from_bytes(data, torch.uint8))
        elif form == DENSE and length % FLOAT32 == 0:
            part = Sparse(tensor_from_bytes(data, torch.float32), None, length // FLOAT32)
        else:
            raise ProtocolError(f'a section of form {form} and {length} bytes')
        if part.numel != numel:
            raise ProtocolError(f'a section for {part.numel} elements, where {numel} are trained')
        parts.append(part)
        offset += length + -length % SECTION_ALIGNMENT
    if offset != len(body):
        raise ProtocolError(f'an update of {len(body)} bytes goes on after its last section')
    return parts


def tensor_to_bytes(tensor: Tensor) -> bytes:
    """Return the elements of a flat tensor, copied to the CPU."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def tensor_from_bytes(data: bytes | memoryview, dtype: torch.dtype) -> Tensor:
    """Copy bytes to a flat tensor. Raises ProtocolError for a fraction of an element."""
    if len(data) % dtype.itemsize:
        raise ProtocolError(f'{len(data)} bytes are no whole number of {dtype}')
    return torch.frombuffer(bytearray(data), dtype=dtype) if len(data) else torch.empty(0).to(dtype)


def max_message_bytes(numels: Sequence[int], buffers: int, aspects: int) -> int:
    """Return an upper bound of the length of every message about one model.

    Args:
        numels: Elements of each bucket.
        buffers: Elements of the model's buffers.
        aspects: Number of digests in a JOIN.
    """
    beside = SECTION_HEADER.size + SECTION_ALIGNMENT + NUMBER.size  # the last one in a WELCOME
    sections = sum(beside + FLOAT32 * numel for numel in numels)
    texts = DIGEST * aspects + MAX_TEXT + TEXT_LENGTH.size
    return HEADER.size + MOVEMENT.size + sections + BUDGET.size + FLOAT32 * buffers + texts
