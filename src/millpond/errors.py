"""Errors that a user can cause. The command line prints them without a traceback and exits with 2."""


class MillpondError(Exception):
    """An error that the user can fix; the message says what is wrong and how to fix it."""

    quiet = False  # True if another process has already printed it
    one_line = False  # True if the message has one line: a line break in it comes from a name in a file
    exit_code = 2  # of the command line; 1 if the input was valid and something else failed
