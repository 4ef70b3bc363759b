"""A simulated GPU: what torch sees of it, and what its operators do.

Tensors "on" it are plain tensors on torch's meta device whose storage says which device it stands
for (`storage.py`). `session.py` puts the parts together and takes them away again.
"""
