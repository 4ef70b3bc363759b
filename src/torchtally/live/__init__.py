"""A running training, measured and compared with what was predicted for it.

observation         what one line of a log, or one profiler's trace, says of a step
prediction          what a step should take: of a trace, or of the loop's own model and first batch
comparison          medians and peaks against the prediction, and in which respect they deviate
record              what was seen of one log or worker, and the times of its steps
watcher             observations against the prediction: which deviate, which are late
sentences           comparisons and events in words
documents           the lines of `tally watch --json`

For `tally watch`, without torch:

formats             the lines of nanoGPT, nanochat, llm.c, torchtitan, Megatron-LM and `tally train`
trainer             dictionaries and progress bars of Hugging Face's Trainer
logs                the lines of one log as observations
tail                a file that grows, is truncated or replaced
folder              the traces and logs of a folder, each trace once it is whole
following           the loop over all of it, with a clock of the caller's

For `torchtally.monitor`, in the process that trains:

first_batch         what the model is first called with, and how
forked              that batch's step on the simulated GPU, in a child process
stopwatch           times of steps by CUDA events, or by the clock of the host
causes              what may be the reason, by what the process can be asked
trackers            the logs that get both
monitor             `torchtally.monitor`: all of it together, for any loop
trainer_callback    `torchtally.TallyCallback`, for the Trainer of transformers
lightning_callback  `torchtally.LightningTallyCallback`, for the Trainer of Lightning
"""
