"""The errors a user can cause. The command line prints them without a traceback and exits with 2."""


class MillpondError(Exception):
    """Something the user can mend; the message says what and how."""

    quiet = False  # whether another process says it already
    exit_code = 2  # of the command line; 1 where the input was right and something else failed
