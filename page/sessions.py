"""Browser sessions: a cookie stands for a token for some hours."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

LASTS = 12 * 3600.0  # seconds
MOST, MOST_OF_ALL = 50, 1000  # sessions of one token, and of all; the oldest one ends


class Sessions:
    """Tokens by cookie, in memory: a restart ends all sessions.

    Args:
        now: clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, tuple[str, float]] = {}  # oldest first

    def open(self, token: str) -> str:
        """Begin a session and return its cookie."""
        now = self._now()
        self._known = {cookie: known for cookie, known in self._known.items() if known[1] > now}
        own = [cookie for cookie, (whose, _) in self._known.items() if whose == token]
        if len(own) >= MOST or len(self._known) >= MOST_OF_ALL:  # with certificates, any text is accepted as a token
            del self._known[own[0] if len(own) >= MOST else next(iter(self._known))]
        cookie = secrets.token_urlsafe(32)
        self._known[cookie] = (token, now + LASTS)
        return cookie

    def token(self, cookie: str) -> str:
        """Return a cookie's token; "" without a session."""
        token, end = self._known.get(cookie, ("", 0.0))
        return token if end > self._now() else ""

    def close(self, cookie: str) -> None:
        """End a session."""
        self._known.pop(cookie, None)
