"""Browsers that have shown a token: their cookie opens pages here for some hours, and is no token."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

LASTS = 12 * 3600.0  # seconds
MOST = 1000  # at once: the oldest ends


class Sessions:
    """Tokens by the cookies that stand for them, in memory: who restarts the server ends all sessions.

    Args:
        now: seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def open(self, token: str) -> str:
        """Return the cookie of a new session."""
        cookie = secrets.token_urlsafe(32)
        self._known[cookie] = (token, self._now() + LASTS)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return cookie

    def token(self, cookie: str) -> str:
        """Return the token that a cookie stands for; "" without a session."""
        token, end = self._known.get(cookie, ("", 0.0))
        return token if end > self._now() else ""

    def close(self, cookie: str) -> None:
        """End a session."""
        self._known.pop(cookie, None)
