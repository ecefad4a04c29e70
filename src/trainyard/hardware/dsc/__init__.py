"""DSC, DIRECT's Distributed Synchronization Controller.

In reading order: `token_arbiter` chooses the next holder of a token, `barriers` is the barrier, `controller` the state machine of
both; `unit` has their time, energy and area; `token_service` runs tokens on the engine's clock; `token_words` is the token protocol
on shared words, `sync_interval` the rule that adapts the synchronisation interval.
"""
