"""Token data: files of token ids, the order in which they are read, and prefetched batches.

    token_file   one file: format, dtype, number of tokens, offset
    headers      llm.c and NumPy headers           megatron      the .idx beside a .bin
    sniff        format detection                  description   the JSON that `tally data` writes
    token_data   several files as windows of tokens, by memory map or by reads
    files        paths as token files, checked and opened
    check        whether ids fit the vocabulary and the byte order
    order        the windows of a step's batch: a pure function of (seed, step)
    ring         batches prefetched by a thread and moved to the device
    batches      all of these, for a training loop
    prepare      text to token files               texts, tokenizer, writer   its parts

Nothing is unpickled: a `meta.pkl` beside a file is ignored.
"""
