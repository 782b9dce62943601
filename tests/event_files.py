"""Reading TensorBoard's event files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any


def events(file: Path) -> list[Any]:
    """TensorBoard's records: u64 length, u32 checksum, message, u32 checksum."""
    from tensorboardX.proto.event_pb2 import Event

    raw, found = file.read_bytes(), []
    while raw:
        (length,) = struct.unpack('<Q', raw[:8])
        found.append(Event.FromString(raw[12 : 12 + length]))
        raw = raw[16 + length :]
    return found
