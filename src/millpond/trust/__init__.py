"""Trust: ask before code is imported that a recipe file or a run folder names. SECURITY.md states the rules.

`locations` finds the files of that code without importing anything, and says which lie in the user's project; `own_runs`
recognises the runs that this user started; `consent` decides, asks, and refuses.
"""

from millpond.trust.consent import TrustError, require_trust, untrusted
from millpond.trust.own_runs import is_own_run, mark_as_own

__all__ = ["TrustError", "is_own_run", "mark_as_own", "require_trust", "untrusted"]
