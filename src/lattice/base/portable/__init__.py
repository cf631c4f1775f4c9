"""Files that also run alone, on Python 3.8 and its library, where Lattice is not installed.

    measures.py       What a machine can do: one figure for each call.
    machine_facts.py  What a machine is: its parts and their settings.
    node_check.py     The program of a check job.
    guest_program.py  The program in the guest of a GPU slice.

They import nothing of Lattice but each other, so the text of each can be sent or copied. So a host,
its guest and a job on a node are measured by the same code.
"""
