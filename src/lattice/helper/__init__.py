"""The only code that ever runs as root: narrow verbs on a unix socket."""
