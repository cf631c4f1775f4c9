"""Object stores behind the port `ObjectStore`.

    S3ObjectStore      any S3 with put-if-absent (`If-None-Match: *`), by obstore
    FolderObjectStore  a folder of one server, `lattice-server --single`

Limits: 10 s a call, and a second more for every half megabyte; three tries within that. After that
the caller gets `Unavailable`, and the call is abandoned.

Once: `put_new` writes or finds that the key exists. If the answer of a try was lost, the existing
object is compared with the sent one, and an equal one counts as written.

Not here: the meaning of keys, retention, encryption. Those belong to the features.
"""
