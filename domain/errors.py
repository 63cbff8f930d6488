"""The three kinds of error and their children; HTTP codes belong to the API's error table alone."""


class SerinusError(Exception):
    """Base of every error that Serinus raises on purpose; its text is one clear sentence."""


class Temporary(SerinusError):
    """The same call may work later.

    ``retry_after_s`` is the least time, in seconds, that a caller should wait.
    """

    def __init__(self, sentence: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


class Permanent(SerinusError):
    """The same call will fail again until a person or the configuration changes something."""


class InvariantViolation(SerinusError):
    """A rule that the code itself guarantees was broken: a fault of Serinus, never of its user."""


class BadInput(Permanent):
    """Something a person gave is wrong; the sentence names what it is and how to mend it."""


class Conflict(Permanent):
    """A decision was made on a version that is no longer the current one, or was made already."""


class NotFound(Permanent):
    """The named row does not exist."""


class LeaseLost(Temporary):
    """Another controller holds the right to act."""


class GatewayUnverified(Temporary):
    """The gateway took a change and reading it back did not show it."""


class EngineUnreachable(Temporary):
    """An engine or its launcher could not be asked for its state."""
