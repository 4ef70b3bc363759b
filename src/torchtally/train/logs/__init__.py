"""The logs of a training: always JSON lines, optionally TensorBoard, wandb and trackio.

    names       the names of all values, their meanings, units and origins
    log         the interface of a log, and the header of a run
    jsonl       writing and reading FOLDER/log.jsonl
    services    TensorBoard, wandb and trackio
    together    all of them combined: `with logs(folder, ...) as log:`

Logs never affect the training: one that fails is reported and dropped.
"""
