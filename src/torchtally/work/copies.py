"""Copies, fills and constants: bytes and no arithmetic.

Between host and device only the device's side is counted.
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, one_pass, result, rule, rules

COPIES = (
    "clone _to_copy to type_as contiguous _reshape_copy reshape reshape_as flatten ravel unflatten"
    " chalf _lazy_clone _foreach_clone _to_cpu to_dense _copy_from _copy_from_and_resize"
    " resolve_conj resolve_neg complex"
    " _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short"
    " cat concat concatenate stack _stack hstack vstack dstack row_stack column_stack block_diag"
    " _chunk_cat flatten_dense_tensors split_copy split_with_sizes_copy unbind_copy meshgrid"
    " cartesian_prod combinations"
    " flip fliplr flipud roll rot90 tril triu diag diag_embed diagflat fill_diagonal_"
    " repeat tile expand_copy"
    " alias_copy as_strided_copy detach_copy diagonal_copy narrow_copy permute_copy select_copy"
    " slice_copy squeeze_copy t_copy transpose_copy unfold_copy unsqueeze_copy view_copy"
    " view_as_complex_copy view_as_real_copy lift_fresh_copy _reshape_alias_copy _conj_copy"
    " _neg_view_copy _fw_primal_copy"
    " constant_pad_nd pad _pad_enum _pad_circular reflection_pad1d reflection_pad2d"
    " reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
    " pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle"
    " _to_dense slice_backward select_backward diagonal_backward trace_backward"
    " _cudnn_rnn_flatten_weight _convert_weight_to_int4pack"
    " fsdp.chunk_cat fsdp.split_with_sizes_copy"
    " lu_unpack fft_fftshift fft_ifftshift upsample_nearest1d upsample_nearest2d upsample_nearest3d"
    " _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"
)


@rule(COPIES, kind=Kind.COPY)
def copy(call: Call) -> Cost:
    """Each input element read once, each output element written once."""
    return one_pass(call)


@rule("fsdp.copy_", kind=Kind.COPY)
def fsdp_copy(call: Call) -> Cost:
    return one_pass(call, unread=("tensor",))


@rule("fsdp.all_gather_copy_in", kind=Kind.COPY)
def fsdp_gather(call: Call) -> Cost:
    """The shards into this rank's part of the output, which the schema does not say is written."""
    shards = call.tensors("all_gather_inputs")
    shard_bytes = sum(spec.bytes for spec in shards if spec.is_on_device)
    return Cost(bytes_read=shard_bytes, bytes_written=shard_bytes)


rules(
    Kind.COPY,
    # The old content is not read.
    PerElement("copy_ copy _foreach_copy fill_ _foreach_zero_ zero_", unread=("self",)),
    # The result written. A tensor given for its shape is not read.
    PerElement(
        "zeros ones full eye arange range linspace logspace scalar_tensor tril_indices"
        " triu_indices zeros_like ones_like full_like new_zeros new_ones new_full"
        " _efficientzerotensor bartlett_window blackman_window hamming_window hann_window"
        " kaiser_window fft_fftfreq fft_rfftfreq _dim_arange vander fill _foreach_zero zero"
        " _new_zeros_with_same_feature_meta",
        unread=("self", "like", "other"),
    ),
    # Every gradient is added to where its value came from: the input's shape is all it needs.
    PerElement(
        "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward"
        " replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
        flops=1,
        of="grad_output",
        unread=("self",),
    ),
)


@rule("slice_scatter select_scatter diagonal_scatter as_strided_scatter", kind=Kind.COPY)
def scatter(call: Call) -> Cost:
    """Every element of the result is read from one of the two inputs."""
    rest = one_pass(call, unread=("self", "src"))
    return rest + Cost(bytes_read=result(call).bytes)
