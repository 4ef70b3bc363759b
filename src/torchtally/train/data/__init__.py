"""Token data: files of token ids, the order in which they are read, and batches made ahead of time.

    token_file   what is known of one file: format, dtype, tokens, where they begin
    headers      llm.c and NumPy headers           megatron   the .idx beside a .bin
    sniff        which format a file has           description   the JSON that `tally data` writes
    token_data   several files as windows of tokens, by memory map or by reads
    files        paths as files of tokens that were checked and opened
    check        are these ids of this vocabulary, in this byte order?
    order        which windows are the batch of a step: a pure function of (seed, step)
    ring         batches made ahead by a thread, and moved to the device
    batches      all of the above for a training loop
    prepare      text into token files             texts, tokenizer, writer, replacing   its parts

Nothing is ever unpickled: a `meta.pkl` beside a file stays closed.
"""
