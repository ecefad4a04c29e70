"""DSC, the Distributed Synchronization Controller: `unit` is what it takes, `controller` its state machine.

`token_arbiter` chooses, `token_desk` serves agents on the engine's clock, `token_words` is the protocol on shared words; `barriers`
and `sync_interval` complete it.
"""
