"""What ends a worker or a server before its time, in one line for a person."""


class ServerError(RuntimeError):
    """A server cannot be started or reached, or refuses this worker; the text says what helps."""
