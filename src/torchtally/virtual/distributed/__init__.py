"""torch.distributed, answered for one rank of a world whose other ranks are not there.

Every collective of Python or C++ is an operator, which the dispatch mode sees before any backend:
`collectives.py` says what its tensors hold afterwards. `groups.py` makes process groups that have
no backend, `work.py` what is waited for, `rendezvous.py` how the ranks find each other.
"""
