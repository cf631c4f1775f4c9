"""Object stores behind the port `ObjectStore`.

    S3ObjectStore      any S3 with put-if-absent (`If-None-Match: *`), by obstore
    FolderObjectStore  a folder of one server, `lattice-server --single`

Bounds       10 s a call, and a second more for every half megabyte; three tries within that. Who
             waits longer gets `Unavailable`, and the work behind the call is given up.
Once         `put_new` writes or finds the key taken, and a try whose answer was lost is no
             "taken": what is there is then compared with what was sent.
Not here     what keys mean, retention, encryption: those are the features'.
"""
