"""From a message to an acknowledgement: one transaction, everything in it or nothing.

`receive` alone opens and commits the transaction. The run's lock is held from the first read to the
commit, so that any replica may take any message. What is decided is decided by the domain.
"""
