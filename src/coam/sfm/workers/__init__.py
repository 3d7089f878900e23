"""Many workers: the items of a task are done in chunks, by processes of this machine or actors of Ray."""
