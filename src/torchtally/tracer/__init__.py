"""Turns what runs on a virtual GPU into a `Trace`: ops, where they come from, what they hold."""
