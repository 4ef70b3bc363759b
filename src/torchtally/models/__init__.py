"""One call on a model: it is copied to a virtual GPU, takes a step there, and is accounted."""
