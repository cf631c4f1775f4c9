"""Figures of a machine in a file, and two such files compared: bare metal against a slice's guest.

Data path    `bench capture` ─► base.portable (facts and measures) ─► a JSON file.
             `bench compare` ─► two files ─► model ─► domain.statistics (pure) ─► render.
Bounds       It needs no server and no rights. It writes one scratch file, and reads nothing of a
             user's. A capture takes about a minute; with `fio` installed about two.
When down    There is nothing that could be. What a machine can't measure has its reason.
Promises     SLICE-3.
"""
