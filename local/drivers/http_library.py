"""The HTTP library, imported here alone. Its continuation has the same API: httpx2, with httpcore2."""

import httpcore
import httpx

__all__ = ["httpcore", "httpx"]
