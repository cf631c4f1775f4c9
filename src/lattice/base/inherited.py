"""What a daemon must not inherit from the process that started it.

Not here: signals that the starter has it ignore for good reason, such as SIGHUP under `nohup`.
"""

from __future__ import annotations

import signal


def reset_inherited_signals() -> None:
    """Unblock every signal, and let this process wait for its children again.

    The mask and an ignored SIGCHLD both survive exec. With SIGCHLD ignored the kernel collects
    children itself, and their exit codes are lost. A blocked SIGTERM or SIGALRM is never heard.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
