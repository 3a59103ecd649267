"""The errors a user can cause. The command line prints them without a traceback and exits with 2."""


class MillpondError(Exception):
    """Something the user can mend; the message says what and how."""
