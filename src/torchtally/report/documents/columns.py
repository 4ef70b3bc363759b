"""Columns of tables, with units and meanings."""

from typing import Annotated

from torchtally.report.keys import (
    Bytes,
    BytesPerS,
    Count,
    DocumentPart,
    FlopPerS,
    Flops,
    Fraction,
    Hours,
    Joules,
    Number,
    Seconds,
    TokensPerS,
    Usd,
    key,
)


class Columns(DocumentPart, frozen=True):
    """Columns of tables that are no keys of documents otherwise."""

    flops_change: Annotated[Flops, key("Of the second run less the first")]
    activations_bytes: Annotated[
        Bytes, key("Held at the moment of the row: saved for the backward pass")
    ]
    buffers_bytes: Annotated[Bytes, key("Held: buffers of modules")]
    bytes_after: Annotated[Bytes, key("Held at the later moment")]
    bytes_amp: Annotated[Bytes, key("Held for parameters by the recipe amp")]
    bytes_before: Annotated[Bytes, key("Held at the earlier moment")]
    bytes_bf16: Annotated[Bytes, key("Held for parameters by the recipe bf16")]
    bytes_change: Annotated[Bytes, key("Of the second run less the first")]
    bytes_fp32: Annotated[Bytes, key("Held for parameters by the recipe fp32")]
    bytes_megatron: Annotated[Bytes, key("Held for parameters by the recipe megatron")]
    bytes_mixed: Annotated[Bytes, key("Held for parameters by the recipe mixed")]
    bytes_moved: Annotated[Bytes, key("Read and written")]
    bytes_per_token: Annotated[Bytes, key("Of a KV cache, for each token")]
    bytes_saved_change: Annotated[
        Bytes, key("Saved for the backward pass by the second run less the first")
    ]
    communication_buffers_bytes: Annotated[Bytes, key("Held: buffers of collectives")]
    gathered_parameters_bytes: Annotated[Bytes, key("Held: parameters gathered from other ranks")]
    gradients_bytes: Annotated[Bytes, key("Held: gradients")]
    growth_bytes: Annotated[Bytes, key("Held at the later moment less the earlier")]
    growth_per_step_bytes: Annotated[Bytes, key("The same per step")]
    inputs_bytes: Annotated[Bytes, key("Held: batches")]
    most_bytes: Annotated[Bytes, key("Held at most at any time")]
    optimizer_state_bytes: Annotated[Bytes, key("Held: optimizer state")]
    parameters_bytes: Annotated[Bytes, key("Held: parameters")]
    payload_bytes: Annotated[
        Bytes, key("What each rank hands to its collectives or is given by them")
    ]
    peak_bytes: Annotated[Bytes, key("Held at the peak")]
    sent_bytes: Annotated[Bytes, key("Sent to other chips")]
    temporaries_bytes: Annotated[Bytes, key("Held: temporaries")]
    unknown_bytes: Annotated[Bytes, key("Held: of unknown use")]
    unused_bytes: Annotated[Bytes, key("Reserved and not allocated, at the peak")]
    workspaces_bytes: Annotated[Bytes, key("Held: workspaces of libraries")]
    active: Annotated[Count, key("Parameters that one token uses")]
    age_ticks: Annotated[Count, key("Operators since a storage was allocated")]
    alloc_retries: Annotated[Count, key("Times the allocator gave its cache back and tried again")]
    block: Annotated[Count, key("Elements that share a scale")]
    context: Annotated[Count, key("Tokens of the longest sequence")]
    count_change: Annotated[Count, key("Operators of the second run less the first")]
    gaps: Annotated[Count, key("Times that the device was idle")]
    launches: Annotated[Count, key("Kernels launched")]
    layers: Annotated[Count, key("Layers of the model")]
    line_number: Annotated[Count, key("Of a line, in a view of one file")]
    module_count: Annotated[Count, key("Modules that a row is of")]
    nodes: Annotated[Count, key("Machines")]
    number: Annotated[Count, key("Of a storage, in order of birth")]
    offer_count: Annotated[Count, key("Sellers whose price of a chip is known")]
    operators_per_s: Annotated[Count, key("Operators that the host issues in a second")]
    part_number: Annotated[Count, key("Of an operator that is part of a fused kernel")]
    place: Annotated[Count, key("Of an element in its storage")]
    storages: Annotated[Count, key("Storages")]
    tensors: Annotated[Count, key("Tensors in a storage")]
    tick: Annotated[Count, key("Operators run before")]
    uses: Annotated[Count, key("Elements of a tensor at a place of its storage")]
    version: Annotated[Count, key("Of a kind of document")]
    vocabulary: Annotated[Count, key("Tokens that a model knows")]
    width: Annotated[Count, key("Of the model's hidden layers")]
    compute_s: Annotated[Seconds, key("In which the device computes")]
    difference_s: Annotated[Seconds, key("What the fastest layout would save")]
    end_s: Annotated[Seconds, key("When it ends")]
    fastest_s: Annotated[Seconds, key("By the fastest layout")]
    idle_s: Annotated[Seconds, key("In which the device waits for its host")]
    line_s: Annotated[Seconds, key("Of it, at the line that loses most")]
    lost_s: Annotated[Seconds, key("Of the real run beyond the prediction")]
    mean_s: Annotated[Seconds, key("Of one kernel on average")]
    network_s: Annotated[Seconds, key("Of collectives, hidden or not")]
    own_s: Annotated[Seconds, key("By the layout that was given")]
    own_seconds: Annotated[Seconds, key("Of a module without those inside it")]
    prompt_s: Annotated[Seconds, key("To read the prompt")]
    seconds_after: Annotated[Seconds, key("In the second run")]
    seconds_before: Annotated[Seconds, key("In the first run")]
    seconds_change: Annotated[Seconds, key("What the second run takes more")]
    seconds_evaluation: Annotated[Seconds, key("Of evaluation")]
    since_s: Annotated[Seconds, key("From the beginning of the step")]
    start_s: Annotated[Seconds, key("When it begins")]
    bfloat16_mfu: Annotated[Fraction, key("MFU of bfloat16 products")]
    bubble_share: Annotated[Fraction, key("Of the step, in which pipeline stages wait")]
    bytes_share: Annotated[Fraction, key("Of the bytes of all rows")]
    float16_mfu: Annotated[Fraction, key("MFU of float16 products")]
    float32_mfu: Annotated[Fraction, key("MFU of float32 products")]
    kernel_share: Annotated[Fraction, key("Of the kernels' time")]
    line_share: Annotated[Fraction, key("Of the row's time, at the line beside it")]
    network_share: Annotated[Fraction, key("Of the step, for exposed communication")]
    parameters_share: Annotated[Fraction, key("Of the parameters of all rows")]
    prompt_share: Annotated[Fraction, key("Of the time to read the prompt")]
    relative: Annotated[Fraction, key("Over the first row's step")]
    roofline_share: Annotated[Fraction, key("Predicted by the roofline over measured")]
    run_share: Annotated[Fraction, key("Of the whole run")]
    token_share: Annotated[Fraction, key("Of the time of a token")]
    backward_flop_per_s: Annotated[FlopPerS, key("Of attention's backward pass")]
    bfloat16_flop_per_s: Annotated[FlopPerS, key("In bfloat16")]
    causal_backward_flop_per_s: Annotated[FlopPerS, key("Of causal attention's backward pass")]
    causal_forward_flop_per_s: Annotated[FlopPerS, key("Of causal attention's forward pass")]
    float16_flop_per_s: Annotated[FlopPerS, key("In float16")]
    float32_flop_per_s: Annotated[FlopPerS, key("In float32")]
    forward_flop_per_s: Annotated[FlopPerS, key("Of attention's forward pass")]
    limit_flop_per_s: Annotated[FlopPerS, key("The peak that is promised, or estimated")]
    peak_flop_per_s: Annotated[FlopPerS, key("Promised by the data sheet")]
    achieved_bytes_per_s: Annotated[BytesPerS, key("Measured")]
    bus_bytes_per_s: Annotated[BytesPerS, key("Of a collective, by nccl-tests' bus bandwidth")]
    bytes_per_s: Annotated[BytesPerS, key("Moved, over the kernels' time")]
    device_to_host_pageable_bytes_per_s: Annotated[
        BytesPerS, key("Copied to pageable memory of the host")
    ]
    device_to_host_pinned_bytes_per_s: Annotated[
        BytesPerS, key("Copied to page-locked memory of the host")
    ]
    host_to_device_pageable_bytes_per_s: Annotated[
        BytesPerS, key("Copied from pageable memory of the host")
    ]
    host_to_device_pinned_bytes_per_s: Annotated[
        BytesPerS, key("Copied from page-locked memory of the host")
    ]
    peak_bytes_per_s: Annotated[BytesPerS, key("Promised by the data sheet")]
    promised_bytes_per_s: Annotated[BytesPerS, key("Promised by the data sheet")]
    tokens_per_s_each: Annotated[TokensPerS, key("Tokens per second, of one sequence")]
    cost_usd: Annotated[
        Usd, key("Of the length that was asked for, of a row of a view its time's, on all GPUs")
    ]
    highest_cost_usd: Annotated[Usd, key("The same at the highest offer")]
    lowest_cost_usd: Annotated[Usd, key("The same at the lowest offer")]
    usd_per_million: Annotated[Usd, key("Of a million tokens")]
    gpu_hours: Annotated[Hours, key("Of all GPUs together")]
    energy_joules: Annotated[
        Joules,
        key("Of all GPUs: at their thermal design power, of what was traced at their mean power"),
    ]
    times: Annotated[Number, key("As a multiple of the first or of this")]
    dimensions: Annotated[
        list[int], key("Of a tensor: its named dimensions with their sizes, batch=8 seq=1024")
    ]
    algorithm: Annotated[str, key("Of a collective")]
    bar: Annotated[str, key("Bytes by category, drawn in letters")]
    category: Annotated[str, key("What memory is held for")]
    checkpoint: Annotated[str, key("Name of its folder")]
    collective: Annotated[str, key("Name of a collective")]
    collectives: Annotated[str, key("Names of collectives, and how often they run")]
    command: Annotated[str, key("What a budget is for: the script with its arguments")]
    commit: Annotated[str, key("Of git, short")]
    detail: Annotated[str, key("Of a note")]
    document: Annotated[str, key("A kind of document")]
    element_indices: Annotated[str, key("Of the elements at a place")]
    from_lines: Annotated[str, key("Lines whose operators a compiler fused to a kernel")]
    from_shape: Annotated[str, key("Before a change of layout")]
    from_strides: Annotated[str, key("Before a change of layout")]
    group: Annotated[str, key("Ranks of a collective; of parameters, their use")]
    input_dtypes: Annotated[str, key("Of an operator")]
    input_shapes: Annotated[str, key("Of an operator")]
    kernel: Annotated[str, key("Name of a kernel")]
    layout: Annotated[str, key("Degrees of parallelism")]
    like: Annotated[str, key("How a step compares with others")]
    mark: Annotated[str, key("Letter of a run in a chart")]
    may_be: Annotated[str, key("null, absent or both")]
    meaning: Annotated[str, key("In words")]
    members: Annotated[str, key("Of a group of ranks")]
    missing: Annotated[str, key("What is not known")]
    moment: Annotated[str, key("Step and phase")]
    operators: Annotated[str, key("That a compiler fused to a kernel, or that launch it")]
    optimizer: Annotated[str, key("As torch.optim has it, in lower case")]
    output: Annotated[str, key("Shape of a module's output")]
    output_dtypes: Annotated[str, key("Of an operator")]
    output_shapes: Annotated[str, key("Of an operator")]
    outputs: Annotated[str, key("Of an operator: shapes and dtypes")]
    overload: Annotated[str, key("Of an operator, as torch spells it")]
    owner: Annotated[str, key("Name of a storage, or the module or line that made it")]
    part: Annotated[str, key("Of a step or a sum")]
    parts: Annotated[str, key("Bits of sign, exponent and mantissa")]
    passes: Annotated[str, key("Of a generation: prefill, decode")]
    path: Annotated[str, key("Of a key from the top; [] any in a list, * any name")]
    phase: Annotated[str, key("forward, backward, recompute, optimizer")]
    present: Annotated[str, key("In which of two runs a line is: both, before, after")]
    problem: Annotated[str, key("What is wrong with it; empty where nothing is")]
    recompute: Annotated[str, key("Activation recomputation in the backward pass")]
    remark: Annotated[str, key("About the row")]
    saved: Annotated[str, key("When it was saved, in UTC")]
    settings: Annotated[str, key("As for PYTORCH_CUDA_ALLOC_CONF")]
    since: Annotated[str, key("The step in which it was allocated")]
    state: Annotated[str, key("Of a comparison: before, after, change")]
    step_range: Annotated[str, key("Steps that a row is of")]
    stream: Annotated[str, key("Of the device, or a communicator")]
    subject: Annotated[str, key("First line of a commit's message")]
    summary: Annotated[str, key("What it is")]
    tensor: Annotated[str, key("Dtype and shape")]
    traced: Annotated[str, key("Marks the chip of the trace")]
    training: Annotated[str, key("A published one")]
    transfer: Annotated[str, key("From where to where")]
    view: Annotated[str, key("Of a run, as --by names it")]
    weight_format: Annotated[str, key("Number format of the weights")]
    weights: Annotated[str, key("Names of a group's weights")]
