"""Layouts in the configurations of training frameworks, a file for each: read and written.

A reader gives a layout in the words of `layout_words.py`, so that a reader of the answer sees what
was understood; what it leaves out is as without a file.
"""
