"""What processes of an agent have imported before they begin."""

from __future__ import annotations

import rankdad.local.agent.processes
import rankdad.local.site  # noqa: F401
