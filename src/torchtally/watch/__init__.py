"""A running training, followed live: what it measures beside what was predicted. No torch.

observation  what one line of a log, or one profiler's trace, says of a step
formats      the lines of nanoGPT, nanochat, llm.c, torchtitan, Megatron-LM and `tally train`
trainer      dictionaries and progress bars of Hugging Face's Trainer
logs         the lines of one log as observations
tail         a file that grows, is truncated or replaced
folder       the traces and logs of a folder, each trace once it is whole
expectation  what a simulated run predicts of every step
watcher      observations against the expectation: which parted, which are late
following    the loop over all of it, with a clock of the caller's
"""
