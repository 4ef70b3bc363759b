"""A training of the user's own, measured while it runs beside what was predicted for it.

prediction          what a step should take: of a trace, or of the loop's own model and first batch
first_batch         what the model is first called with, and how
forked              that batch's step on the simulated GPU, in a child process
stopwatch           times of steps by CUDA events, or by the clock of the host
comparison          medians and peaks beside the prediction, and which of them parted
causes              what may be the reason, by what the process can be asked
wording             all of it in sentences
monitor             `torchtally.monitor`: all of it together, for any loop
trainer_callback    `torchtally.TallyCallback`, for the Trainer of transformers
lightning_callback  `torchtally.LightningTallyCallback`, for the Trainer of Lightning
"""
